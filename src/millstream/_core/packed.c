/* Nodes as plain values and back, in the form that snapshots have: Block.pack in millstream/engine/streams/nodes.py.
 *
 *     [ids, 16 bytes each; positions of entries, 4 bytes each; places of tombstones; [low, high, payload]; names; wire]
 *
 * Invariant: input comes from a file and is checked. Each size is compared with the bytes left before it is used, and
 * no part of a node is used unless all of it is right.
 */
#include "node.h"

#define PAYLOAD_MAX ((long long)1 << 48) /* no node is so large, so sums with it do not overflow */

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

/* low and high as in the class: without live entries, the position after the last tombstone, and 0 */
static int pack_parts(const Node *node, Buf *ids, Buf *places, Buf *wire, PyObject *dead, int64_t *low, int64_t *high)
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

PyObject *node_pack(const Node *source)
{
    Buf ids = {0}, places = {0}, wire = {0};
    int64_t low, high;
    PyObject *dead = PyList_New(0), *names = NULL, *packed = NULL;
    Node *node = dead == NULL ? NULL : node_copy(source); /* lists may start the garbage collector, and that anything */
    if (node != NULL && (names = names_of(node)) != NULL
        && pack_parts(node, &ids, &places, &wire, dead, &low, &high) == 0)
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

/* The bytes in memory, behind the facts; an id that failed is NULL and ends the list */
PyObject *node_form(const Node *node)
{
    const Node twin = *node; /* a new object may start the garbage collector */
    PyObject *data = PyBytes_FromStringAndSize(twin.data, twin.size);
    return data == NULL ? NULL
                        : Py_BuildValue("(nLLLNNnNNN)N", twin.begin, (long long)twin.stored,
                                        (long long)(twin.stored - twin.live), (long long)twin.payload,
                                        id_to_int(twin.first), id_to_int(twin.last), twin.low,
                                        id_to_int(twin.before_low), id_to_int(twin.first_live),
                                        id_to_int(twin.last_live), data);
}

/* ---------------------------------------------------------------- from plain values */

static int refuse(const char *what)
{
    PyErr_Format(PyExc_ValueError, "a packed node is damaged: %s", what);
    return -1;
}

/* A header of RESP: its number, and the position after it; -1 with an exception */
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
    if (p == first || (*first == '0' && p - first > 1) || end - p < 2 || p[0] != '\r' || p[1] != '\n')
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

/* The strings of one entry in wire form, in the caller's array, which grows; returns their number, -1 with an
 * exception. A tombstone may have an older id, see reach_back. */
static Py_ssize_t read_entry(const char **at, const char *end, View *id, View **words, Py_ssize_t *room)
{
    int64_t count = read_head(at, end, '*');
    if (count != 2 || read_bulk(at, end, id) < 0)
        return count < 0 || PyErr_Occurred() ? -1 : refuse("an entry has no two parts");
    count = read_head(at, end, '*');
    if (count < 0)
        return -1;
    if (count == 0 || count % 2 || count > (end - *at) / 5) /* five bytes are the shortest string */
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

/* Report whether a string in wire form is an id in its canonical form */
static int is_id(View word, Id id)
{
    char text[ID_ROOM];
    Py_ssize_t size = put_id(text, id) - text;
    return size == word.size && memcmp(text, word.data, (size_t)size) == 0;
}

static int same_place(View places, Py_ssize_t number, Py_ssize_t place)
{
    const unsigned char *at = (const unsigned char *)places.data + 4 * number;
    return ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24) == (uint64_t)place;
}

/* All entries of a packed node; dead is the ascending list of tombstones. low and high become the positions of the
 * first live entry and after the last one. */
static Node *node_of_parts(View ids, View places, View wire, PyObject *dead, long long *low, long long *high)
{
    const char *at = wire.data, *end = wire.data + wire.size;
    View *words = NULL, name;
    Py_ssize_t room = 0, tombs = 0, number = ids.size / 16;
    Node *node = NULL;
    int fine = 1;
    *low = number, *high = 0;
    for (Py_ssize_t i = 0; i < number && fine; i++) {
        Id id = id_from_bytes(ids.data + 16 * i);
        if (!same_place(places, i, at - wire.data))
            fine = refuse("an entry begins elsewhere") == 0;
        Py_ssize_t count = fine ? read_entry(&at, end, &name, &words, &room) : -1;
        int is_dead = 0;
        if (count >= 0 && tombs < PyList_GET_SIZE(dead)) {
            long place = PyLong_AsLong(PyList_GET_ITEM(dead, tombs));
            is_dead = place == i;
            tombs += is_dead;
        }
        fine = count >= 0 && !PyErr_Occurred();
        if (fine && node != NULL && (id < node->last || (id == node->last && !is_dead)))
            fine = refuse("ids do not ascend") == 0;
        if (fine && !is_dead && !is_id(name, id))
            fine = refuse("an entry has another id") == 0;
        if (fine && node == NULL)
            fine = (node = node_new(id, words, count)) != NULL;
        fine = fine && node_put(node, id, words, count, is_dead, 0) == 0;
        if (!is_dead)
            *low = *high ? *low : i, *high = i + 1;
    }
    if (fine && (number == 0 || at != end || tombs != PyList_GET_SIZE(dead)))
        fine = refuse("ids, bytes and tombstones are not of one number") == 0;
    PyMem_Free(words);
    if (!fine && node != NULL)
        node_free(node);
    return fine ? node : NULL;
}

/* Report whether these are the names of the first entry */
static int has_names(const Node *node, PyObject *names)
{
    const char *at = node->data;
    if ((Py_ssize_t)get_varint(&at) != PyList_GET_SIZE(names))
        return 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(names); i++) {
        PyObject *name = PyList_GET_ITEM(names, i);
        Py_ssize_t size = (Py_ssize_t)get_varint(&at);
        if (!PyBytes_Check(name) || PyBytes_GET_SIZE(name) != size || memcmp(PyBytes_AS_STRING(name), at, (size_t)size) != 0)
            return 0;
        at += size;
    }
    return 1;
}

