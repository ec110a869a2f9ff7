/* The deletions from an extent since it was written: entries by ordinal, which counts those of the whole frame, and nodes by
 * number.
 *
 * Invariants: holes do not change; a change makes others. Up to LISTED entries are a list of
 * ascending numbers, more are bits. Bits end with a byte that is not 0, as the numbers of millstream.engine.cold
 * do.
 */
#include "extent.h"

#define LISTED 64

struct Holes {
    uint32_t dead, gone;
    int is_listed;
    size_t dead_bytes, gone_bytes;
    unsigned char data[]; /* dead_bytes of a list of uint32_t or of bits; gone_bytes of bits */
};

static size_t size_of(const Holes *holes) { return sizeof *holes + holes->dead_bytes + holes->gone_bytes; }

static uint32_t listed(const Holes *holes, size_t at)
{
    uint32_t number;
    memcpy(&number, holes->data + 4 * at, 4);
    return number;
}

static int has_bit(const unsigned char *bits, size_t bytes, uint32_t number)
{
    return number / 8 < bytes && bits[number / 8] >> number % 8 & 1;
}

/* Number of bits below a number */
static uint32_t bits_below(const unsigned char *bits, size_t bytes, uint32_t number)
{
    uint32_t count = 0;
    size_t whole = number / 8 < bytes ? number / 8 : bytes, at = 0;
    for (; at + 8 <= whole; at += 8) {
        uint64_t eight;
        memcpy(&eight, bits + at, 8);
        count += (uint32_t)__builtin_popcountll(eight);
    }
    for (; at < whole; at++)
        count += (uint32_t)__builtin_popcount(bits[at]);
    if (number / 8 < bytes)
        count += (uint32_t)__builtin_popcount(bits[number / 8] & ((1u << number % 8) - 1));
    return count;
}

