/* Reads before cold entries are changed: the plans of ColdStore of millstream/engine/cold.py, which has the docstrings
 * and the form of a plan.
 *
 * Invariant: a plan changes nothing. Only the last part plans and applies at once, for callers that have no log.
 */
#include "extent.h"
#include <stdlib.h>

/* ---------------------------------------------------------------- asking before anything is changed */

/* Report whether reads may wait for a disk, and so nothing must be asked for; -1 */
static int may_wait(EntryStore *store)
{
    PyObject *flag = is_cold(store) ? PyObject_GetAttrString(store->reads, "may_wait") : Py_NewRef(Py_True);
    int found = flag == NULL ? -1 : PyObject_IsTrue(flag);
    Py_XDECREF(flag);
    return found;
}

#define WANTED_MAX ((Py_ssize_t)64 << 20) /* bytes that a miss asks for at most */

/* The ranges of a miss go to a list, those that are not there yet, as the set says, and their bytes are added up; -1 with any
 * other exception */
static int take_miss(PyObject *list, PyObject *known, Py_ssize_t *bytes)
{
    PyObject *ranges = cold_take_miss();
    if (ranges == NULL)
        return -1;
    PyObject *given = PySequence_Tuple(ranges);
    Py_DECREF(ranges);
    int status = given == NULL ? -1 : 0;
    for (Py_ssize_t at = 0; status == 0 && at < PyTuple_GET_SIZE(given); at++) {
        PyObject *range = PyTuple_GET_ITEM(given, at);
        int has = PySet_Contains(known, range);
        status = has < 0 ? -1 : has ? 0 : PySet_Add(known, range) < 0 ? -1 : PyList_Append(list, range);
        if (status == 0 && !has && PyTuple_Check(range) && PyTuple_GET_SIZE(range) == 3)
            *bytes += PyLong_AsSsize_t(PyTuple_GET_ITEM(range, 2));
    }
    Py_XDECREF(given);
    return status;
}

