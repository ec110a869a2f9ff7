/* Extents of a stream and walks through their nodes: as PyCold of millstream/engine/streams/cold.py.
 *
 * Reading goes through `reads`. If its source is a PackReader, no Python code runs but for an exception; else its method
 * is called, after which the store must be as before. Neighbouring nodes are read in runs, a node of its own as such.
 */
#include "extent.h"
#include <errno.h>

#define RUN ((Py_ssize_t)256 << 10) /* bytes that are read at once */
#define ROW_GUESS 40                /* bytes of a row of a table, nearly always fewer */
#define GUESS_MAX ((Py_ssize_t)1 << 18)

static PyObject *s_source, *s_may_wait, *s_read;

int cold_prepare(void)
{
    const Name names[] = {{&s_source, "source"}, {&s_may_wait, "may_wait"}, {&s_read, "read"}};
    return intern_names(names, sizeof names / sizeof *names);
}

/* ---------------------------------------------------------------- what is raised */

/* While the runner of plain commands reads: making one of the exceptions would run Python code, and it needs none. It never
 * waits for a disk, since the ordinary way can ask for what is missing. */
static int is_quiet;

void cold_be_quiet(int quiet) { is_quiet = quiet; }

static int fail_quietly(void)
{
    PyErr_SetNone(PyExc_LookupError);
    return -1;
}

/* ColdDamage of one node of an extent (NULL: of all); takes the reference of the reason */
static int raise_damage(EntryStore *store, const Extent *extent, const Node *node, PyObject *reason)
{
    if (is_quiet) {
        Py_XDECREF(reason);
        return fail_quietly();
    }
    PyObject *make = reason == NULL ? NULL : cold_class("Extent"), *type = make == NULL ? NULL : cold_class("ColdDamage");
    PyObject *shown = type == NULL ? NULL
                                   : PyObject_CallFunction(make, "IKIIIINNNN", extent->pack, (unsigned long long)extent->offset,
                                                           extent->length, extent->nodes, extent->stored, extent->live,
                                                           id_to_int(extent->first), id_to_int(extent->last),
                                                           id_to_int(extent->first_live), id_to_int(extent->last_live));
    Id first = node == NULL ? extent->first : node->first, last = node == NULL ? extent->last : node->last;
    PyObject *damage = shown == NULL ? NULL : PyObject_CallFunction(type, "OOONN", shown, reason, store->reads,
                                                                                  id_to_int(first), id_to_int(last));
    if (damage != NULL)
        PyErr_SetObject(type, damage);
    Py_XDECREF(damage);
    Py_XDECREF(shown);
    Py_XDECREF(type);
    Py_XDECREF(make);
    Py_XDECREF(reason);
    return -1;
}

static int damaged(EntryStore *store, const Extent *extent, const Node *node, const char *reason)
{
    return raise_damage(store, extent, node, PyUnicode_FromString(reason));
}

/* ---------------------------------------------------------------- reading */

/* The source, if it is a PackReader (borrowed: reads has it), and whether it may wait; NULL also with an exception */
static PackReader *reader_of(const EntryStore *store, int *may_wait)
{
    PyObject *source = PyObject_GetAttr(store->reads, s_source), *flag;
    int is_reader = source != NULL && Py_TYPE(source) == &PackReaderType;
    Py_XDECREF(source);
    if (!is_reader || (flag = PyObject_GetAttr(store->reads, s_may_wait)) == NULL)
        return NULL;
    *may_wait = flag == Py_True;
    Py_DECREF(flag);
    return (PackReader *)source;
}

int cold_runs_no_python(const EntryStore *store)
{
    int may_wait;
    return !is_cold(store) || reader_of(store, &may_wait) != NULL;
}

