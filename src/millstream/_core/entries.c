/* The ordered store of a stream's entries: a double of PyEntryStore in millstream/engine/streams/entries.py. The
 * docstrings there apply here.
 *
 * Invariants: those of node.h. Ids do not descend from node to node; every node but the last is trimmed to its size. A
 * method gathers all its results, and all the memory it needs, before it changes anything.
 */
#include "extent.h"

#define NODE_BYTES_CAP (1 << 30) /* Redis: STREAM_LISTPACK_MAX_SIZE */
#define WORDS_AT_ONCE 64         /* arguments of an entry for which no memory is allocated */
#define PIECE (1 << 18)          /* smallest size of a piece of a reply in bytes */

/* ---------------------------------------------------------------- the array of nodes */

/* A live entry in memory */
static Node *store_find(EntryStore *store, Id id, Py_ssize_t *index, Entry *entry)
{
    *index = store_index(store, id);
    if (*index < 0 || !node_find(STORE_NODE(store, *index), id, entry))
        return NULL;
    return STORE_NODE(store, *index);
}

/* ---------------------------------------------------------------- calls by other parts of the core */

int store_needs_node(EntryStore *store, int64_t added, int64_t max_bytes, int64_t max_entries)
{
    Node *node = last_node(store);
    if (node == NULL)
        return 1;
    if (max_bytes == 0 || max_bytes > NODE_BYTES_CAP)
        max_bytes = NODE_BYTES_CAP;
    return node_size(node) + added >= max_bytes || (max_entries != 0 && node->stored >= max_entries);
}

int store_put(EntryStore *store, Id id, const View *words, Py_ssize_t count, int fresh, int dead)
{
    Node *node = last_node(store);
    if (node == NULL && !fresh) {
        PyErr_SetString(PyExc_IndexError, "there is no node to add to");
        return -1;
    }
    if (count % 2 || (node != NULL && (id < node->last || (id == node->last && !dead)))) {
        PyErr_SetString(PyExc_ValueError, count % 2 ? "a field without its value" : "an id that is not above all stored");
        return -1;
    }
    if (fresh) {
        node = node_new(id, words, count);
        if (node == NULL)
            return -1;
        if (store_reserve(store, 1) < 0 || node_put(node, id, words, count, dead, 1) < 0) {
            node_free(node);
            return -1;
        }
        store_push(store, node);
    } else {
        if (node_put(node, id, words, count, dead, 1) < 0)
            return -1;
        store->length += !dead;
    }
    store->version++;
    return 0;
}

int store_append(EntryStore *store, Id id, const View *words, Py_ssize_t count, int fresh)
{
    return store_put(store, id, words, count, fresh, 0);
}

Py_ssize_t store_length(EntryStore *store)
{
    return store->length;
}

/* Write entries until there are count of them, or out has this many bytes; on failure the earlier contents stay. A
 * buffer, if given, receives the ids. */
static Py_ssize_t emit(Walk *walk, Py_ssize_t count, Py_ssize_t bytes, Buf *out, Id *last, Buf *ids)
{
    Py_ssize_t number = 0, before = out->size;
    Entry entry;
    int more = 1;
    while (number != count && out->size < bytes && (more = walk_next(walk, &entry)) > 0) {
        if (node_emit(walk->node, &entry, out) < 0
            || (ids != NULL && buf_add(ids, (const char *)&entry.id, sizeof(Id)) < 0)) {
            more = -1;
            break;
        }
        *last = entry.id;
        number++;
    }
    if (more < 0)
        out->size = before;
    return more < 0 ? -1 : number;
}

Py_ssize_t store_reply(EntryStore *store, Id start, Id end, Py_ssize_t count, int backwards, Py_ssize_t bytes, Buf *out,
                       Buf *ids)
{
    Walk walk;
    Id last;
    walk_begin(&walk, store, start, end, backwards);
    walk.wanted = count < 0 ? PY_SSIZE_T_MAX : count;
    Py_ssize_t number = emit(&walk, count, bytes, out, &last, ids);
    walk_end(&walk);
    return number;
}

