/* The bytes of a node's listpack, for Redis to read: Block.listpack of millstream/engine/streams/nodes.py.
 *
 * Invariant: the elements are those of millstream/engine/streams/listpack.py, to the byte.
 */
#include "node.h"

/* Largest size in bytes of an integer, and of the overhead of a string */
#define ELEMENT_ROOM 10

static char *put_little(char *at, int bytes, uint64_t number)
{
    for (; bytes; bytes--, number >>= 8)
        *at++ = (char)(unsigned char)number;
    return at;
}

static char *put_integer_element(char *at, int64_t value)
{
    if (value >= 0 && value <= 127) {
        *at++ = (char)value;
        *at++ = 1;
        return at;
    }
    if (value >= -4096 && value <= 4095) {
        at = put_integer(at, 2, 0xC000 | ((uint64_t)value & 0x1FFF));
        *at++ = 2;
        return at;
    }
    int bytes = 8;
    if (value >= -(1 << 23) && value < 1 << 23)
        bytes = value >= -32768 && value <= 32767 ? 2 : 3;
    else if (value >= INT32_MIN && value <= INT32_MAX)
        bytes = 4;
    *at++ = (char)(unsigned char)(bytes == 8 ? 0xF4 : 0xEF + bytes);
    at = put_little(at, bytes, (uint64_t)value);
    *at++ = (char)(bytes + 1);
    return at;
}

/* The size of an element behind it: seven bits a byte, the highest first, all but the first with the high bit */
static char *put_back(char *at, uint64_t size)
{
    int count = (int)listpack_back((int64_t)size);
    for (int byte = count - 1; byte >= 0; byte--)
        *at++ = (char)(unsigned char)((size >> 7 * byte & 127) | (byte < count - 1 ? 128 : 0));
    return at;
}

static char *put_element(char *at, View word)
{
    int64_t value;
    if (canonical(word, &value))
        return put_integer_element(at, value);
    char *first = at;
    uint64_t size = (uint64_t)word.size;
    if (size < 64)
        at = put_integer(at, 1, 0x80 | size);
    else if (size < 4096)
        at = put_integer(at, 2, 0xE000 | size);
    else
        at = put_little(put_integer(at, 1, 0xF0), 4, size);
    at = put_bytes(at, word.data, word.size);
    return put_back(at, (uint64_t)(at - first));
}

/* Write every step-th string from the first on; return their number, or -1 */
static Py_ssize_t buf_elements(Buf *out, const View *words, Py_ssize_t first, Py_ssize_t count, Py_ssize_t step)
{
    Py_ssize_t number = 0;
    for (Py_ssize_t at = first; at < count; at += step, number++) {
        if (buf_reserve(out, ELEMENT_ROOM + words[at].size) < 0)
            return -1;
        out->size = put_element(out->data + out->size, words[at]) - out->data;
    }
    return number;
}

static int buf_integers(Buf *out, const int64_t *values, int count)
{
    if (buf_reserve(out, count * ELEMENT_ROOM) < 0)
        return -1;
    char *at = out->data + out->size;
    for (int i = 0; i < count; i++)
        at = put_integer_element(at, values[i]);
    out->size = at - out->data;
    return 0;
}

/* Write one entry; return its number of elements, or -1 */
static Py_ssize_t buf_entry(Buf *out, Id master, const Entry *entry, const View *words, Py_ssize_t count)
{
    int64_t ms = (int64_t)(ID_MS(entry->id) - ID_MS(master)), seq = (int64_t)(ID_SEQ(entry->id) - ID_SEQ(master));
    int64_t head[4] = {entry->same << 1 | entry->dead, ms, seq, count / 2};
    int heads = entry->same ? 3 : 4;
    if (buf_integers(out, head, heads) < 0)
        return -1;
    Py_ssize_t found = buf_elements(out, words, entry->same, count, 1 + entry->same);
    int64_t behind = heads + found;
    return found < 0 || buf_integers(out, &behind, 1) < 0 ? -1 : (Py_ssize_t)behind + 1;
}

/* Write everything except the two counters at the head; return the number of elements, or -1 */
static Py_ssize_t buf_node(Buf *out, const Node *node, View **words, Py_ssize_t *room)
{
    Entry entry;
    Py_ssize_t elements = 0;
    Id before = node->first, master = 0;
    for (char *at = node->data + node->begin; at < node->data + node->size; at = entry.end, before = entry.id) {
        entry_read(at, before, &entry);
        Py_ssize_t count = node_words(node, &entry, words, room);
        if (count < 0)
            return -1;
        if (elements == 0) { /* the first entry, whose names are the node's */
            int64_t head[3] = {node->live, node->stored - node->live, count / 2}, end = 0;
            master = entry.id;
            if (buf_integers(out, head, 3) < 0 || (elements = buf_elements(out, *words, 0, count, 2)) < 0
                || buf_integers(out, &end, 1) < 0)
                return -1;
            elements += 4;
        }
        Py_ssize_t more = buf_entry(out, master, &entry, *words, count);
        if (more < 0)
            return -1;
        elements += more;
    }
    return elements;
}

PyObject *node_listpack(const Node *node)
{
    Buf out = {0};
    View *words = NULL;
    Py_ssize_t room = 0, elements = -1;
    PyObject *packed = NULL;
    if (buf_reserve(&out, (Py_ssize_t)node_size(node) + ELEMENT_ROOM) == 0) {
        out.size = 6;
        elements = buf_node(&out, node, &words, &room);
    }
    if (elements >= 0 && buf_add(&out, "\xff", 1) == 0) {
        put_little(put_little(out.data, 4, (uint64_t)out.size), 2, elements < 0xFFFF ? (uint64_t)elements : 0xFFFF);
        packed = buf_bytes(&out);
    }
    PyMem_Free(words);
    buf_free(&out);
    return packed;
}
