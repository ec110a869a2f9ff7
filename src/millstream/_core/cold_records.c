/* Extents as plain values, and what applies a plan: of PyEntryStore of millstream/engine/streams/entries.py, which has the docstrings and the
 * form of a plan.
 *
 * Invariants: nothing here reads a pack. A change of a store asks for all its memory before.
 */
#include "extent.h"

#define ROW_SIZE 88

/* ---------------------------------------------------------------- extents as plain values */

static uint64_t get_little(const char *at, int size)
{
    uint64_t number = 0;
    while (size--)
        number = number << 8 | (unsigned char)at[size];
    return number;
}

static char *put_little(char *at, int size, uint64_t number)
{
    for (; size; size--, number >>= 8)
        *at++ = (char)(unsigned char)number;
    return at;
}

static void get_ends(Extent *extent, const char *ends)
{
    extent->first = id_from_bytes(ends);
    extent->last = id_from_bytes(ends + 16);
    extent->first_live = id_from_bytes(ends + 32);
    extent->last_live = id_from_bytes(ends + 48);
}

void extent_put_ends(const Extent *extent, char *ends)
{
    id_to_bytes(extent->first, ends);
    id_to_bytes(extent->last, ends + 16);
    id_to_bytes(extent->first_live, ends + 32);
    id_to_bytes(extent->last_live, ends + 48);
}

static void get_row(Extent *extent, uint32_t pack, const char *row)
{
    *extent = (Extent){.pack = pack, .offset = get_little(row, 8), .length = (uint32_t)get_little(row + 8, 4)};
    extent->nodes = (uint32_t)get_little(row + 12, 4);
    extent->stored = (uint32_t)get_little(row + 16, 4);
    extent->live = (uint32_t)get_little(row + 20, 4);
    get_ends(extent, row + 24);
}

static void put_row(const Extent *extent, char *row)
{
    row = put_little(put_little(row, 8, extent->offset), 4, extent->length);
    row = put_little(put_little(put_little(row, 4, extent->nodes), 4, extent->stored), 4, extent->live);
    extent_put_ends(extent, row);
}

/* Report whether an extent is one that a program's own records have: all that is summed or used as a size */
static int is_sound(const Extent *extent)
{
    return extent->length >= FRAME_HEAD + EXTENT_HEAD && extent->length <= FRAME_MAX && extent->nodes <= extent->length
           && extent->stored <= extent->length && extent->live <= extent->stored && EXTENT_LEFT(extent) > 0
           && EXTENT_LEFT(extent) <= extent->nodes && extent->offset < (uint64_t)1 << 62
           && extent->first <= extent->last && (extent->live == 0) == (extent->last_live == 0)
           && (extent->live == 0 ? extent->first_live == 0
                                 : extent->first <= extent->first_live && extent->first_live <= extent->last_live
                                       && extent->last_live <= extent->last);
}

/* The holes of an item [index, dead, gone] */
static int get_holes(PyObject *item, Extent *extents, Py_ssize_t count)
{
    Py_ssize_t index;
    PyObject *dead, *gone, *parts = PySequence_Tuple(item);
    Buf marks = {0}, nodes = {0};
    int status = parts == NULL || !PyArg_ParseTuple(parts, "nOO", &index, &dead, &gone) ? -1 : 0;
    if (status == 0 && (index < 0 || index >= count || extents[index].holes != NULL))
        status = refuse_cold("holes of an extent that is not there");
    if (status == 0)
        status = marks_read(&marks, dead, extents[index].stored) < 0 || marks_read(&nodes, gone, extents[index].nodes) < 0
                         || holes_make(&marks, &nodes, &extents[index].holes) < 0
                     ? -1
                     : 0;
    buf_free(&marks);
    buf_free(&nodes);
    Py_XDECREF(parts);
    return status;
}

static void free_extents(Extent *extents, Py_ssize_t count)
{
    for (Py_ssize_t at = 0; extents != NULL && at < count; at++)
        holes_free(extents[at].holes);
    PyMem_Free(extents);
}