PyObject *cold_want(EntryStore *store, PyObject *ids)
{
    int waits = may_wait(store);
    if (waits < 0)
        return NULL;
    if (waits)
        Py_RETURN_NONE;
    PyObject *given = PySequence_Tuple(ids), *missed = given == NULL ? NULL : PyList_New(0);
    PyObject *known = missed == NULL ? NULL : PySet_New(NULL);
    int status = known == NULL ? -1 : 0;
    Py_ssize_t bytes = 0;
    for (Py_ssize_t at = 0; status == 0 && bytes < WANTED_MAX && at < PyTuple_GET_SIZE(given); at++) {
        Id id;
        Walk walk;
        int side = id_clamp(PyTuple_GET_ITEM(given, at), &id);
        status = side == -2 ? -1 : 0;
        if (side != 0 || !is_cold(store) || store_index(store, id) >= 0)
            continue;
        walk_begin(&walk, store, id, id, 0);
        status = walk_node(&walk) < 0 ? take_miss(missed, known, &bytes) : 0;
        walk_end(&walk);
    }
    Py_XDECREF(given);
    Py_XDECREF(known);
    if (status == 0 && PyList_GET_SIZE(missed)) {
        cold_raise_miss(missed, NULL);
        return NULL;
    }
    Py_XDECREF(missed);
    if (status < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyObject *cold_want_range(EntryStore *store, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"start", "end", "count", "backwards", NULL};
    PyObject *first, *last;
    Py_ssize_t count = -1;
    int backwards = 0;
    Id start, end;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|n$p", names, &first, &last, &count, &backwards))
        return NULL;
    int low = id_clamp(first, &start), high = id_clamp(last, &end), waits = may_wait(store);
    if (low == -2 || high == -2 || waits < 0)
        return NULL;
    if (waits || low > 0 || high < 0 || start > end || count == 0)
        Py_RETURN_NONE;
    Walk walk;
    int found = 0;
    Py_ssize_t left = count < 0 ? PY_SSIZE_T_MAX : count, bytes = 0;
    walk_begin(&walk, store, start, end, backwards);
    walk.wanted = left;
    while (left > 0 && bytes < RANGE_MAX && (found = walk_node(&walk)) > 0 && (backwards || walk.is_cold)) {
        bytes += walk.is_cold ? walk.node->size : 0;
        left -= walk.node->first >= start && walk.node->last <= end ? (Py_ssize_t)walk.node->live : 0;
    }
    walk_end(&walk);
    if (found < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Bytes that the live entries between two ids take at least, of the extents that lie there whole */
PyObject *cold_weight(EntryStore *store, PyObject *args)
{
    PyObject *first, *last;
    Id start, end;
    uint64_t weight = 0;
    if (!PyArg_ParseTuple(args, "OO", &first, &last))
        return NULL;
    int low = id_clamp(first, &start), high = id_clamp(last, &end);
    if (low == -2 || high == -2)
        return NULL;
    if (low > 0 || high < 0 || !is_cold(store))
        return PyLong_FromLong(0);
    Py_ssize_t index = cold_index(store->cold, start);
    for (index = index < 0 ? 0 : index; index < store->cold->count && EXTENT(store->cold, index).last <= end; index++) {
        const Extent *extent = &EXTENT(store->cold, index);
        if (extent->first >= start)
            weight += (uint64_t)extent->length * extent->live / (extent->stored ? extent->stored : 1); /* a forged record's */
    }
    return PyLong_FromUnsignedLongLong(weight);
}

/* ---------------------------------------------------------------- plans */

static int has_mark(const Buf *marks, uint32_t number)
{
    return number / 8 < (uint64_t)marks->size && (unsigned char)marks->data[number / 8] >> number % 8 & 1;
}

/* Take out the entries whose node goes with them */
static void unmark(Buf *dead, const Table *table, const Buf *gone)
{
    for (uint32_t node = 0; node < table->count; node++) {
        const Row *row = table->rows + node;
        for (uint32_t at = row->base; has_mark(gone, node) && at < row->base + (uint32_t)row->node.stored; at++)
            if (has_mark(dead, at))
                dead->data[at / 8] = (char)(dead->data[at / 8] & ~(1 << at % 8));
    }
    while (dead->size && dead->data[dead->size - 1] == 0)
        dead->size--;
}

/* The live ends of a node, which is read if it has holes; -1 with an exception */
static int live_ends(EntryStore *store, const Extent *extent, const Row *row, uint32_t node, ColdWalk *at, Id *first, Id *last)
{
    const Node *found = &row->node;
    if (row_live(extent, row) != found->live) {
        if (cold_load(store, extent, row, node, at) < 0)
            return -1;
        found = &at->shown;
    }
    if (first != NULL)
        *first = found->first_live;
    if (last != NULL)
        *last = found->last_live;
    return 0;
}

/* Live entries and ends of an extent by its table and its holes; -1 with an exception */
static int measure(EntryStore *store, Extent *extent, const Table *table)
{
    Walk walk = {.cold = PyMem_Calloc(1, sizeof(ColdWalk))};
    uint32_t low = table->count, high = 0;
    int status = walk.cold == NULL ? (PyErr_NoMemory(), -1) : 0, is_first = 1;
    extent->live = 0;
    extent->first = extent->last = extent->first_live = extent->last_live = 0;
    for (uint32_t node = 0; node < table->count; node++) {
        const Row *row = table->rows + node;
        if (holes_gone(extent->holes, node))
            continue;
        Py_ssize_t live = row_live(extent, row);
        extent->first = is_first ? row->node.first : extent->first;
        extent->last = row->node.last;
        extent->live += (uint32_t)live;
        is_first = 0;
        low = live && low > node ? node : low;
        high = live ? node : high;
    }
    if (extent->live && status == 0)
        status = live_ends(store, extent, table->rows + low, low, walk.cold, &extent->first_live, NULL);
    if (extent->live && status == 0)
        status = live_ends(store, extent, table->rows + high, high, walk.cold, NULL, &extent->last_live);
    cold_end(&walk);
    return status;
}

/* The item of a plan for one extent; NULL with an exception */
static PyObject *place_of(EntryStore *store, Py_ssize_t index, const Table *table, Marks *marks)
{
    Extent twin;
    PyObject *item = NULL;
    char ends[ENDS];
    if (with_holes(&EXTENT(store->cold, index), marks, &twin) == 0 && measure(store, &twin, table) == 0) {
        unmark(&marks->dead, table, &marks->gone);
        extent_put_ends(&twin, ends);
        item = Py_BuildValue("[nINNy#]", index, twin.live, marks_numbers(&marks->dead), marks_numbers(&marks->gone), ends,
                             (Py_ssize_t)ENDS);
    }
    holes_free(twin.holes);
    return item;
}

/* Add the item of one extent, if anything changes there. Nodes that have no live entry any more go: those in `touched` (NULL:
 * all) that end below the floor. */
static int plan_extent(EntryStore *store, Py_ssize_t index, Marks *marks, const Buf *touched, Id floor, int all, PyObject *plan)
{
    Extent twin;
    Table *table = cold_table(store, &EXTENT(store->cold, index));
    int status = table == NULL ? -1 : 0;
    twin.holes = NULL;
    if (status == 0)
        status = with_holes(&EXTENT(store->cold, index), marks, &twin);
    for (uint32_t node = 0; status == 0 && node < table->count; node++) {
        const Row *row = table->rows + node;
        if (!holes_gone(twin.holes, node) && row_live(&twin, row) == 0 && (all || row->node.last < floor)
            && (touched == NULL || has_mark(touched, node)))
            status = marks_add(&marks->gone, node);
    }
    if (status == 0 && (marks->dead.size || marks->gone.size)) {
        PyObject *item = place_of(store, index, table, marks);
        status = item == NULL ? -1 : PyList_Append(plan, item);
        Py_XDECREF(item);
    }
    holes_free(twin.holes);
    if (table != NULL)
        part_release(&table->part);
    return status;
}

typedef struct {
    Py_ssize_t extent;
    uint32_t node, ordinal;
} Spot;

static int by_extent(const void *one, const void *other)
{
    const Spot *first = one, *second = other;
    return (first->extent > second->extent) - (first->extent < second->extent);
}

/* The place of a cold entry; -1 with an exception */
static int find_spot(EntryStore *store, Id id, Spot *spot)
{
    Walk walk;
    Entry entry, each;
    walk_begin(&walk, store, id, id, 0);
    int found = walk_next(&walk, &entry);
    if (found > 0 && walk.is_cold) {
        const Row *row = walk.cold->table->rows + walk.cold->node;
        *spot = (Spot){walk.cold->extent, (uint32_t)walk.cold->node, row->base};
        Id before = walk.node->first;
        for (char *at = walk.node->data + walk.node->begin; at < entry.at; at = each.end, before = each.id, spot->ordinal++)
            entry_read(at, before, &each);
    } else if (found >= 0)
        found = refuse_cold("an entry to delete that is not there");
    walk_end(&walk);
    return found < 0 ? -1 : 0;
}

/* The places of all these entries, in the order of extents; NULL with an exception */
static Spot *find_spots(EntryStore *store, PyObject *ids, Py_ssize_t *count)
{
    PyObject *nothing = cold_want(store, ids);
    Py_XDECREF(nothing);
    PyObject *given = nothing == NULL ? NULL : PySequence_Tuple(ids);
    if (given == NULL)
        return NULL;
    *count = PyTuple_GET_SIZE(given);
    Spot *spots = PyMem_New(Spot, (size_t)*count + 1);
    int status = spots == NULL ? (PyErr_NoMemory(), -1) : 0;
    for (Py_ssize_t at = 0; status == 0 && at < *count; at++) {
        Id id;
        status = id_from_int(PyTuple_GET_ITEM(given, at), &id) < 0 ? -1 : find_spot(store, id, spots + at);
    }
    Py_DECREF(given);
    if (status < 0) {
        PyMem_Free(spots);
        return NULL;
    }
    qsort(spots, (size_t)*count, sizeof *spots, by_extent);
    return spots;
}

/* has_floor: nodes that were empty before go too */
static PyObject *plan_deaths(EntryStore *store, PyObject *ids, int has_floor, Id floor, int all)
{
    Py_ssize_t count, at = 0;
    Spot *spots = find_spots(store, ids, &count);
    PyObject *plan = spots == NULL ? NULL : PyList_New(0);
    uint64_t version = store->version;
    Py_ssize_t index = plan == NULL || has_floor || count == 0 ? 0 : spots[0].extent; /* others before it stay */
    for (; plan != NULL && store->cold != NULL && index < store->cold->count; index++) {
        if (!has_floor && at == count)
            break;
        Marks marks = {0};
        Buf touched = {0};
        int status = 0, is_touched = at < count && spots[at].extent == index;
        for (; status == 0 && at < count && spots[at].extent == index; at++)
            status = marks_add(&marks.dead, spots[at].ordinal) < 0 || marks_add(&touched, spots[at].node) < 0 ? -1 : 0;
        if (status == 0 && (is_touched || (has_floor && (all || EXTENT(store->cold, index).first < floor))))
            status = plan_extent(store, index, &marks, has_floor ? NULL : &touched, floor, all || !has_floor, plan);
        if (status == 0 && store->version != version)
            status = refuse_cold("the entries changed while a change was planned");
        marks_free(&marks);
        buf_free(&touched);
        if (status < 0)
            Py_CLEAR(plan);
    }
    PyMem_Free(spots);
    return plan;
}

PyObject *cold_plan_delete(EntryStore *store, PyObject *ids) { return plan_deaths(store, ids, 0, 0, 0); }

PyObject *cold_plan_drop(EntryStore *store, PyObject *args)
{
    PyObject *ids, *number;
    Id floor;
    if (!PyArg_ParseTuple(args, "OO", &ids, &number))
        return NULL;
    int side = id_clamp(number, &floor);
    return side == -2 ? NULL : plan_deaths(store, ids, 1, floor, side > 0);
}

/* The entries of a node below a bound die, and the node goes, if it may (gone is not NULL) and none is left */
static int mark_below(EntryStore *store, const Extent *extent, const Table *table, uint32_t number, Id bound, Buf *gone,
                      Buf *dead)
{
    Walk walk = {.cold = PyMem_Calloc(1, sizeof(ColdWalk))};
    int status = walk.cold == NULL ? (PyErr_NoMemory(), -1) : cold_load(store, extent, table->rows + number, number, walk.cold);
    if (status == 0) {
        const Node *node = &walk.cold->shown;
        uint32_t ordinal = table->rows[number].base;
        Entry entry;
        Id before = node->first;
        for (char *at = node->data + node->begin; status == 0 && at < node->data + node->size; at = entry.end, ordinal++) {
            entry_read(at, before, &entry);
            before = entry.id;
            if (entry.id >= bound)
                break;
            if (!entry.dead)
                status = marks_add(dead, ordinal);
        }
        if (status == 0 && gone != NULL && node->last_live < bound)
            status = marks_add(gone, number);
    }
    cold_end(&walk);
    return status;
}

static int plan_bound(EntryStore *store, Py_ssize_t index, Id bound, int keep, PyObject *plan)
{
    const Extent *extent = &EXTENT(store->cold, index);
    Table *table = cold_table(store, extent);
    Marks marks = {0};
    int status = table == NULL ? -1 : 0;
    for (uint32_t node = 0; status == 0 && node < table->count; node++) {
        const Row *row = table->rows + node;
        if (holes_gone(extent->holes, node))
            continue;
        if (row->node.last < bound) {
            status = marks_add(&marks.gone, node);
            continue;
        }
        if (row->node.first < bound && row_live(extent, row))
            status = mark_below(store, extent, table, node, bound, keep ? NULL : &marks.gone, &marks.dead);
        else if (!keep && row_live(extent, row) == 0)
            status = marks_add(&marks.gone, node);
        break;
    }
    if (status == 0 && (marks.dead.size || marks.gone.size)) {
        PyObject *item = place_of(store, index, table, &marks);
        status = item == NULL ? -1 : PyList_Append(plan, item);
        Py_XDECREF(item);
    }
    marks_free(&marks);
    if (table != NULL)
        part_release(&table->part);
    return status;
}

static PyObject *plan_below(EntryStore *store, Id bound, int all, int keep)
{
    PyObject *plan = PyList_New(0);
    const Cold *cold = store->cold;
    Py_ssize_t index = 0;
    while (cold != NULL && index < cold->count && (all || EXTENT(cold, index).last < bound))
        index++;
    if (plan != NULL && cold != NULL && index < cold->count && (!keep || EXTENT(cold, index).first < bound)
        && plan_bound(store, index, bound, keep, plan) < 0)
        Py_CLEAR(plan);
    return plan;
}

PyObject *cold_plan_cut(EntryStore *store, PyObject *number)
{
    Id bound;
    int side = id_clamp(number, &bound);
    return side == -2 ? NULL : plan_below(store, bound, side > 0, 1);
}

PyObject *cold_plan_warm(EntryStore *store, PyObject *Py_UNUSED(ignored))
{
    if (!is_cold(store))
        return refuse_cold("no node is cold"), NULL;
    Py_ssize_t index = store->cold->count - 1;
    const Extent *extent = &EXTENT(store->cold, index);
    Table *table = cold_table(store, extent);
    if (table == NULL)
        return NULL;
    uint32_t node = table->count;
    while (node > 0 && holes_gone(extent->holes, node - 1))
        node--;
    Walk walk = {.cold = PyMem_Calloc(1, sizeof(ColdWalk))};
    Marks marks = {0};
    PyObject *packed = NULL, *item = NULL;
    if (walk.cold == NULL)
        PyErr_NoMemory();
    else if (node == 0)
        refuse_cold("an extent without nodes");
    else if (cold_load(store, extent, table->rows + node - 1, node - 1, walk.cold) == 0 && marks_add(&marks.gone, node - 1) == 0
             && (item = place_of(store, index, table, &marks)) != NULL)
        packed = node_pack(&walk.cold->shown);
    cold_end(&walk);
    marks_free(&marks);
    part_release(&table->part);
    if (packed != NULL)
        return Py_BuildValue("(N[N])", packed, item);
    Py_XDECREF(item);
    return NULL;
}

/* ---------------------------------------------------------------- for the store's other methods: plan and apply at once */

int cold_warm(EntryStore *store)
{
    PyObject *plan = cold_plan_warm(store, NULL), *nothing = plan == NULL ? NULL : cold_put_warm(store, plan);
    Py_XDECREF(plan);
    Py_XDECREF(nothing);
    return nothing == NULL ? -1 : 0;
}

int store_let_go(EntryStore *store, Py_ssize_t index)
{
    if (store->count == 1 && is_cold(store)) {
        if (cold_warm(store) < 0)
            return -1;
        index++;
    }
    store_drop(store, index);
    return 0;
}

/* Apply a plan (NULL: an exception was raised), which is released; the number of entries that died, or -1 */
static Py_ssize_t apply_plan(EntryStore *store, PyObject *plan)
{
    Change change;
    int status = plan == NULL ? -1 : change_read(store, plan, &change);
    Py_XDECREF(plan);
    return status < 0 ? -1 : change_apply(store, &change);
}

int cold_remove(EntryStore *store, Id id, int keep)
{
    Walk walk;
    Entry entry;
    walk_begin(&walk, store, id, id, 0);
    int found = walk_next(&walk, &entry);
    walk_end(&walk);
    if (found <= 0)
        return found;
    PyObject *number = id_to_int(id), *ids = number == NULL ? NULL : PyTuple_Pack(1, number);
    Py_ssize_t removed = ids == NULL ? -1 : apply_plan(store, plan_deaths(store, ids, keep, 0, 0));
    Py_XDECREF(number);
    Py_XDECREF(ids);
    return removed < 0 ? -1 : 1;
}

Py_ssize_t cold_remove_below(EntryStore *store, Id bound, int all, int keep)
{
    Change change;
    PyObject *plan = plan_below(store, bound, all, keep);
    int status = plan == NULL ? -1 : change_read(store, plan, &change);
    Py_XDECREF(plan);
    return status < 0 ? -1 : change_cut(store, &change, bound, all, keep);
}

int cold_drop_emptied(EntryStore *store, Id bound, int all)
{
    PyObject *none = PyTuple_New(0);
    Py_ssize_t removed = none == NULL ? -1 : apply_plan(store, plan_deaths(store, none, 1, bound, all));
    Py_XDECREF(none);
    return removed < 0 ? -1 : 0;
}

int cold_begins_below(EntryStore *store, Id bound)
{
    const Extent *extent = &EXTENT(store->cold, 0);
    if (extent->first >= bound)
        return 0;
    Table *table = cold_table(store, extent);
    if (table == NULL)
        return -1;
    uint32_t node = 0;
    while (node + 1 < table->count && holes_gone(extent->holes, node))
        node++;
    int begins = table->rows[node].node.last < bound;
    part_release(&table->part);
    return begins;
}

Py_ssize_t cold_emptied(EntryStore *store, Id bound, int all, PyObject *list)
{
    Py_ssize_t count = 0;
    uint64_t version = store->version;
    for (Py_ssize_t index = 0; index < store->cold->count && (all || EXTENT(store->cold, index).first < bound); index++) {
        Table *table = cold_table(store, &EXTENT(store->cold, index));
        int status = table == NULL ? -1 : 0;
        for (uint32_t node = 0; status == 0 && node < table->count; node++) {
            const Extent *extent = &EXTENT(store->cold, index);
            const Row *row = table->rows + node;
            if (holes_gone(extent->holes, node))
                continue;
            if (!all && row->node.last >= bound)
                break;
            PyObject *number = row_live(extent, row) ? NULL : PyLong_FromSsize_t(count);
            if (row_live(extent, row) == 0)
                status = number == NULL ? -1 : PyList_Append(list, number);
            Py_XDECREF(number);
            count++;
        }
        if (table != NULL)
            part_release(&table->part);
        if (status == 0 && store->version != version)
            status = refuse_cold("the entries changed while they were looked at");
        if (status < 0)
            return -1;
    }
    return count;
}
