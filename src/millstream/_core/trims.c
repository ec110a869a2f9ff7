/* Removals from the front of a store: trimming, and nodes without a live entry; and room above its last id. The docstrings
 * are those of PyEntryStore in millstream/engine/streams/entries.py.
 */
#include "extent.h"

/* Number of live entries below a bound */
static Py_ssize_t count_below(EntryStore *store, Id bound, int all)
{
    Py_ssize_t index = 0, count = 0;
    for (; index < store->count && (all || STORE_NODE(store, index)->last < bound); index++)
        count += STORE_NODE(store, index)->live;
    Walk walk;
    Entry entry;
    walk_begin(&walk, store, index < store->count ? STORE_NODE(store, index)->first : ID_MAX, bound, 0);
    while (index < store->count && walk_next(&walk, &entry) > 0 && entry.id < bound)
        count++;
    walk_end(&walk);
    return count;
}

PyObject *store_remove_below(EntryStore *store, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Id bound;
    int keep = store_flag(args, count, names, "keep", -1);
    if (keep < 0 || store_positional(count, 1) < 0)
        return NULL;
    int side = id_clamp(args[0], &bound); /* 1: above all ids */
    if (side != -2 && is_cold(store)) {
        Py_ssize_t gone = cold_remove_below(store, bound, side > 0, keep);
        return gone < 0 ? NULL : PyLong_FromSsize_t(gone);
    }
    PyObject *removed = side == -2 ? NULL : PyLong_FromSsize_t(count_below(store, bound, side > 0));
    if (removed != NULL)
        store_cut(store, bound, side > 0, keep);
    return removed;
}

PyObject *store_ends_below(EntryStore *store, PyObject *number)
{
    Id bound;
    int side = id_clamp(number, &bound);
    if (side == -2)
        return NULL;
    if (store->count == 0 || side < 0)
        Py_RETURN_FALSE;
    Id first = store_first_live(store);
    int ends = side > 0 || (first > 0 && first < bound);
    if (!ends)
        ends = is_cold(store) ? cold_begins_below(store, bound) : STORE_NODE(store, 0)->last < bound;
    return ends < 0 ? NULL : PyBool_FromLong(ends);
}

/* Number of nodes in memory that end below a bound */
static Py_ssize_t nodes_below(EntryStore *store, Id bound, int side)
{
    Py_ssize_t count = 0;
    while (side >= 0 && count < store->count && (side > 0 || STORE_NODE(store, count)->last < bound))
        count++;
    return count;
}

PyObject *store_emptied(EntryStore *store, PyObject *number)
{
    Id bound;
    int side = id_clamp(number, &bound), status = 0;
    PyObject *found = side == -2 ? NULL : PyList_New(0);
    Py_ssize_t before = found == NULL || side < 0 || !is_cold(store) ? 0 : cold_emptied(store, bound, side > 0, found);
    Py_ssize_t count = found == NULL ? 0 : nodes_below(store, bound, side);
    status = before < 0 ? -1 : 0;
    for (Py_ssize_t index = 0; index < count && status == 0; index++) {
        if (STORE_NODE(store, index)->live)
            continue;
        PyObject *place = PyLong_FromSsize_t(before + index);
        status = place == NULL ? -1 : PyList_Append(found, place);
        Py_XDECREF(place);
    }
    if (status < 0)
        Py_CLEAR(found);
    return found;
}

/* Report whether all nodes in memory would go with the emptied ones below a bound */
static int all_are_emptied(EntryStore *store, Id bound, int side)
{
    for (Py_ssize_t index = 0; index < store->count; index++)
        if (STORE_NODE(store, index)->live || side < 0 || (side == 0 && STORE_NODE(store, index)->last >= bound))
            return 0;
    return 1;
}

PyObject *store_drop_emptied(EntryStore *store, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Id bound;
    int is_hot = store_flag(args, count, names, "hot", 0);
    int side = is_hot < 0 || store_positional(count, 1) < 0 ? -2 : id_clamp(args[0], &bound);
    if (side == -2)
        return NULL;
    while (is_cold(store) && all_are_emptied(store, bound, side)) /* before anything else is changed, as it may fail */
        if (cold_warm(store) < 0)
            return NULL;
    if (!is_hot && side >= 0 && is_cold(store) && cold_drop_emptied(store, bound, side > 0) < 0)
        return NULL;
    for (Py_ssize_t index = nodes_below(store, bound, side) - 1; index >= 0; index--)
        if (STORE_NODE(store, index)->live == 0 && store_let_go(store, index) < 0)
            return NULL;
    store->version++;
    Py_RETURN_NONE;
}

int store_reach_back(EntryStore *store, Id last)
{
    while (is_cold(store) && store->count && STORE_NODE(store, 0)->first > last)
        if (cold_warm(store) < 0)
            return -1;
    Py_ssize_t index = store_index(store, last);
    Node *node = index < 0 ? NULL : STORE_NODE(store, index), *twin = node;
    if (node != NULL && node->last > last && (twin = node_reach_back(node, last)) == NULL)
        return -1;
    while (store->count > index + 1)
        store_drop(store, store->count - 1);
    if (twin != node) {
        STORE_NODE(store, index) = twin;
        node_free(node);
    }
    store->version++;
    return 0;
}

PyObject *store_reach(EntryStore *store, PyObject *number)
{
    Id last;
    if (id_from_int(number, &last) < 0 || store_reach_back(store, last) < 0)
        return NULL;
    Py_RETURN_NONE;
}