/* The extents of a transition; NULL with an exception */
static Extent *get_extents(unsigned int pack, PyObject *rows, PyObject *holes, Py_ssize_t *count)
{
    *count = PyBytes_GET_SIZE(rows) / ROW_SIZE;
    if (*count == 0 || PyBytes_GET_SIZE(rows) % ROW_SIZE)
        return refuse_cold("extents of another size"), NULL;
    Extent *extents = PyMem_New(Extent, (size_t)*count);
    if (extents == NULL)
        return PyErr_NoMemory(), NULL;
    for (Py_ssize_t at = 0; at < *count; at++)
        get_row(extents + at, pack, PyBytes_AS_STRING(rows) + at * ROW_SIZE);
    int status = 0;
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(holes) && status == 0; at++)
        status = get_holes(PyList_GET_ITEM(holes, at), extents, *count);
    for (Py_ssize_t at = 0; at < *count && status == 0; at++)
        if (!is_sound(extents + at) || (at > 0 && extents[at].first < extents[at - 1].last))
            status = refuse_cold("extents out of order");
    if (status == 0)
        return extents;
    free_extents(extents, *count);
    return NULL;
}

/* ---------------------------------------------------------------- adding, moving */

/* Make the cold part, without an extent yet; -1 with an exception */
static int begin_cold(EntryStore *store)
{
    if (store->cold == NULL && (store->cold = count_block(PyMem_Calloc(1, sizeof(Cold)), sizeof(Cold))) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

/* Compare an extent with the nodes in memory from one on; the number of these, or -1 with an exception */
static Py_ssize_t match(EntryStore *store, Py_ssize_t index, const Extent *extent)
{
    Py_ssize_t left = EXTENT_LEFT(extent);
    int64_t live = 0, stored = 0;
    Id first_live = 0, last_live = 0;
    if (index + left >= store->count)
        return refuse_cold("extents of more nodes than are in memory");
    for (Py_ssize_t at = index; at < index + left; at++) {
        const Node *node = STORE_NODE(store, at);
        live += node->live;
        stored += node->stored;
        first_live = first_live ? first_live : node->first_live;
        last_live = node->live ? node->last_live : last_live;
    }
    if (live != extent->live || (left == extent->nodes ? stored != extent->stored : stored > extent->stored)
        || STORE_NODE(store, index)->first != extent->first || STORE_NODE(store, index + left - 1)->last != extent->last
        || first_live != extent->first_live || last_live != extent->last_live)
        return refuse_cold("extents of other entries than the nodes in memory");
    return left;
}

PyObject *cold_add(EntryStore *store, PyObject *args)
{
    unsigned int pack;
    PyObject *rows, *holes;
    Py_ssize_t count, nodes = 0, left = 0;
    if (!PyArg_ParseTuple(args, "ISO!", &pack, &rows, &PyList_Type, &holes))
        return NULL;
    if (store->reads == NULL)
        return refuse_cold("extents without a way to read them"), NULL;
    Extent *extents = get_extents(pack, rows, holes, &count);
    if (extents == NULL || begin_cold(store) < 0)
        return free_extents(extents, extents == NULL ? 0 : count), NULL;
    Cold *cold = store->cold;
    int status = cold->count && extents[0].first < EXTENT(cold, cold->count - 1).last ? refuse_cold("extents out of order") : 0;
    for (Py_ssize_t at = 0; at < count && status == 0 && store->count; at++, nodes += left)
        status = (left = match(store, nodes, extents + at)) < 0 ? -1 : 0;
    if (status < 0 || cold_reserve(store, count) < 0)
        return free_extents(extents, count), NULL;
    for (Py_ssize_t at = 0; at < count; at++) {
        EXTENT(cold, cold->count) = extents[at];
        cold->count++;
        cold->live += extents[at].live;
        cold->nodes += EXTENT_LEFT(extents + at);
        cold->bytes += extents[at].length;
        cold->holes += holes_memory(extents[at].holes);
        store->length += extents[at].live;
    }
    PyMem_Free(extents);
    for (; nodes; nodes--)
        store_drop(store, 0);
    store->version++;
    Py_RETURN_NONE;
}

PyObject *cold_move(EntryStore *store, PyObject *args)
{
    unsigned int pack;
    PyObject *row, *holes;
    Py_ssize_t index, count;
    if (!PyArg_ParseTuple(args, "nISO!", &index, &pack, &row, &PyList_Type, &holes))
        return NULL;
    Extent *extent = get_extents(pack, row, holes, &count);
    if (extent == NULL)
        return NULL;
    Extent *old = store->cold == NULL || index < 0 || index >= store->cold->count ? NULL : &EXTENT(store->cold, index);
    if (count != 1 || old == NULL || extent->live != old->live || extent->first != old->first || extent->last != old->last
        || extent->first_live != old->first_live || extent->last_live != old->last_live
        || EXTENT_LEFT(extent) != EXTENT_LEFT(old)) {
        free_extents(extent, count);
        refuse_cold("an extent is to take the place of another one that has other entries");
        return NULL;
    }
    store->cold->bytes += (Py_ssize_t)extent->length - (Py_ssize_t)old->length;
    store->cold->holes += holes_memory(extent->holes) - holes_memory(old->holes);
    holes_free(old->holes);
    *old = *extent;
    PyMem_Free(extent);
    store->version++;
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- what is there */

/* [index, dead, gone] of an extent with holes, added to a list */
static int add_holes(PyObject *list, Py_ssize_t index, const Holes *holes)
{
    Buf dead = {0}, gone = {0};
    PyObject *item = holes_marks(holes, &dead, &gone) < 0
                         ? NULL
                         : Py_BuildValue("[nNN]", index, marks_pack(&dead), marks_pack(&gone));
    int status = item == NULL ? -1 : PyList_Append(list, item);
    Py_XDECREF(item);
    buf_free(&dead);
    buf_free(&gone);
    return status;
}

/* The record of at most so many extents of one pack from an index on, None behind the last one */
PyObject *cold_record(EntryStore *store, PyObject *arguments)
{
    Py_ssize_t index, most, count = 1;
    if (!PyArg_ParseTuple(arguments, "nn", &index, &most))
        return NULL;
    if (store->cold == NULL || index < 0 || index >= store->cold->count)
        Py_RETURN_NONE;
    uint32_t pack = EXTENT(store->cold, index).pack;
    uint64_t version = store->version;
    while (count < most && index + count < store->cold->count && EXTENT(store->cold, index + count).pack == pack)
        count++;
    PyObject *rows = PyBytes_FromStringAndSize(NULL, count * ROW_SIZE), *holes = rows == NULL ? NULL : PyList_New(0);
    int status = holes == NULL ? -1 : 0;
    for (Py_ssize_t at = 0; at < count && status == 0; at++) {
        if (store->version != version) { /* new lists may run any code */
            status = refuse_cold("the entries changed while they were looked at");
            break;
        }
        const Extent *extent = &EXTENT(store->cold, index + at);
        put_row(extent, PyBytes_AS_STRING(rows) + at * ROW_SIZE);
        status = extent->holes == NULL ? 0 : add_holes(holes, at, extent->holes);
    }
    if (status == 0)
        return Py_BuildValue("(INN)", pack, rows, holes);
    Py_XDECREF(rows);
    Py_XDECREF(holes);
    return NULL;
}

PyObject *cold_extents(EntryStore *store, PyObject *args)
{
    Py_ssize_t index, most;
    PyObject *list = PyArg_ParseTuple(args, "nn", &index, &most) ? PyList_New(0) : NULL;
    Py_ssize_t count = store->cold == NULL ? 0 : store->cold->count;
    for (index = index < 0 ? 0 : index; list != NULL && index < count && PyList_GET_SIZE(list) < most; index++) {
        const Extent extent = EXTENT(store->cold, index);
        PyObject *row = Py_BuildValue("(INII)", extent.live, id_to_int(extent.last), EXTENT_LEFT(&extent), extent.length);
        if (row == NULL || PyList_Append(list, row) < 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

/* The number of the pack and the bytes of each run of extents in one pack */
PyObject *cold_pack_sizes(EntryStore *store, PyObject *Py_UNUSED(ignored))
{
    PyObject *list = PyList_New(0);
    unsigned long long size = 0;
    for (Py_ssize_t index = 0; list != NULL && store->cold != NULL && index < store->cold->count; index++) {
        const Extent *extent = &EXTENT(store->cold, index);
        size += extent->length;
        if (index + 1 < store->cold->count && EXTENT(store->cold, index + 1).pack == extent->pack)
            continue;
        PyObject *pair = Py_BuildValue("(IK)", extent->pack, size);
        if (pair == NULL || PyList_Append(list, pair) < 0)
            Py_CLEAR(list);
        Py_XDECREF(pair);
        size = 0;
    }
    return list;
}

/* ---------------------------------------------------------------- holes at work */

void marks_free(Marks *marks)
{
    buf_free(&marks->dead);
    buf_free(&marks->gone);
}

/* The same extent with more holes, which belong to it; -1 with an exception */
int with_holes(const Extent *extent, const Marks *more, Extent *twin)
{
    Marks all = {0};
    int status = holes_marks(extent->holes, &all.dead, &all.gone);
    *twin = *extent;
    twin->holes = NULL;
    const Buf *from[2] = {&more->dead, &more->gone};
    Buf *to[2] = {&all.dead, &all.gone};
    for (int set = 0; set < 2 && status == 0; set++) {
        Py_ssize_t longer = from[set]->size - to[set]->size;
        if (longer > 0 && (status = buf_reserve(to[set], longer)) == 0) {
            memset(to[set]->data + to[set]->size, 0, (size_t)longer);
            to[set]->size += longer;
        }
        for (Py_ssize_t at = 0; status == 0 && at < from[set]->size; at++)
            to[set]->data[at] = (char)(to[set]->data[at] | from[set]->data[at]);
    }
    if (status == 0)
        status = holes_make(&all.dead, &all.gone, &twin->holes);
    marks_free(&all);
    return status;
}

/* ---------------------------------------------------------------- changes, which read nothing */

/* The changed extents of a plan, in its order */
typedef struct {
    Py_ssize_t count, *indexes;
    Extent *extents;
} Change;

static void change_free(Change *change)
{
    free_extents(change->extents, change->count);
    PyMem_Free(change->indexes);
}

static int get_place(EntryStore *store, PyObject *place, Py_ssize_t *index, Extent *changed)
{
    PyObject *dead, *gone, *ends, *parts = PySequence_Tuple(place);
    Marks marks = {0};
    unsigned int live;
    changed->holes = NULL;
    int status = parts == NULL || !PyArg_ParseTuple(parts, "nIOOS", index, &live, &dead, &gone, &ends) ? -1 : 0;
    if (status == 0 && (store->cold == NULL || *index < 0 || *index >= store->cold->count || PyBytes_GET_SIZE(ends) != ENDS))
        status = refuse_cold("an extent that is not there");
    if (status == 0) {
        const Extent *old = &EXTENT(store->cold, *index);
        status = marks_read(&marks.dead, dead, old->stored) < 0 || marks_read(&marks.gone, gone, old->nodes) < 0
                         || with_holes(old, &marks, changed) < 0
                     ? -1
                     : 0;
        if (status == 0 && live > old->live)
            status = refuse_cold("an extent with fewer entries than die");
        changed->live = live;
        get_ends(changed, PyBytes_AS_STRING(ends));
    }
    marks_free(&marks);
    Py_XDECREF(parts);
    return status;
}

/* Read a plan; -1 with an exception */
static int change_read(EntryStore *store, PyObject *places, Change *change)
{
    *change = (Change){0};
    if (!PyList_Check(places))
        return refuse_cold("a plan is a list");
    Py_ssize_t count = PyList_GET_SIZE(places);
    uint64_t version = store->version;
    change->indexes = PyMem_New(Py_ssize_t, (size_t)count + 1);
    change->extents = PyMem_New(Extent, (size_t)count + 1);
    int status = change->indexes == NULL || change->extents == NULL ? (PyErr_NoMemory(), -1) : 0;
    for (Py_ssize_t at = 0; at < count && status == 0; at++) {
        if (at >= PyList_GET_SIZE(places))
            status = refuse_cold("a plan that changes");
        else {
            status = get_place(store, PyList_GET_ITEM(places, at), change->indexes + at, change->extents + at);
            change->count++;
        }
        if (status == 0 && at > 0 && change->indexes[at] <= change->indexes[at - 1])
            status = refuse_cold("a plan out of order");
    }
    if (status == 0 && store->version != version)
        status = refuse_cold("the entries changed while a plan was read");
    if (status < 0)
        change_free(change);
    return status;
}

/* Apply it, which frees it; the number of entries that died */
static Py_ssize_t change_apply(EntryStore *store, Change *change)
{
    Cold *cold = store->cold;
    Py_ssize_t removed = 0;
    for (Py_ssize_t at = change->count - 1; at >= 0; at--) {
        Py_ssize_t index = change->indexes[at];
        Extent *old = &EXTENT(cold, index), *new = change->extents + at;
        removed += (Py_ssize_t)old->live - (Py_ssize_t)new->live;
        cold->live -= (Py_ssize_t)old->live - (Py_ssize_t)new->live;
        cold->nodes -= (Py_ssize_t)EXTENT_LEFT(old) - (Py_ssize_t)EXTENT_LEFT(new);
        cold->holes += holes_memory(new->holes) - holes_memory(old->holes);
        Extent kept = *old;
        *old = *new;
        *new = kept; /* is freed with the plan */
        if (EXTENT_LEFT(old) == 0)
            cold_drop(store, index, 1);
    }
    change_free(change);
    store->length -= removed;
    store->version++;
    return removed;
}

PyObject *cold_punch(EntryStore *store, PyObject *places)
{
    Change change;
    return change_read(store, places, &change) < 0 ? NULL : PyLong_FromSsize_t(change_apply(store, &change));
}

PyObject *cold_cut(EntryStore *store, PyObject *args)
{
    PyObject *number, *places;
    Id bound;
    Change change;
    if (!PyArg_ParseTuple(args, "OO", &number, &places))
        return NULL;
    int side = id_clamp(number, &bound);
    if (side == -2 || change_read(store, places, &change) < 0)
        return NULL;
    Py_ssize_t before = store->length, whole = 0;
    change_apply(store, &change);
    Cold *cold = store->cold;
    while (cold != NULL && whole < cold->count && (side > 0 || EXTENT(cold, whole).last < bound))
        store->length -= EXTENT(cold, whole++).live;
    if (whole)
        cold_drop(store, 0, whole);
    if (!is_cold(store))
        store_cut(store, bound, side > 0, 1);
    return PyLong_FromSsize_t(before - store->length);
}

PyObject *cold_put_warm(EntryStore *store, PyObject *args)
{
    PyObject *packed, *places;
    Change change;
    if (!PyArg_ParseTuple(args, "OO", &packed, &places))
        return NULL;
    Node *node = node_unpack(packed);
    if (node == NULL)
        return NULL;
    int status = change_read(store, places, &change);
    if (status == 0 && store_put_first(store, node) < 0) {
        change_free(&change);
        status = -1;
    }
    if (status < 0) {
        node_free(node);
        return NULL;
    }
    change_apply(store, &change);
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- properties */

PyObject *cold_get_reads(EntryStore *store, void *Py_UNUSED(closure))
{
    return Py_NewRef(store->reads == NULL ? Py_None : store->reads);
}

int cold_set_reads(EntryStore *store, PyObject *reads, void *Py_UNUSED(closure))
{
    if (reads == NULL || (reads == Py_None && is_cold(store)))
        return refuse_cold("cold entries need a way to read them");
    Py_XSETREF(store->reads, reads == Py_None ? NULL : Py_NewRef(reads));
    return 0;
}

PyObject *cold_figure(EntryStore *store, void *which)
{
    const Cold *cold = store->cold;
    if (cold == NULL)
        return PyLong_FromLong(0);
    const Py_ssize_t figures[] = {cold->count, cold->live, cold->bytes, cold->holes};
    return PyLong_FromSsize_t(figures[(intptr_t)which]);
}

PyObject *cold_get_last(EntryStore *store, void *Py_UNUSED(closure))
{
    return is_cold(store) ? id_to_int(EXTENT(store->cold, store->cold->count - 1).last) : PyLong_FromLong(-1);
}
