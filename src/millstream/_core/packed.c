/* Nodes as plain values and back, in the form that snapshots have: Block.pack in millstream/engine/streams/nodes.py.
 *
 *     [ids, 16 bytes each; where entries begin, 4 bytes each; places of tombstones; [low, high, payload]; names; wire]
 *
 * Invariant: what is read comes from a file and is checked: no size in it is believed before it is compared with what is
 * left, and nothing of a node is used unless all of it is right.
 */
#include "node.h"

/* ---------------------------------------------------------------- to plain values */

static PyObject *names_of(const Node *node)
{
    const char *at = node->data;
    Py_ssize_t count = (Py_ssize_t)get_varint(&at);
    PyObject *names = PyList_New(count);
    for (Py_ssize_t i = 0; names != NULL && i < count; i++) {
        Py_ssize_t size = (Py_ssize_t)get_varint(&at);
        PyObject *name = PyBytes_FromStringAndSize(at, size);
        at += size;
        if (name == NULL)
            Py_CLEAR(names);
        else
            PyList_SET_ITEM(names, i, name);
    }
    return names;
}

/* low and high as the class has them: without a live entry behind the last one, and 0 */
static int pack_entries(const Node *node, Buf *ids, Buf *places, Buf *wire, PyObject *dead, int64_t *low, int64_t *high)
{
    Entry entry;
    Id before = node->first;
    int64_t number = 0;
    *low = node->stored, *high = 0;
    for (char *at = node->data + node->begin; at < node->data + node->size; at = entry.end, number++) {
        entry_read(at, before, &entry);
        before = entry.id;
        if (buf_reserve(ids, 16) < 0 || buf_reserve(places, 4) < 0)
            return -1;
        if (wire->size > (Py_ssize_t)UINT32_MAX) {
            PyErr_SetString(PyExc_OverflowError, "a node is too large for a snapshot");
            return -1;
        }
        id_to_bytes(entry.id, ids->data + ids->size);
        ids->size += 16;
        for (int shift = 0; shift < 32; shift += 8)
            places->data[places->size++] = (char)(unsigned char)(wire->size >> shift);
        if (node_emit(node, &entry, wire) < 0)
            return -1;
        if (!entry.dead) {
            *low = *low < number ? *low : number;
            *high = number + 1;
            continue;
        }
        PyObject *place = PyLong_FromLongLong(number);
        int status = place == NULL ? -1 : PyList_Append(dead, place);
        Py_XDECREF(place);
        if (status < 0)
            return -1;
    }
    return 0;
}

PyObject *node_pack(Node *source)
{
    Buf ids = {0}, places = {0}, wire = {0};
    int64_t low, high;
    PyObject *dead = PyList_New(0), *names = NULL, *packed = NULL;
    Node *node = dead == NULL ? NULL : node_copy(source); /* lists may start the garbage collector, and that anything */
    if (node != NULL && (names = names_of(node)) != NULL
        && pack_entries(node, &ids, &places, &wire, dead, &low, &high) == 0)
        packed = Py_BuildValue("[NNO[LLL]ON]", buf_bytes(&ids), buf_bytes(&places), dead, (long long)low,
                               (long long)high, (long long)node->payload, names, buf_bytes(&wire));
    buf_free(&ids);
    buf_free(&places);
    buf_free(&wire);
    if (node != NULL)
        node_free(node);
    Py_XDECREF(dead);
    Py_XDECREF(names);
    return packed;
}

/* ---------------------------------------------------------------- from plain values */

static int refuse(const char *what)
{
    PyErr_Format(PyExc_ValueError, "a packed node is damaged: %s", what);
    return -1;
}

/* A head of RESP: its number, and the place behind it; -1 with an exception */
static inline int64_t read_head(const char **at, const char *end, char mark)
{
    const char *p = *at;
    int64_t number = 0;
    if (end - p >= 4 && p[0] == mark && p[1] >= '0' && p[1] <= '9' && p[2] == '\r' && p[3] == '\n') {
        *at = p + 4;
        return p[1] - '0'; /* most of them */
    }
    if (p == end || *p++ != mark)
        return refuse("a head is missing");
    const char *first = p;
    for (; p < end && *p >= '0' && *p <= '9' && p - first < 18; p++)
        number = number * 10 + (*p - '0');
    if (p == first || end - p < 2 || p[0] != '\r' || p[1] != '\n')
        return refuse("a head is no number");
    *at = p + 2;
    return number;
}