/* An OSError of a source, which is damage to whoever reads */
static int disk_failed(EntryStore *store, const Extent *extent, const Node *node)
{
    PyObject *error = take_error();
    PyObject *text = PyObject_GetAttrString(error, "strerror");
    if (text == NULL || !PyObject_IsTrue(text)) {
        PyErr_Clear();
        Py_XSETREF(text, PyObject_Str(error));
    }
    Py_DECREF(error);
    if (text != NULL)
        raise_damage(store, extent, node, PyUnicode_FromFormat("the disk reports: %U", text));
    Py_XDECREF(text);
    return -1;
}

static int read_by_method(EntryStore *store, const Extent *extent, const Node *node, Py_ssize_t at, char *to, Py_ssize_t size)
{
    uint64_t version = store->version;
    PyObject *reads = Py_NewRef(store->reads);
    PyObject *data = PyObject_CallMethod(reads, "read", "IKn", extent->pack, (unsigned long long)extent->offset + (uint64_t)at, size);
    Py_DECREF(reads);
    if (data == NULL)
        return PyErr_ExceptionMatches(PyExc_OSError) ? disk_failed(store, extent, node) : -1;
    int status = 0;
    if (store->version != version) {
        PyErr_SetString(PyExc_RuntimeError, "the entries changed while somebody read them");
        status = -1;
    } else if (!PyBytes_Check(data)) {
        PyErr_SetString(PyExc_TypeError, "a pack's bytes are expected");
        status = -1;
    } else if (PyBytes_GET_SIZE(data) != size) {
        status = damaged(store, extent, node, "the file ends there");
    } else {
        memcpy(to, PyBytes_AS_STRING(data), (size_t)size);
    }
    Py_DECREF(data);
    return status;
}

/* Bytes of an extent's frame, of which damage concerns one node (NULL: all); -1 with ColdMiss, ColdDamage or another exception */
static int read_part(EntryStore *store, const Extent *extent, const Node *node, Py_ssize_t at, char *to, Py_ssize_t size)
{
    int may_wait;
    PackReader *reader = reader_of(store, &may_wait);
    if (reader == NULL)
        return PyErr_Occurred() ? -1 : read_by_method(store, extent, node, at, to, size);
    int found = reader_read(reader, extent->pack, extent->offset + (uint64_t)at, to, size, may_wait && !is_quiet);
    if (found > 0)
        return 0;
    if (found == 0 && is_quiet)
        return fail_quietly();
    if (found == 0)
        return cold_raise_miss(
            Py_BuildValue("[(IKn)]", extent->pack, (unsigned long long)extent->offset + (uint64_t)at, size), NULL);
    return errno == 0 ? damaged(store, extent, node, "the file ends there")
                      : raise_damage(store, extent, node, PyUnicode_FromFormat("the disk reports: %s", strerror(errno)));
}

static int is_table_of(const Table *table, const Extent *extent)
{
    return table->count == extent->nodes && table->stored == extent->stored;
}

