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

int store_let_go(EntryStore *store, Py_ssize_t index)
{
    if (store->count == 1 && is_cold(store))
        return refuse_cold("the last node in memory goes by a plan");
    store_drop(store, index);
    return 0;
}

PyObject *store_remove_below(EntryStore *store, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Id bound;
    int keep = store_flag(args, count, names, "keep", -1);
    if (keep < 0 || store_positional(count, 1) < 0)
        return NULL;
    int side = id_clamp(args[0], &bound); /* 1: above all ids */
    if (is_cold(store))
        return refuse_cold("entries in packs are trimmed by a plan"), NULL;
    PyObject *removed = side == -2 ? NULL : PyLong_FromSsize_t(count_below(store, bound, side > 0));
    if (removed != NULL)
        store_cut(store, bound, side > 0, keep);
    return removed;
}

PyObject *store_drop_emptied(EntryStore *store, PyObject *number)
{
    Id bound;
    int side = id_clamp(number, &bound);
    if (side == -2)
        return NULL;
    Py_ssize_t index = 0;
    while (side >= 0 && index < store->count && (side > 0 || STORE_NODE(store, index)->last < bound))
        index++;
    while (index-- > 0)
        if (STORE_NODE(store, index)->live == 0 && store_let_go(store, index) < 0)
            return NULL;
    store->version++;
    Py_RETURN_NONE;
}

int store_reach_back(EntryStore *store, Id last)
{
    Py_ssize_t index = store_index(store, last);
    Node *node = index < 0 ? NULL : STORE_NODE(store, index), *twin = node;
    if (node != NULL && node->last > last && (twin = node_reach_back(node, last)) == NULL)
        return -1;
    while (store->count > index + 1) /* all of them only without a twin */
        if (store_let_go(store, store->count - 1) < 0)
            return -1;
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

