/* The table of an extent and the bytes of a node, from a pack: read as millstream/engine/streams/extents.py and nodeform.py
 * do, and refused where they refuse.
 *
 * Invariants: nothing outside of the given bytes is read, whatever they say. A table or a node that is not refused has all
 * invariants of node.h, except that a name may be spelled out where the first entry's would do.
 */
#include "extent.h"

#define NEWER "an extent is of a form that only a newer program reads"
#define LENGTH "an extent is damaged: its table has another length"
#define ROW_MIN 13                     /* smallest row of a table in bytes */
#define GROWTH_MAX ((int64_t)1 << 28)  /* bytes by which entries may be larger in replies than here */
#define PAYLOAD_MAX ((uint64_t)1 << 48)

Part *part_new(size_t size)
{
    Part *part = count_block(PyMem_Malloc(size), size);
    if (part == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *part = (Part){.owners = 1, .size = size};
    return part;
}

void part_release(Part *part)
{
    if (part != NULL && --part->owners == 0)
        free_counted(part, part->size);
}

/* ---------------------------------------------------------------- numbers: each returns whether it was there */

static inline int take_varint(const char **at, const char *end, uint64_t *number)
{
    const unsigned char *p = (const unsigned char *)*at;
    if (p < (const unsigned char *)end && *p < 0x80) { /* most of them */
        *number = *p;
        *at += 1;
        return 1;
    }
    *number = 0;
    for (int shift = 0; p < (const unsigned char *)end && shift < 64; shift += 7) {
        uint64_t byte = *p++;
        if (shift == 63 && byte > 1)
            return 0;
        *number |= (byte & 0x7f) << shift;
        if (byte < 0x80) {
            *at = (const char *)p;
            return 1;
        }
    }
    return 0;
}

static inline int take_size(const char **at, const char *end, Py_ssize_t *size)
{
    uint64_t number;
    if (!take_varint(at, end, &number) || number > FRAME_MAX)
        return 0;
    *size = (Py_ssize_t)number;
    return 1;
}

static inline int take_id(const char **at, const char *end, Id before, Id *id)
{
    uint64_t ms, seq;
    if (!take_varint(at, end, &ms) || !take_varint(at, end, &seq))
        return 0;
    if (ms > UINT64_MAX - ID_MS(before) || (ms == 0 && seq > UINT64_MAX - ID_SEQ(before)))
        return 0;
    *id = ms ? ID_MAKE(ID_MS(before) + ms, seq) : before + seq;
    return 1;
}

static uint32_t little(const char *at)
{
    const unsigned char *p = (const unsigned char *)at;
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* ---------------------------------------------------------------- the table */

Py_ssize_t table_size(const char *head, const char **wrong)
{
    uint32_t size = little(head + 1);
    *wrong = head[0] != 1 ? NEWER : size > FRAME_MAX ? LENGTH : NULL;
    return *wrong != NULL ? -1 : (Py_ssize_t)size;
}

/* The facts of one node; whether they can be those of one */
static int take_row(const char **at, const char *end, Id before, Row *row)
{
    Node *node = &row->node;
    Py_ssize_t stored, dead;
    uint64_t payload;
    if (!take_size(at, end, &node->size) || end - *at < 4)
        return 0;
    row->crc = little(*at);
    *at += 4;
    if (!take_size(at, end, &node->begin) || !take_size(at, end, &stored) || !take_size(at, end, &dead)
        || !take_varint(at, end, &payload) || !take_id(at, end, before, &node->first)
        || !take_id(at, end, node->first, &node->last))
        return 0;
    if (node->begin == 0 || node->begin >= node->size || dead > stored || stored == 0 || stored > node->size
        || payload > PAYLOAD_MAX)
        return 0;
    node->stored = stored;
    node->live = stored - dead;
    node->payload = (int64_t)payload;
    node->low = node->live ? node->begin : node->size;
    node->before_low = node->live ? node->first : node->last;
    node->first_live = node->live ? node->first : 0;
    node->last_live = node->live ? node->last : 0;
    if (dead == 0 || node->live == 0)
        return 1;
    return take_size(at, end, &node->low) && take_id(at, end, node->first, &node->before_low)
           && take_id(at, end, node->first, &node->first_live) && take_id(at, end, node->first, &node->last_live)
           && node->begin <= node->low && node->low < node->size && node->before_low <= node->first_live
           && node->first_live <= node->last_live && node->last_live <= node->last;
}

Table *table_read(const char *data, Py_ssize_t size, Py_ssize_t payload, const char **wrong)
{
    const char *table = data + EXTENT_HEAD, *at = table, *end = table + size;
    uint64_t count;
    *wrong = "an extent is damaged: the checksum of its table is wrong";
    if (crc32_of(table, size, 0) != little(data + 5))
        return NULL;
    *wrong = LENGTH;
    if (!take_varint(&at, end, &count) || end - at < 16 || count == 0 || count > (uint64_t)(end - at - 16) / ROW_MIN)
        return NULL;
    Id last = id_from_bytes(at);
    at += 16;
    Table *read = (Table *)part_new(sizeof *read + (size_t)count * sizeof(Row));
    if (read == NULL) {
        *wrong = NULL;
        return NULL;
    }
    read->count = (uint32_t)count;
    read->stored = 0;
    Py_ssize_t place = EXTENT_HEAD + size;
    uint32_t number = 0;
    for (; number < count; number++) {
        Row *row = read->rows + number;
        memset(row, 0, sizeof *row);
        if (!take_row(&at, end, last, row) || row->node.size > payload - place)
            break;
        row->at = FRAME_HEAD + place;
        row->base = read->stored;
        read->stored += (uint32_t)row->node.stored;
        place += row->node.size;
        last = row->node.last;
    }
    if (number == count && at == end && place == payload) {
        *wrong = NULL;
        return read;
    }
    part_release(&read->part);
    return NULL;
}

/* ---------------------------------------------------------------- the bytes of a node */

/* Pass this many words; whether they are all there */
static inline int skip_words(const char **at, const char *end, uint64_t count)
{
    for (; count; count--) {
        uint64_t size;
        if (!take_varint(at, end, &size) || size > (uint64_t)(end - *at))
            return 0;
        *at += size;
    }
    return 1;
}

/* Names and values of an entry fill its bytes */
static inline int has_words(const char *at, const char *end, uint64_t names, int same)
{
    uint64_t count = names;
    if (!same && (!take_varint(&at, end, &count) || count == 0 || count > (uint64_t)(end - at) / 2))
        return 0;
    return skip_words(&at, end, same ? count : 2 * count) && at == end;
}

const char *node_wrong(const Node *facts, const char *data, uint32_t crc)
{
    const char *at = data, *end = data + facts->size;
    if (crc32_of(data, facts->size, 0) != crc)
        return "an extent is damaged: the checksum of a node is wrong";
    uint64_t names, head;
    if (!take_varint(&at, end, &names) || names == 0 || names > (uint64_t)(end - at) || !skip_words(&at, end, names)
        || at - data != facts->begin)
        return "a node is damaged: its names are others";
    Node found = {.first = facts->first, .before_low = facts->first, .size = facts->size, .low = facts->size};
    Id before = facts->first, id;
    int64_t total = 0;
    for (; at < end; found.stored++, before = id) {
        const char *place = at;
        if (!take_varint(&at, end, &head) || !take_id(&at, end, before, &id) || head >> 2 > (uint64_t)(end - at))
            return "a node is damaged: an entry is cut off";
        int same = (int)(head >> 1 & 1), dead = (int)(head & 1);
        if (!has_words(at, at + (head >> 2), names, same))
            return "a node is damaged: a word is cut off";
        at += head >> 2;
        total += (int64_t)(head >> 2) + (same ? facts->begin : 0);
        if (found.stored == 0 ? id != facts->first : id == before && !dead)
            return "a node is damaged: an id is another one";
        if (dead)
            continue;
        if (found.live++ == 0) {
            found.low = place - data;
            found.before_low = before;
            found.first_live = id;
        }
        found.last_live = id;
    }
    if (found.live == 0)
        found.before_low = before;
    if (total > facts->size + GROWTH_MAX)
        return "a node is damaged: its entries are too large";
    return found.stored == facts->stored && found.live == facts->live && before == facts->last && found.low == facts->low
                   && found.before_low == facts->before_low && found.first_live == facts->first_live
                   && found.last_live == facts->last_live
               ? NULL
               : "a node is damaged: its bytes and its facts are not of one node";
}
