/* Reads before cold entries are changed: the plans of PyEntryStore of millstream/engine/streams/entries.py, which has the docstrings
 * and the form of a plan.
 *
 * Invariant: a plan changes nothing.
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
    while (left > 0 && bytes < ASKED_MAX && (found = walk_node(&walk)) > 0 && (backwards || walk.is_cold)) {
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

/* A node's facts with its live ends, for which it is read if it has holes; NULL with an exception */
static const Node *live_facts(EntryStore *store, const Extent *extent, const Row *row, uint32_t node, ColdWalk *at)
{
    if (row_live(extent, row) == row->node.live)
        return &row->node;
    return cold_load(store, extent, row, node, at) < 0 ? NULL : &at->shown;
}

/* Live entries and ends of an extent by its table and its holes; -1 with an exception */
static int measure(EntryStore *store, Extent *extent, const Table *table)
{
    Walk walk = {.cold = PyMem_Calloc(1, sizeof(ColdWalk))};
    uint32_t low = table->count, high = 0;
    int status = walk.cold == NULL ? (PyErr_NoMemory(), -1) : 0, is_first = 1;
    const Extent kept = *extent; /* damage is that of the extent that the store has */
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
    const Node *found = NULL;
    if (extent->live && status == 0 && (found = live_facts(store, &kept, table->rows + low, low, walk.cold)) != NULL)
        extent->first_live = found->first_live;
    if (found != NULL && (found = live_facts(store, &kept, table->rows + high, high, walk.cold)) != NULL)
        extent->last_live = found->last_live;
    cold_end(&walk);
    return status < 0 || (extent->live && found == NULL) ? -1 : 0;
}

/* Add the item of one extent to a plan, if anything changes there; -1 with an exception */
static int add_change(EntryStore *store, Py_ssize_t index, Marks *marks, PyObject *plan)
{
    if (marks->dead.size == 0 && marks->gone.size == 0)
        return 0;
    Extent twin = {.holes = NULL};
    PyObject *item = NULL;
    char ends[ENDS];
    Table *table = cold_table(store, &EXTENT(store->cold, index));
    if (table != NULL && with_holes(&EXTENT(store->cold, index), marks, &twin) == 0 && measure(store, &twin, table) == 0) {
        unmark(&marks->dead, table, &marks->gone);
        extent_put_ends(&twin, ends);
        item = Py_BuildValue("[nINNy#]", index, twin.live, marks_pack(&marks->dead), marks_pack(&marks->gone), ends,
                             (Py_ssize_t)ENDS);
    }
    int status = item == NULL ? -1 : PyList_Append(plan, item);
    Py_XDECREF(item);
    holes_free(twin.holes);
    part_release((Part *)table);
    return status;
}

/* Add the item of one extent. Nodes that have no live entry any more go: those in `touched` (NULL:
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
        if ((touched == NULL || has_mark(touched, node)) && !holes_gone(twin.holes, node) && (all || row->node.last < floor)
            && row_live(&twin, row) == 0)
            status = marks_add(&marks->gone, node);
    }
    holes_free(twin.holes);
    part_release((Part *)table);
    return status < 0 ? -1 : add_change(store, index, marks, plan);
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
    PyObject *given = PySequence_Tuple(ids);
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

PyObject *cold_plan_delete(EntryStore *store, PyObject *args)
{
    PyObject *ids, *number = Py_None;
    Id floor = 0;
    if (!PyArg_ParseTuple(args, "O|O", &ids, &number))
        return NULL;
    int has_floor = number != Py_None, side = has_floor ? id_clamp(number, &floor) : 1, all = side > 0;
    if (side == -2)
        return NULL;
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
            status = plan_extent(store, index, &marks, has_floor ? NULL : &touched, floor, all, plan);
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

/* The entries of a node below a bound die */
static int mark_below(EntryStore *store, const Extent *extent, const Table *table, uint32_t number, Id bound, Buf *dead)
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
    }
    cold_end(&walk);
    return status;
}

static int plan_bound(EntryStore *store, Py_ssize_t index, Id bound, PyObject *plan)
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
        if (row_live(extent, row) && row->node.first_live < bound)
            status = mark_below(store, extent, table, node, bound, &marks.dead);
        break;
    }
    part_release((Part *)table);
    status = status < 0 ? -1 : add_change(store, index, &marks, plan);
    marks_free(&marks);
    return status;
}

PyObject *cold_plan_cut(EntryStore *store, PyObject *number)
{
    Id bound;
    int side = id_clamp(number, &bound);
    PyObject *plan = side == -2 ? NULL : PyList_New(0);
    Py_ssize_t index = 0, count = store->cold == NULL || side > 0 ? 0 : store->cold->count;
    while (plan != NULL && index < count && EXTENT(store->cold, index).last < bound)
        index++;
    if (plan != NULL && index < count && EXTENT(store->cold, index).first < bound && plan_bound(store, index, bound, plan) < 0)
        Py_CLEAR(plan);
    return plan;
}

PyObject *cold_plan_warm(EntryStore *store, PyObject *Py_UNUSED(ignored))
{
    if (!is_cold(store))
        return refuse_cold("no node is cold"), NULL;
    PyObject *packed = NULL, *plan = PyList_New(0);
    Py_ssize_t index = store->cold->count - 1;
    const Extent *extent = &EXTENT(store->cold, index);
    Table *table = plan == NULL ? NULL : cold_table(store, extent);
    if (table == NULL) {
        Py_XDECREF(plan);
        return NULL;
    }
    uint32_t node = table->count;
    while (node > 0 && holes_gone(extent->holes, node - 1))
        node--;
    Walk walk = {.cold = PyMem_Calloc(1, sizeof(ColdWalk))};
    Marks marks = {0};
    if (walk.cold == NULL)
        PyErr_NoMemory();
    else if (node == 0)
        refuse_cold("an extent without nodes");
    else if (cold_load(store, extent, table->rows + node - 1, node - 1, walk.cold) == 0 && marks_add(&marks.gone, node - 1) == 0
             && add_change(store, index, &marks, plan) == 0)
        packed = node_pack(&walk.cold->shown);
    cold_end(&walk);
    marks_free(&marks);
    part_release(&table->part);
    if (packed != NULL)
        return Py_BuildValue("(NN)", packed, plan);
    Py_DECREF(plan);
    return NULL;
}