static inline int read_bulk(const char **at, const char *end, View *word)
{
    int64_t size = read_head(at, end, '$');
    if (size < 0)
        return -1;
    if (size > end - *at - 2 || (*at)[size] != '\r' || (*at)[size + 1] != '\n')
        return refuse("a word is cut off");
    *word = (View){*at, (Py_ssize_t)size};
    *at += size + 2;
    return 0;
}

/* The words of one entry in wire form, in an array of the caller's that grows; how many, -1 with an exception. Its id is
 * not looked at: of a tombstone it may be an older one, see reach_back. */
static Py_ssize_t read_entry(const char **at, const char *end, View **words, Py_ssize_t *room)
{
    View id;
    int64_t count = read_head(at, end, '*');
    if (count != 2 || read_bulk(at, end, &id) < 0)
        return count < 0 || PyErr_Occurred() ? -1 : refuse("an entry has no two parts");
    count = read_head(at, end, '*');
    if (count < 0)
        return -1;
    if (count % 2 || count > (end - *at) / 5) /* five bytes are the shortest word */
        return refuse("an entry has the wrong number of words");
    if (count > *room) {
        View *grown = PyMem_Realloc(*words, (size_t)count * sizeof(View));
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        *words = grown;
        *room = (Py_ssize_t)count;
    }
    for (int64_t i = 0; i < count; i++)
        if (read_bulk(at, end, *words + i) < 0)
            return -1;
    return (Py_ssize_t)count;
}

/* All entries of a packed node; dead is the list of the tombstones' places, ascending */
static Node *read_entries(View ids, View wire, PyObject *dead)
{
    const char *at = wire.data, *end = wire.data + wire.size;
    View *words = NULL;
    Py_ssize_t room = 0, tombs = 0, number = ids.size / 16;
    Node *node = NULL;
    int fine = 1;
    for (Py_ssize_t i = 0; i < number && fine; i++) {
        Id id = id_from_bytes(ids.data + 16 * i);
        Py_ssize_t count = read_entry(&at, end, &words, &room);
        int is_dead = 0;
        if (count >= 0 && tombs < PyList_GET_SIZE(dead)) {
            long place = PyLong_AsLong(PyList_GET_ITEM(dead, tombs));
            is_dead = place == i;
            tombs += is_dead;
        }
        fine = count >= 0 && !PyErr_Occurred();
        if (fine && node != NULL && id < node->last)
            fine = refuse("ids descend") == 0;
        if (fine && node == NULL)
            fine = (node = node_new(id, words, count)) != NULL;
        fine = fine && node_put(node, id, words, count, is_dead, 0) == 0;
    }
    if (fine && (number == 0 || at != end || tombs != PyList_GET_SIZE(dead)))
        fine = refuse("ids, bytes and tombstones are not of one number") == 0;
    PyMem_Free(words);
    if (!fine && node != NULL)
        node_free(node);
    return fine ? node : NULL;
}

Node *node_unpack(PyObject *packed)
{
    PyObject *ids, *dead, *counters, *wire, *part[6];
    if (!PyList_Check(packed) || PyList_GET_SIZE(packed) != 6)
        return refuse("six parts are expected"), NULL;
    for (int at = 0; at < 6; at++)
        part[at] = PyList_GET_ITEM(packed, at);
    ids = part[0], dead = part[2], counters = part[3], wire = part[5];
    if (!PyBytes_Check(ids) || !PyList_Check(dead) || !PyList_Check(counters) || !PyBytes_Check(wire))
        return refuse("a part is of another type"), NULL;
    if (PyList_GET_SIZE(counters) != 3 || PyBytes_GET_SIZE(ids) % 16)
        return refuse("a part is of another size"), NULL;
    long long payload = PyLong_AsLongLong(PyList_GET_ITEM(counters, 2));
    if (payload == -1 && PyErr_Occurred())
        return NULL;
    Node *node = read_entries((View){PyBytes_AS_STRING(ids), PyBytes_GET_SIZE(ids)},
                              (View){PyBytes_AS_STRING(wire), PyBytes_GET_SIZE(wire)}, dead);
    if (node != NULL)
        node->payload = payload;
    return node;
}