/* ---------------------------------------------------------------- arguments */

/* start, end, count and, unless that is NULL, backwards in the methods' form; 1; 0 for a range that must be empty; -1 */
static int range(PyObject *args, PyObject *keywords, Id *start, Id *end, Py_ssize_t *count, int *backwards)
{
    char *names[] = {"start", "end", "count", backwards == NULL ? NULL : "backwards", NULL};
    PyObject *first = NULL, *last = NULL;
    *start = 0, *end = ID_MAX, *count = -1;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, backwards == NULL ? "|OOn" : "|OOn$p", names, &first, &last, count,
                                     backwards))
        return -1;
    int low = first == NULL ? 0 : id_clamp(first, start), high = last == NULL ? 0 : id_clamp(last, end);
    if (low == -2 || high == -2)
        return -1;
    return low <= 0 && high >= 0;
}

/* ---------------------------------------------------------------- methods */

static PyObject *needs_block(EntryStore *store, PyObject *const *args, Py_ssize_t count)
{
    long long sizes[3];
    if (store_positional(count, 3) < 0)
        return NULL;
    for (int at = 0; at < 3; at++)
        if ((sizes[at] = PyLong_AsLongLong(args[at])) == -1 && PyErr_Occurred())
            return NULL;
    return PyBool_FromLong(store_needs_node(store, sizes[0], sizes[1], sizes[2]));
}

