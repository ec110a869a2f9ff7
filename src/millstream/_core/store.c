/* The array of a store's nodes in memory, the ends of its live entries, and the arguments of its methods.
 *
 * Invariants: those of entries.c.
 */
#include "extent.h"

#define SMALL (1 << 16) /* bytes of full nodes up to which a stream has no blocks */

int store_reserve(EntryStore *store, Py_ssize_t more)
{
    if (store->head + store->count + more <= store->room)
        return 0;
    if (store->head > store->room / 2 && store->count + more <= store->room) {
        memmove(store->nodes, store->nodes + store->head, (size_t)store->count * sizeof(Node *));
        store->head = 0;
        return 0;
    }
    Py_ssize_t room = store->room ? store->room : 4;
    while (room < store->head + store->count + more)
        room *= 2;
    Node **nodes = resize_counted(store->nodes, (size_t)store->room * sizeof(Node *), (size_t)room * sizeof(Node *));
    if (nodes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    store->nodes = nodes;
    store->room = room;
    return 0;
}

void store_seal(EntryStore *store, Node *node)
{
    node_seal(node, store->sealed < SMALL ? NULL : &store->block);
    store->sealed += node_memory(node);
}

void store_push(EntryStore *store, Node *node)
{
    if (store->count)
        store_seal(store, last_node(store));
    STORE_NODE(store, store->count) = node;
    store->count++;
    store->length += node->live;
}

void store_drop(EntryStore *store, Py_ssize_t index)
{
    Node *node = STORE_NODE(store, index);
    store->length -= node->live;
    if (index < store->count - 1)
        store->sealed -= node_memory(node);
    else if (index > 0)
        store->sealed -= node_memory(STORE_NODE(store, index - 1)); /* open it again */
    node_free(node);
    store->count--;
    if (index == 0)
        store->head++;
    else
        memmove(&STORE_NODE(store, index), &STORE_NODE(store, index + 1), (size_t)(store->count - index) * sizeof(Node *));
    if (store->count == 0)
        store->head = 0;
}

int store_put_first(EntryStore *store, Node *node)
{
    if (store->head == 0 && store_reserve(store, 1) < 0)
        return -1;
    if (store->head)
        store->head--;
    else
        memmove(store->nodes + 1, store->nodes, (size_t)store->count * sizeof(Node *));
    store->nodes[store->head] = node;
    if (store->count++)
        store_seal(store, node);
    store->length += node->live;
    return 0;
}

void store_cut(EntryStore *store, Id bound, int all, int keep)
{
    while (store->count && (all || STORE_NODE(store, 0)->last < bound))
        store_drop(store, 0);
    if (store->count) {
        Node *node = STORE_NODE(store, 0);
        Entry entry;
        while (node->live && node->first_live < bound) {
            entry_read(node->data + node->low, node->before_low, &entry);
            node_kill(node, &entry);
            store->length--;
        }
        if (node->live == 0 && !keep)
            store_drop(store, 0);
    }
    store->version++;
}

Id store_first_live(EntryStore *store)
{
    if (is_cold(store) && store->cold->live)
        return cold_first_live(store->cold);
    for (Py_ssize_t index = 0; index < store->count; index++)
        if (STORE_NODE(store, index)->live)
            return STORE_NODE(store, index)->first_live;
    return 0;
}

Id store_last_live(EntryStore *store)
{
    for (Py_ssize_t index = store->count - 1; index >= 0; index--)
        if (STORE_NODE(store, index)->live)
            return STORE_NODE(store, index)->last_live;
    return is_cold(store) ? cold_last_live(store->cold) : 0;
}

/* ---------------------------------------------------------------- arguments */

int store_flag(PyObject *const *args, Py_ssize_t positional, PyObject *names, const char *name, int missing)
{
    for (Py_ssize_t at = 0; names != NULL && at < PyTuple_GET_SIZE(names); at++)
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, at), name) == 0)
            return PyObject_IsTrue(args[positional + at]);
    if (missing < 0)
        PyErr_Format(PyExc_TypeError, "missing keyword: %s", name);
    return missing;
}

int store_positional(Py_ssize_t got, Py_ssize_t wanted)
{
    if (got == wanted)
        return 0;
    PyErr_Format(PyExc_TypeError, "%zd arguments expected, not %zd", wanted, got);
    return -1;
}