static uint32_t dead_below(const Holes *holes, uint32_t number)
{
    if (!holes->is_listed)
        return bits_below(holes->data, holes->dead_bytes, number);
    uint32_t low = 0, high = holes->dead;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (listed(holes, middle) < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

uint32_t holes_between(const Holes *holes, uint32_t start, uint32_t stop)
{
    if (holes == NULL || holes->dead == 0)
        return 0;
    if (holes->is_listed)
        return dead_below(holes, stop) - dead_below(holes, start);
    /* Plans ask this for each node, so only the bytes in between may cost */
    size_t skipped = start / 8 < holes->dead_bytes ? start / 8 : holes->dead_bytes, bytes = holes->dead_bytes - skipped;
    uint32_t origin = 8 * (uint32_t)skipped;
    return bits_below(holes->data + skipped, bytes, stop - origin) - bits_below(holes->data + skipped, bytes, start - origin);
}

int holes_have(const Holes *holes, uint32_t ordinal)
{
    if (holes == NULL)
        return 0;
    if (!holes->is_listed)
        return has_bit(holes->data, holes->dead_bytes, ordinal);
    uint32_t at = dead_below(holes, ordinal);
    return at < holes->dead && listed(holes, at) == ordinal;
}

int holes_gone(const Holes *holes, uint32_t node)
{
    return holes != NULL && has_bit(holes->data + holes->dead_bytes, holes->gone_bytes, node);
}

uint32_t holes_nodes(const Holes *holes) { return holes == NULL ? 0 : holes->gone; }

int holes_copy(const Holes *holes, Holes **twin)
{
    *twin = NULL;
    if (holes == NULL)
        return 0;
    if ((*twin = count_block(PyMem_Malloc(size_of(holes)), size_of(holes))) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(*twin, holes, size_of(holes));
    return 0;
}

void holes_free(Holes *holes)
{
    if (holes != NULL)
        free_counted(holes, size_of(holes));
}

Py_ssize_t holes_memory(const Holes *holes) { return holes == NULL ? 0 : block_size(size_of(holes)); }

/* ---------------------------------------------------------------- sets at work */

static void set_bit(char *bits, uint32_t number) { bits[number / 8] = (char)(bits[number / 8] | 1 << number % 8); }

int marks_add(Buf *marks, uint32_t number)
{
    Py_ssize_t bytes = (Py_ssize_t)(number / 8) + 1;
    if (bytes > marks->size) {
        if (buf_reserve(marks, bytes - marks->size) < 0)
            return -1;
        memset(marks->data + marks->size, 0, (size_t)(bytes - marks->size));
        marks->size = bytes;
    }
    set_bit(marks->data, number);
    return 0;
}

int holes_marks(const Holes *holes, Buf *dead, Buf *gone)
{
    if (holes == NULL)
        return 0;
    for (uint32_t at = 0; holes->is_listed && at < holes->dead; at++)
        if (marks_add(dead, listed(holes, at)) < 0)
            return -1;
    if (!holes->is_listed && buf_add(dead, (const char *)holes->data, (Py_ssize_t)holes->dead_bytes) < 0)
        return -1;
    return holes->gone ? buf_add(gone, (const char *)holes->data + holes->dead_bytes, (Py_ssize_t)holes->gone_bytes) : 0;
}

static uint32_t marks_count(const Buf *marks) { return bits_below((unsigned char *)marks->data, (size_t)marks->size, UINT32_MAX); }

/* Call for each number of a set; they are written to `to`, four bytes each */
static void list_marks(const Buf *marks, unsigned char *to, int little)
{
    for (Py_ssize_t at = 0; at < marks->size; at++)
        for (unsigned bits = (unsigned char)marks->data[at]; bits; bits &= bits - 1, to += 4) {
            uint32_t number = (uint32_t)at * 8 + (uint32_t)__builtin_ctz(bits);
            if (little)
                for (int byte = 0; byte < 4; byte++)
                    to[byte] = (unsigned char)(number >> 8 * byte);
            else
                memcpy(to, &number, 4);
        }
}

int holes_make(const Buf *dead, const Buf *gone, Holes **made)
{
    *made = NULL;
    uint32_t count = marks_count(dead);
    if (count == 0 && gone->size == 0)
        return 0;
    size_t dead_bytes = count <= LISTED ? 4 * (size_t)count : (size_t)dead->size;
    size_t size = sizeof **made + dead_bytes + (size_t)gone->size;
    Holes *holes = count_block(PyMem_Malloc(size), size);
    if (holes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    *holes = (Holes){count, marks_count(gone), count <= LISTED, dead_bytes, (size_t)gone->size};
    if (holes->is_listed)
        list_marks(dead, holes->data, 0);
    else
        memcpy(holes->data, dead->data, dead_bytes);
    if (gone->size)
        memcpy(holes->data + dead_bytes, gone->data, (size_t)gone->size);
    *made = holes;
    return 0;
}

/* ---------------------------------------------------------------- sets in transitions: cold.py's pack_bits */

static int read_numbers(Buf *marks, const char *data, Py_ssize_t size, uint32_t limit)
{
    if (size % 4)
        return refuse_cold("numbers of another size");
    for (const unsigned char *at = (const unsigned char *)data, *end = at + size; at < end; at += 4) {
        uint32_t number = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        if (number >= limit)
            return refuse_cold("a number that the extent does not have");
        if (marks_add(marks, number) < 0)
            return -1;
    }
    return 0;
}

int marks_read(Buf *marks, PyObject *packed, uint32_t limit)
{
    if (!PyBytes_Check(packed))
        return refuse_cold("holes of another type");
    const char *data = PyBytes_AS_STRING(packed);
    Py_ssize_t size = PyBytes_GET_SIZE(packed);
    if (size == 0)
        return 0;
    if (data[0] == 0)
        return read_numbers(marks, data + 1, size - 1, limit);
    for (size--, data++; size > 0 && data[size - 1] == 0; size--)
        ;
    if (size == 0)
        return 0;
    if ((uint64_t)(size - 1) * 8 + 31 - (uint64_t)__builtin_clz((unsigned char)data[size - 1]) >= limit)
        return refuse_cold("a number that the extent does not have");
    return buf_add(marks, data, size);
}

PyObject *marks_pack(const Buf *marks)
{
    Py_ssize_t count = (Py_ssize_t)marks_count(marks), size = 4 * count <= marks->size ? 4 * count : marks->size;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, count ? size + 1 : 0);
    if (bytes == NULL || count == 0)
        return bytes;
    char *at = PyBytes_AS_STRING(bytes);
    *at++ = (char)(4 * count > marks->size);
    if (4 * count <= marks->size)
        list_marks(marks, (unsigned char *)at, 1);
    else
        memcpy(at, marks->data, (size_t)marks->size);
    return bytes;
}