static PyObject *append(EntryStore *store, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    View some[WORDS_AT_ONCE], *words = some;
    Id id;
    if (store_positional(count, 2) < 0 || id_from_int(args[0], &id) < 0)
        return NULL;
    int fresh = store_flag(args, count, names, "fresh", -1), dead = store_flag(args, count, names, "dead", 0);
    if (fresh < 0 || dead < 0)
        return NULL;
    if (!PyList_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "fields are a list of bytes");
    Py_ssize_t size = PyList_GET_SIZE(args[1]);
    if (size > WORDS_AT_ONCE && (words = PyMem_New(View, (size_t)size)) == NULL)
        return PyErr_NoMemory();
    int status = 0;
    for (Py_ssize_t at = 0; at < size && status == 0; at++) {
        PyObject *word = PyList_GET_ITEM(args[1], at);
        if (PyBytes_Check(word)) {
            words[at] = (View){PyBytes_AS_STRING(word), PyBytes_GET_SIZE(word)};
        } else {
            PyErr_Format(PyExc_TypeError, "fields are bytes, not %.100s", Py_TYPE(word)->tp_name);
            status = -1;
        }
    }
    if (status == 0)
        status = store_put(store, id, words, size, fresh, dead);
    if (words != some)
        PyMem_Free(words);
    if (status < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *extend(EntryStore *store, PyObject *packed)
{
    if (!PyList_Check(packed))
        return PyErr_Format(PyExc_TypeError, "a list of packed nodes is expected");
    Py_ssize_t count = PyList_GET_SIZE(packed), made = 0;
    Node **nodes = PyMem_New(Node *, (size_t)count);
    if (nodes == NULL)
        return PyErr_NoMemory();
    Id last = store->count ? last_node(store)->last : is_cold(store) ? cold_last(store) : 0;
    for (; made < count && (nodes[made] = node_unpack(PyList_GET_ITEM(packed, made))) != NULL; made++) {
        if (nodes[made]->first < last) {
            PyErr_SetString(PyExc_ValueError, "packed nodes are out of order");
            node_free(nodes[made]);
            break;
        }
        last = nodes[made]->last;
    }
    int done = made == count && store_reserve(store, count) == 0;
    for (Py_ssize_t at = 0; at < made; at++) {
        if (done)
            store_push(store, nodes[at]);
        else
            node_free(nodes[at]);
    }
    PyMem_Free(nodes);
    if (!done)
        return NULL;
    store->version++;
    Py_RETURN_NONE;
}

static int contains(EntryStore *store, PyObject *number)
{
    Id id;
    Py_ssize_t index;
    Entry entry;
    int side = id_clamp(number, &id);
    if (side != 0)
        return side == -2 ? -1 : 0;
    if (is_cold_id(store, id)) {
        Walk walk;
        walk_begin(&walk, store, id, id, 0);
        int found = walk_next(&walk, &entry);
        walk_end(&walk);
        return found;
    }
    return store_find(store, id, &index, &entry) != NULL;
}

static PyObject *wire(EntryStore *store, PyObject *number)
{
    Id id;
    Py_ssize_t index;
    Entry entry;
    Buf out = {0};
    Walk walk = {0};
    int side = id_clamp(number, &id), found = 0;
    if (side == -2)
        return NULL;
    Node *node = NULL;
    if (side == 0 && is_cold_id(store, id)) {
        walk_begin(&walk, store, id, id, 0);
        found = walk_next(&walk, &entry);
        node = found > 0 ? walk.node : NULL;
    } else if (side == 0)
        node = store_find(store, id, &index, &entry);
    PyObject *bytes = found < 0 ? NULL : node == NULL ? Py_NewRef(Py_None) : NULL;
    if (node != NULL && node_emit(node, &entry, &out) == 0)
        bytes = buf_bytes(&out);
    walk_end(&walk);
    buf_free(&out);
    return bytes;
}

static PyObject *remove_one(EntryStore *store, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Id id;
    Py_ssize_t index;
    Entry entry;
    int keep = store_flag(args, count, names, "keep", 0);
    if (keep < 0 || store_positional(count, 1) < 0)
        return NULL;
    int side = id_clamp(args[0], &id);
    if (side == -2)
        return NULL;
    if (side == 0 && is_cold_id(store, id))
        return refuse_cold("an entry in a pack is removed by a plan"), NULL;
    Node *node = side ? NULL : store_find(store, id, &index, &entry);
    if (node == NULL)
        Py_RETURN_FALSE;
    if (node->live == 1 && !keep) {
        if (store_let_go(store, index) < 0)
            return NULL;
    } else {
        node_kill(node, &entry);
        store->length--;
    }
    store->version++;
    Py_RETURN_TRUE;
}

/* Add the ids of a walk to a list; -1 with an exception */
static int gather(EntryStore *store, Id start, Id end, Py_ssize_t count, PyObject *list)
{
    Walk walk;
    Entry entry;
    int more = 1;
    walk_begin(&walk, store, start, end, 0);
    walk.wanted = count < 0 ? PY_SSIZE_T_MAX : count;
    while (count != 0 && (more = walk_next(&walk, &entry)) > 0) {
        PyObject *id = id_to_int(entry.id);
        if (id == NULL || PyList_Append(list, id) < 0)
            more = -1;
        Py_XDECREF(id);
        if (more < 0)
            break;
        count -= count > 0;
    }
    walk_end(&walk);
    return more < 0 ? -1 : 0;
}

static PyObject *ids(EntryStore *store, PyObject *args, PyObject *keywords)
{
    Id start, end;
    Py_ssize_t count;
    int there = range(args, keywords, &start, &end, &count, NULL);
    PyObject *found = there < 0 ? NULL : PyList_New(0);
    if (found != NULL && there && gather(store, start, end, count, found) < 0)
        Py_CLEAR(found);
    return found;
}

static PyObject *rows(EntryStore *store, PyObject *args, PyObject *keywords)
{
    Id start, end;
    Py_ssize_t count;
    int there = range(args, keywords, &start, &end, &count, NULL);
    return there < 0 ? NULL : rows_of(store, start, end, there ? count : 0);
}

static PyObject *reply(EntryStore *store, PyObject *args, PyObject *keywords)
{
    Id start, end, last = 0;
    Py_ssize_t count, number = 0, some = -1;
    int backwards = 0, there = range(args, keywords, &start, &end, &count, &backwards);
    PyObject *buffers = there < 0 ? NULL : PyList_New(0);
    if (buffers == NULL)
        return NULL;
    Walk walk;
    Buf out = {0};
    int status = 0;
    walk_begin(&walk, store, start, end, backwards);
    walk.wanted = count < 0 ? PY_SSIZE_T_MAX : count;
    while (there && status == 0 && (count < 0 || number < count) && some != 0) {
        out.size = 0;
        some = emit(&walk, count < 0 ? -1 : count - number, PIECE, &out, &last, NULL);
        if (some > 0) {
            PyObject *piece = buf_bytes(&out);
            status = piece == NULL ? -1 : PyList_Append(buffers, piece);
            Py_XDECREF(piece);
            number += some;
        } else {
            status = (int)some;
        }
    }
    walk_end(&walk);
    buf_free(&out);
    PyObject *id = status < 0 ? NULL : id_to_int(last);
    if (id == NULL) {
        Py_DECREF(buffers);
        return NULL;
    }
    return Py_BuildValue("nNN", number, buffers, id);
}

static PyObject *nodes(EntryStore *store, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"skipped", NULL};
    Py_ssize_t skipped = 0;
    return PyArg_ParseTupleAndKeywords(args, keywords, "|n", names, &skipped) ? nodes_of(store, skipped) : NULL;
}

static PyObject *hot_nodes(EntryStore *store, PyObject *Py_UNUSED(ignored))
{
    return nodes_of(store, PY_SSIZE_T_MAX);
}

static PyObject *copy(EntryStore *store, PyObject *Py_UNUSED(ignored))
{
    EntryStore *twin = (EntryStore *)PyType_GenericAlloc(Py_TYPE(store), 0);
    if (twin == NULL || store_reserve(twin, store->count) < 0) {
        Py_XDECREF(twin);
        return NULL;
    }
    for (; twin->count < store->count; twin->count++) {
        Node *node = node_copy(STORE_NODE(store, twin->count));
        if (node == NULL) {
            Py_DECREF(twin);
            return NULL;
        }
        STORE_NODE(twin, twin->count) = node;
        if (twin->count < store->count - 1)
            store_seal(twin, node);
    }
    if (cold_copy(store, twin) < 0) {
        Py_DECREF(twin);
        return NULL;
    }
    twin->reads = Py_XNewRef(store->reads);
    twin->length = store->length;
    return (PyObject *)twin;
}

static void dealloc(EntryStore *store)
{
    for (Py_ssize_t index = 0; index < store->count; index++)
        node_free(STORE_NODE(store, index));
    block_close(store->block);
    cold_free(store);
    Py_XDECREF(store->reads);
    free_counted(store->nodes, (size_t)store->room * sizeof(Node *));
    Py_TYPE(store)->tp_free((PyObject *)store);
}

static PyObject *first_id(EntryStore *store, void *Py_UNUSED(closure))
{
    return id_to_int(store_first_live(store));
}

static PyObject *last_live_id(EntryStore *store, void *Py_UNUSED(closure))
{
    return id_to_int(store_last_live(store));
}

/* Counted size, see bytes.h, computed again */
static PyObject *footprint(EntryStore *store, void *Py_UNUSED(closure))
{
    Py_ssize_t size = store->nodes == NULL ? 0 : block_size((size_t)store->room * sizeof(Node *));
    for (Py_ssize_t index = 0; index < store->count; index++)
        size += node_memory(STORE_NODE(store, index));
    return PyLong_FromSsize_t(size + cold_memory(store));
}

static PyObject *node_count(EntryStore *store, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(store->count + (store->cold == NULL ? 0 : store->cold->nodes));
}

/* Counted size of its nodes and extents, without a new computation */
static PyObject *taken(EntryStore *store, void *Py_UNUSED(closure))
{
    Py_ssize_t size = store->count ? store->sealed + node_memory(last_node(store)) : 0;
    if (store->cold != NULL)
        size += store->cold->count * (Py_ssize_t)sizeof(Extent) + store->cold->holes;
    return PyLong_FromSsize_t(size);
}

/* Counted size of the hot nodes but the last */
static PyObject *sealed_bytes(EntryStore *store, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(store->sealed);
}

static PyMethodDef methods[] = {
    {"needs_block", (PyCFunction)(void (*)(void))needs_block, METH_FASTCALL, NULL},
    {"append", (PyCFunction)(void (*)(void))append, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"extend", (PyCFunction)extend, METH_O, NULL},
    {"wire", (PyCFunction)wire, METH_O, NULL},
    {"remove", (PyCFunction)(void (*)(void))remove_one, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"remove_below", (PyCFunction)(void (*)(void))store_remove_below, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"drop_emptied", (PyCFunction)store_drop_emptied, METH_O, NULL},
    {"reach_back", (PyCFunction)store_reach, METH_O, NULL},
    {"ids", (PyCFunction)(void (*)(void))ids, METH_VARARGS | METH_KEYWORDS, NULL},
    {"rows", (PyCFunction)(void (*)(void))rows, METH_VARARGS | METH_KEYWORDS, NULL},
    {"reply", (PyCFunction)(void (*)(void))reply, METH_VARARGS | METH_KEYWORDS, NULL},
    {"nodes", (PyCFunction)(void (*)(void))nodes, METH_VARARGS | METH_KEYWORDS, NULL},
    {"hot_nodes", (PyCFunction)hot_nodes, METH_NOARGS, NULL},
    {"copy", (PyCFunction)copy, METH_NOARGS, NULL},
    {"add_cold", (PyCFunction)cold_add, METH_VARARGS, NULL},
    {"move_cold", (PyCFunction)cold_move, METH_VARARGS, NULL},
    {"cold_record", (PyCFunction)cold_record, METH_VARARGS, NULL},
    {"extents", (PyCFunction)cold_extents, METH_VARARGS, NULL},
    {"pack_sizes", (PyCFunction)cold_pack_sizes, METH_NOARGS, NULL},
    {"cold_weight", (PyCFunction)cold_weight, METH_VARARGS, NULL},
    {"want_range", (PyCFunction)(void (*)(void))cold_want_range, METH_VARARGS | METH_KEYWORDS, NULL},
    {"plan_delete", (PyCFunction)cold_plan_delete, METH_VARARGS, NULL},
    {"plan_cut", (PyCFunction)cold_plan_cut, METH_O, NULL},
    {"plan_warm", (PyCFunction)cold_plan_warm, METH_NOARGS, NULL},
    {"punch", (PyCFunction)cold_punch, METH_O, NULL},
    {"cut", (PyCFunction)cold_cut, METH_VARARGS, NULL},
    {"warm", (PyCFunction)cold_put_warm, METH_VARARGS, NULL},
    {NULL},
};

static PyMemberDef members[] = {
    {"length", Py_T_PYSSIZET, offsetof(EntryStore, length), Py_READONLY, NULL},
    {NULL},
};

static PyGetSetDef properties[] = {
    {"first_id", (getter)first_id, NULL, NULL, NULL},
    {"last_live_id", (getter)last_live_id, NULL, NULL, NULL},
    {"footprint", (getter)footprint, NULL, NULL, NULL},
    {"taken", (getter)taken, NULL, NULL, NULL},
    {"node_count", (getter)node_count, NULL, NULL, NULL},
    {"reads", (getter)cold_get_reads, (setter)cold_set_reads, NULL, NULL},
    {"extent_count", (getter)cold_figure, NULL, NULL, (void *)EXTENTS},
    {"cold_live", (getter)cold_figure, NULL, NULL, (void *)COLD_LIVE},
    {"cold_bytes", (getter)cold_figure, NULL, NULL, (void *)FRAMES},
    {"hole_bytes", (getter)cold_figure, NULL, NULL, (void *)HOLES},
    {"sealed_bytes", (getter)sealed_bytes, NULL, NULL, NULL},
    {"cold_last", (getter)cold_get_last, NULL, NULL, NULL},
    {NULL},
};

static PySequenceMethods sequence = {.sq_contains = (objobjproc)contains};

PyTypeObject EntryStoreType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "millstream._native.EntryStore",
    .tp_doc = "A stream's entries; see PyEntryStore in millstream.engine.streams.entries.",
    .tp_basicsize = sizeof(EntryStore),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)dealloc,
    .tp_methods = methods,
    .tp_members = members,
    .tp_getset = properties,
    .tp_as_sequence = &sequence,
};