/* Compare the stored facts of a node with those computed from its entries; -1 with an exception */
static int check_facts(Node *node, PyObject *names, PyObject *counters, long long low, long long high)
{
    long long said[3];
    for (int at = 0; at < 3; at++) {
        said[at] = PyLong_AsLongLong(PyList_GET_ITEM(counters, at));
        if (said[at] == -1 && PyErr_Occurred())
            return -1;
    }
    if (said[0] != low || said[1] != high)
        return refuse("its live entries lie elsewhere");
    if (said[2] < 0 || said[2] > PAYLOAD_MAX)
        return refuse("its size is none");
    if (!has_names(node, names))
        return refuse("its names are not those of its first entry");
    node->payload = said[2];
    return 0;
}

Node *node_unpack(PyObject *packed)
{
    PyObject *part[6];
    if (!PyList_Check(packed) || PyList_GET_SIZE(packed) != 6)
        return refuse("six parts are expected"), NULL;
    for (int at = 0; at < 6; at++) {
        part[at] = PyList_GET_ITEM(packed, at);
        if (at == 2 || at == 3 || at == 4 ? !PyList_Check(part[at]) : !PyBytes_Check(part[at]))
            return refuse("a part is of another type"), NULL;
    }
    View ids = {PyBytes_AS_STRING(part[0]), PyBytes_GET_SIZE(part[0])};
    View places = {PyBytes_AS_STRING(part[1]), PyBytes_GET_SIZE(part[1])};
    View wire = {PyBytes_AS_STRING(part[5]), PyBytes_GET_SIZE(part[5])};
    if (PyList_GET_SIZE(part[3]) != 3 || ids.size % 16 || places.size != ids.size / 4)
        return refuse("a part is of another size"), NULL;
    long long low, high;
    Node *node = node_of_parts(ids, places, wire, part[2], &low, &high);
    if (node != NULL && check_facts(node, part[4], part[3], low, high) < 0) {
        node_free(node);
        return NULL;
    }
    return node;
}