static Table *read_table(EntryStore *store, const Extent *extent)
{
    Py_ssize_t payload = (Py_ssize_t)extent->length - FRAME_HEAD, have = EXTENT_HEAD + 32 + ROW_GUESS * (Py_ssize_t)extent->nodes;
    const char *wrong = NULL;
    Table *table = NULL;
    Py_ssize_t size;
    if (payload < EXTENT_HEAD) {
        damaged(store, extent, NULL, "an extent is damaged: it is cut short");
        return NULL;
    }
    have = have < GUESS_MAX ? have : GUESS_MAX;
    have = have < payload ? have : payload;
    char *data = PyMem_Malloc((size_t)have), *more;
    if (data == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    if (read_part(store, extent, NULL, FRAME_HEAD, data, have) < 0)
        goto end;
    size = table_size(data, &wrong);
    if (size > payload - EXTENT_HEAD)
        wrong = "an extent is damaged: its table has another length";
    if (wrong != NULL)
        goto end;
    if (EXTENT_HEAD + size > have) {
        more = PyMem_Realloc(data, (size_t)(EXTENT_HEAD + size));
        if (more == NULL) {
            PyErr_NoMemory();
            goto end;
        }
        data = more;
        if (read_part(store, extent, NULL, FRAME_HEAD + have, data + have, EXTENT_HEAD + size - have) < 0)
            goto end;
    }
    table = table_read(data, size, payload, &wrong);
    if (table != NULL && !is_table_of(table, extent)) {
        part_release(&table->part);
        table = NULL;
        wrong = "an extent is damaged: it is another one";
    }
end:
    PyMem_Free(data);
    if (wrong != NULL)
        damaged(store, extent, NULL, wrong);
    return table;
}

Table *cold_table(EntryStore *store, const Extent *extent)
{
    int may_wait;
    PackReader *reader = reader_of(store, &may_wait);
    Table *table = reader == NULL ? NULL : (Table *)reader_find(reader, extent->pack, extent->offset, TABLE);
    if (PyErr_Occurred() || (table != NULL && is_table_of(table, extent)))
        return table;
    if (table != NULL)
        part_release(&table->part);
    const Extent kept = *extent; /* a source's own code may move them */
    table = read_table(store, &kept);
    if (table != NULL && reader != NULL)
        reader_keep(reader, &table->part, kept.pack, kept.offset, TABLE);
    return table;
}

/* ---------------------------------------------------------------- one node */

Py_ssize_t row_live(const Extent *extent, const Row *row)
{
    return row->node.live - holes_between(extent->holes, row->base, row->base + (uint32_t)row->node.stored);
}

static int grow(char **data, Py_ssize_t *room, Py_ssize_t size)
{
    if (size <= *room)
        return 0;
    char *grown = PyMem_Realloc(*data, (size_t)size);
    if (grown == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    *data = grown;
    *room = size;
    return 0;
}

/* Turn the holes into tombstones, in a copy */
static int punch(ColdWalk *at, const Extent *extent, const Row *row)
{
    Node *node = &at->shown;
    if (grow(&at->copy, &at->copy_room, node->size) < 0)
        return -1;
    node->data = memcpy(at->copy, node->data, (size_t)node->size);
    node->live = 0, node->low = node->size, node->before_low = node->last;
    node->first_live = node->last_live = 0;
    Entry entry;
    Id before = node->first;
    uint32_t ordinal = row->base;
    for (char *place = node->data + node->begin; place < node->data + node->size; place = entry.end, before = entry.id) {
        entry_read(place, before, &entry);
        if (holes_have(extent->holes, ordinal++))
            *entry.at |= 1;
        else if (!entry.dead) {
            if (node->live++ == 0) {
                node->low = place - node->data;
                node->before_low = before;
                node->first_live = entry.id;
            }
            node->last_live = entry.id;
        }
    }
    return 0;
}

static int show(EntryStore *store, const Extent *extent, const Row *row, ColdWalk *at, char *data, int is_checked)
{
    const char *wrong = is_checked ? NULL : node_wrong(&row->node, data, row->crc);
    if (wrong != NULL)
        return damaged(store, extent, &row->node, wrong);
    at->shown = row->node;
    at->shown.data = data;
    return holes_between(extent->holes, row->base, row->base + (uint32_t)row->node.stored) ? punch(at, extent, row) : 0;
}

int cold_load(EntryStore *store, const Extent *extent, const Row *row, uint32_t number, ColdWalk *at)
{
    int may_wait;
    PackReader *reader = reader_of(store, &may_wait);
    if (reader == NULL && PyErr_Occurred())
        return -1;
    const Extent kept = *extent;
    Part *part = reader == NULL ? NULL : reader_find(reader, kept.pack, kept.offset, (int32_t)number);
    size_t size = sizeof *part + (size_t)row->node.size;
    if (part != NULL && part->size != size) { /* of a frame that was there before */
        part_release(part);
        part = NULL;
    }
    int is_kept = part != NULL;
    if (!is_kept) {
        part = part_new(size);
        if (part == NULL)
            return -1;
        if (read_part(store, &kept, &row->node, row->at, part_bytes(part), row->node.size) < 0) {
            part_release(part);
            return -1;
        }
    }
    part_release(at->single);
    at->single = part;
    if (show(store, &kept, row, at, part_bytes(part), is_kept) < 0)
        return -1;
    if (!is_kept && reader != NULL)
        reader_keep(reader, part, kept.pack, kept.offset, (int32_t)number);
    return 0;
}

/* ---------------------------------------------------------------- walks */

Py_ssize_t cold_index(const Cold *cold, Id id)
{
    Py_ssize_t low = 0, high = cold->count;
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        if (EXTENT(cold, middle).first <= id)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}

int cold_begin(Walk *walk)
{
    if (walk->cold == NULL && (walk->cold = PyMem_Calloc(1, sizeof *walk->cold)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    Py_ssize_t index = cold_index(walk->store->cold, walk->backwards ? walk->end : walk->start);
    walk->cold->extent = index < 0 && !walk->backwards ? 0 : index;
    return 0;
}

void cold_end(Walk *walk)
{
    ColdWalk *at = walk->cold;
    if (at == NULL)
        return;
    if (at->table != NULL)
        part_release(&at->table->part);
    part_release(at->single);
    PyMem_Free(at->run);
    PyMem_Free(at->copy);
    PyMem_Free(at);
    walk->cold = NULL;
}

/* One before the first node of the walk's range, in its direction */
static int32_t first_node(const Walk *walk, const Table *table)
{
    Id id = walk->backwards ? walk->end : walk->start;
    int32_t low = 0, high = (int32_t)table->count;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (table->rows[middle].node.first <= id)
            low = middle + 1;
        else
            high = middle;
    }
    return walk->backwards ? low : low < 2 ? -1 : low - 2;
}

static int is_out(const Walk *walk, Id first, Id last)
{
    return walk->backwards ? last < walk->start : first > walk->end;
}

static int has_none(const Walk *walk, Py_ssize_t live, Id first, Id last)
{
    return !walk->all && (live == 0 || last < walk->start || first > walk->end);
}

/* The other end of a run of nodes that the walk comes to */
static int32_t run_end(const Walk *walk, const Extent *extent, const Table *table, int32_t number)
{
    const Row *from = table->rows + number;
    int32_t step = walk->backwards ? -1 : 1, end = number;
    for (Py_ssize_t live = row_live(extent, from); live < walk->wanted; end += step) {
        if (end + step < 0 || end + step >= (int32_t)table->count)
            break;
        const Row *next = from + (end + step - number), *low = step > 0 ? from : next, *high = step > 0 ? next : from;
        if (is_out(walk, next->node.first, next->node.last) || high->at + high->node.size - low->at > RUN)
            break;
        live += row_live(extent, next);
    }
    return end;
}

/* Read a node, and those that the walk comes to next */
static int load(Walk *walk, int32_t number)
{
    ColdWalk *at = walk->cold;
    const Extent extent = EXTENT(walk->store->cold, at->extent);
    const Row *row = at->table->rows + number;
    if (row->at < at->run_at || row->at + row->node.size > at->run_at + at->run_size) {
        int32_t end = run_end(walk, &extent, at->table, number);
        if (end == number)
            return cold_load(walk->store, &extent, row, (uint32_t)number, at);
        const Row *other = at->table->rows + end, *low = end < number ? other : row, *high = end < number ? row : other;
        Py_ssize_t size = high->at + high->node.size - low->at;
        at->run_size = 0;
        if (grow(&at->run, &at->run_room, size) < 0)
            return -1;
        if (read_part(walk->store, &extent, NULL, low->at, at->run, size) < 0) {
            if (is_quiet || !cold_clear_damage())
                return -1;
            walk->wanted = 0; /* from here on only single nodes are read: those before the damage are there */
            return cold_load(walk->store, &extent, row, (uint32_t)number, at);
        }
        at->run_at = low->at;
        at->run_size = size;
    }
    return show(walk->store, &extent, row, at, at->run + (row->at - at->run_at), 0);
}

/* An extent of the walk's range; NULL behind it */
static const Extent *extent_at(const Walk *walk, Py_ssize_t index)
{
    const Cold *cold = walk->store->cold;
    const Extent *extent = index < 0 || index >= cold->count ? NULL : &EXTENT(cold, index);
    int is_behind = extent != NULL && (walk->backwards ? extent->last < walk->start : extent->first > walk->ahead);
    return is_behind ? NULL : extent;
}

/* Add the place of an extent to a list, which goes if that fails */
static void add_place(PyObject **list, const Extent *extent)
{
    PyObject *range = Py_BuildValue("(IKI)", extent->pack, (unsigned long long)extent->offset, extent->length);
    if (range == NULL || PyList_Append(*list, range) < 0)
        Py_CLEAR(*list);
    Py_XDECREF(range);
}

/* After a miss: ask also for what of the walk's range lies behind it, and name the extents from this one on */
static int ask_for_more(const Walk *walk)
{
    PyObject *ranges = cold_take_miss(), *ahead = ranges == NULL ? NULL : PyList_New(0);
    const Extent *extent;
    Py_ssize_t asked = 0, wanted = walk->wanted, index = walk->cold->extent, step = walk->backwards ? -1 : 1;
    for (int is_first = 1; ahead != NULL && asked < ASKED_MAX && wanted > 0; is_first = 0) {
        if ((extent = extent_at(walk, index)) == NULL)
            break;
        wanted -= extent->live < wanted ? extent->live : wanted;
        asked += extent->length;
        index += step;
        if (is_first && wanted == 0)
            break; /* nearly always it is not the whole extent that is wanted */
        add_place(&ranges, extent);
        if (ranges == NULL)
            Py_CLEAR(ahead);
    }
    index = walk->cold->extent;
    for (Py_ssize_t size = 0, count = 0; ahead != NULL && size < AHEAD_MAX && count < AHEAD_COUNT; count++, index += step) {
        if ((extent = extent_at(walk, index)) == NULL)
            break;
        size += extent->length;
        add_place(&ahead, extent);
    }
    if (ahead == NULL)
        Py_CLEAR(ranges);
    if (ranges != NULL)
        cold_raise_miss(ranges, ahead);
    Py_XDECREF(ahead);
    return -1;
}

/* The table of the extent at work, and the place before the first node of the range; 0: it has nothing of the range */
static int open_extent(Walk *walk)
{
    ColdWalk *at = walk->cold;
    const Extent *extent = &EXTENT(walk->store->cold, at->extent);
    at->run_size = 0;
    if (has_none(walk, extent->live, extent->first_live, extent->last_live))
        return 0;
    at->table = cold_table(walk->store, extent);
    if (at->table == NULL)
        return -1;
    at->node = first_node(walk, at->table);
    return 1;
}

static int next_node(Walk *walk)
{
    const Cold *cold = walk->store->cold;
    ColdWalk *at = walk->cold;
    int32_t step = walk->backwards ? -1 : 1;
    for (;;) {
        if (at->table == NULL) {
            if (at->extent < 0 || at->extent >= cold->count
                || is_out(walk, EXTENT(cold, at->extent).first, EXTENT(cold, at->extent).last))
                return 0;
            int found = open_extent(walk);
            if (found < 0)
                return -1;
            if (found == 0) {
                at->extent += step;
                continue;
            }
        }
        at->node += step;
        if (at->node < 0 || at->node >= (int32_t)at->table->count) {
            part_release(&at->table->part);
            at->table = NULL;
            at->extent += step;
            continue;
        }
        const Extent *extent = &EXTENT(cold, at->extent);
        const Row *row = at->table->rows + at->node;
        if (holes_gone(extent->holes, (uint32_t)at->node))
            continue; /* also out of the range: if it got hot, what was before it may be in the next extent */
        if (is_out(walk, row->node.first, row->node.last))
            return 0;
        if (has_none(walk, row_live(extent, row), row->node.first_live, row->node.last_live))
            continue;
        if (load(walk, at->node) < 0)
            return -1;
        walk->wanted -= at->shown.live < walk->wanted ? (Py_ssize_t)at->shown.live : walk->wanted;
        if (!has_none(walk, (Py_ssize_t)at->shown.live, at->shown.first_live, at->shown.last_live))
            return 1;
    }
}

int cold_next(Walk *walk)
{
    int found = next_node(walk);
    if (found > 0)
        walk->node = &walk->cold->shown;
    return found < 0 && walk->start != walk->ahead && !is_quiet ? ask_for_more(walk) : found;
}

Id cold_first_live(const Cold *cold)
{
    for (Py_ssize_t index = 0; index < cold->count; index++)
        if (EXTENT(cold, index).live)
            return EXTENT(cold, index).first_live;
    return 0;
}

Id cold_last_live(const Cold *cold)
{
    for (Py_ssize_t index = cold->count - 1; index >= 0; index--)
        if (EXTENT(cold, index).live)
            return EXTENT(cold, index).last_live;
    return 0;
}

/* ---------------------------------------------------------------- the array of extents */

int cold_reserve(EntryStore *store, Py_ssize_t more)
{
    Cold *cold = store->cold;
    if (cold->head + cold->count + more <= cold->room)
        return 0;
    if (cold->head > cold->room / 2 && cold->count + more <= cold->room) {
        memmove(cold->extents, cold->extents + cold->head, (size_t)cold->count * sizeof(Extent));
        cold->head = 0;
        return 0;
    }
    Py_ssize_t room = cold->head + cold->count + more;
    room += room / 4;
    Extent *extents = resize_counted(cold->extents, (size_t)cold->room * sizeof(Extent), (size_t)room * sizeof(Extent));
    if (extents == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    cold->extents = extents;
    cold->room = room;
    return 0;
}

void cold_drop(EntryStore *store, Py_ssize_t index, Py_ssize_t count)
{
    Cold *cold = store->cold;
    for (Py_ssize_t at = index; at < index + count; at++) {
        Extent *extent = &EXTENT(cold, at);
        cold->live -= extent->live;
        cold->nodes -= EXTENT_LEFT(extent);
        cold->bytes -= extent->length;
        cold->holes -= holes_memory(extent->holes);
        holes_free(extent->holes);
    }
    cold->count -= count;
    if (index == 0)
        cold->head += count;
    else
        memmove(&EXTENT(cold, index), &EXTENT(cold, index + count), (size_t)(cold->count - index) * sizeof(Extent));
    if (cold->count == 0)
        cold->head = 0;
}

int cold_copy(const EntryStore *store, EntryStore *twin)
{
    const Cold *from = store->cold;
    if (from == NULL)
        return 0;
    Cold *cold = twin->cold = count_block(PyMem_Calloc(1, sizeof *cold), sizeof *cold);
    if (cold == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (cold_reserve(twin, from->count) < 0)
        return -1;
    for (; cold->count < from->count; cold->count++) {
        Extent *extent = &EXTENT(cold, cold->count);
        *extent = EXTENT(from, cold->count);
        if (holes_copy(EXTENT(from, cold->count).holes, &extent->holes) < 0)
            return -1;
    }
    cold->live = from->live, cold->nodes = from->nodes, cold->bytes = from->bytes, cold->holes = from->holes;
    return 0;
}

void cold_free(EntryStore *store)
{
    if (store->cold == NULL)
        return;
    cold_drop(store, 0, store->cold->count);
    free_counted(store->cold->extents, (size_t)store->cold->room * sizeof(Extent));
    free_counted(store->cold, sizeof *store->cold);
    store->cold = NULL;
}

Py_ssize_t cold_memory(const EntryStore *store)
{
    const Cold *cold = store->cold;
    if (cold == NULL)
        return 0;
    Py_ssize_t size = block_size(sizeof *cold);
    size += cold->extents == NULL ? 0 : block_size((size_t)cold->room * sizeof(Extent));
    for (Py_ssize_t index = 0; index < cold->count; index++)
        size += holes_memory(EXTENT(cold, index).holes);
    return size;
}
