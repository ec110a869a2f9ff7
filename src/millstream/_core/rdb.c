/* The slow parts of reading Redis's payloads: doubles of millstream/engine/serialization/rdb/bulk.py. The docstrings
 * there apply here.
 *
 * Invariants: that of dumps.h. If the bytes are refused, objects made of them are dropped. A group made of them is
 * useless to the caller, who drops it.
 */
#include "dumps.h"
#include <stdlib.h>

static uint64_t get_little(const char *at, int size)
{
    uint64_t number = 0;
    for (int i = size - 1; i >= 0; i--)
        number = number << 8 | (unsigned char)at[i];
    return number;
}

static int is_tuple(PyObject *object)
{
    if (!PyTuple_Check(object))
        PyErr_SetString(PyExc_TypeError, "tuples are expected");
    return PyTuple_Check(object);
}

/* ---------------------------------------------------------------- checksum: eight bytes at a time */

static uint64_t crc_tables[8][256];

static void make_crc_tables(void)
{
    for (int byte = 0; byte < 256; byte++) {
        uint64_t crc = (uint64_t)byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x95AC9329AC4BC9B5u : 0);
        crc_tables[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint64_t crc = crc_tables[table - 1][byte];
            crc_tables[table][byte] = crc_tables[0][crc & 255] ^ crc >> 8;
        }
}

/* crc64(data, crc=0): any int is reduced to an unsigned 64-bit number */
PyObject *crc64(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_buffer data;
    unsigned long long before = 0;
    if (!PyArg_ParseTuple(args, "y*|K", &data, &before))
        return NULL;
    if (crc_tables[0][1] == 0)
        make_crc_tables();
    const char *at = data.buf, *end = at + data.len;
    uint64_t crc = before;
    for (; end - at >= 8; at += 8) {
        uint64_t mixed = crc ^ get_little(at, 8);
        crc = 0;
        for (int byte = 0; byte < 8; byte++)
            crc ^= crc_tables[7 - byte][mixed >> 8 * byte & 255];
    }
    for (; at < end; at++)
        crc = crc_tables[0][(crc ^ (unsigned char)*at) & 255] ^ crc >> 8;
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLongLong(crc);
}

/* ---------------------------------------------------------------- compression */

static int unpack_lzf(Source source, char *out, Py_ssize_t size)
{
    char *first = out, *end = out + size;
    while (source.at < source.end) {
        int control = (unsigned char)*source.at++;
        Py_ssize_t length = control < 32 ? control + 1 : control >> 5, distance = 0;
        if (control >= 32) {
            if (LEFT(&source) < (length == 7 ? 2 : 1))
                return malformed("cut short");
            if (length == 7)
                length += (unsigned char)*source.at++;
            distance = ((control & 31) << 8 | (unsigned char)*source.at++) + 1;
            length += 2;
        }
        if (length > end - out || distance > out - first || (distance == 0 && (uint64_t)length > LEFT(&source)))
            return malformed("compressed bytes are damaged");
        const char *from = distance ? out - distance : source.at;
        if (distance == 0)
            source.at += length;
        if (distance == 0 || distance >= length)
            out = put_bytes(out, from, length);
        else
            for (; length; length--) /* the copied bytes may overlap the result */
                *out++ = *from++;
    }
    return out == end ? 0 : malformed("not the size it is said to be");
}

/* decompress(data, size) */
PyObject *decompress(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *data, *number;
    if (!PyArg_ParseTuple(args, "SO!", &data, &PyLong_Type, &number))
        return NULL;
    Py_ssize_t size = PyLong_AsSsize_t(number);
    if (size == -1 && PyErr_Occurred())
        PyErr_Clear();
    if (size < 0 || size > (Py_ssize_t)512 << 20 || size > 264 * PyBytes_GET_SIZE(data))
        return malformed("larger than it can be"), NULL;
    PyObject *out = PyBytes_FromStringAndSize(NULL, size);
    Source source = {PyBytes_AS_STRING(data), PyBytes_AS_STRING(data) + PyBytes_GET_SIZE(data)};
    if (out != NULL && unpack_lzf(source, PyBytes_AS_STRING(out), size) < 0)
        Py_CLEAR(out);
    return out;
}

/* ---------------------------------------------------------------- listpacks */

/* An element's first byte determines the form of its number or size, and the number of bytes after it */
static int integer_bytes(int first)
{
    return first == 0xF1 ? 2 : first == 0xF2 ? 3 : first == 0xF3 ? 4 : first == 0xF4 ? 8 : -1;
}

/* The next element: 1 with a number, 0 with a string, -1 */
static int take_element(Source *source, View *word, int64_t *number)
{
    const char *start = source->at;
    if (LEFT(source) < 1)
        return malformed("a node cut short");
    int first = (unsigned char)*source->at++, is_string = 0;
    int more = first < 0xC0 ? 0 : first < 0xF0 ? 1 : first == 0xF0 ? 4 : integer_bytes(first);
    if (more < 0 || LEFT(source) < (uint64_t)more)
        return malformed("an unknown element, or cut short");
    uint64_t value = get_little(source->at, more);
    source->at += more;
    if (first < 0x80) {
        *number = first;
    } else if (first >= 0xC0 && first < 0xE0) {
        int bits = (first & 31) << 8 | (int)value;
        *number = bits >= 4096 ? bits - 8192 : bits;
    } else if (first > 0xF0) {
        int unused = 64 - 8 * more;
        *number = (int64_t)(value << unused) >> unused;
    } else {
        is_string = 1;
        value = first < 0xC0 ? (uint64_t)first & 63 : first < 0xF0 ? (uint64_t)(first & 15) << 8 | value : value;
        if (value > LEFT(source))
            return malformed("a node cut short");
        *word = (View){source->at, (Py_ssize_t)value};
        source->at += value;
    }
    int64_t size = source->at - start, back = listpack_back(size);
    if (LEFT(source) < (uint64_t)back)
        return malformed("a node cut short");
    for (int64_t i = back - 1; i >= 0; i--) /* seven bits a byte, the highest first, all but the first with the high bit */
        if ((unsigned char)*source->at++ != ((size >> 7 * i & 127) | (i < back - 1 ? 128 : 0)))
            return malformed("a listpack that cannot be walked backwards");
    return !is_string;
}

static int take_integer(Source *source, int64_t *number)
{
    View word;
    int found = take_element(source, &word, number);
    if (found < 0)
        return -1;
    return found || canonical(word, number) ? 0 : malformed("a number expected");
}

/* The number of items that follow, each with at least two bytes */
static int take_count(Source *source, int64_t *number)
{
    if (take_integer(source, number) < 0)
        return -1;
    return *number < 0 || (uint64_t)*number > LEFT(source) / 2 ? malformed("a number out of range") : 0;
}

/* An element as a string; numbers in decimal */
static int take_word(Source *source, Words *words, int64_t place)
{
    int64_t number = 0;
    int found = take_element(source, words->words + place, &number);
    if (found > 0) {
        char *text = words->texts[place], *at = text;
        if (number < 0)
            *at++ = '-';
        at = put_number(at, number < 0 ? 0 - (uint64_t)number : (uint64_t)number);
        words->words[place] = (View){text, at - text};
    }
    return found < 0 ? -1 : 0;
}

/* Names and values of an entry that uses the node's names, so that only values are stored */
static int take_values(Source *source, const Words *names, int64_t count, Words *words)
{
    if (words_reserve(words, 2 * (uint64_t)count, 1) < 0)
        return -1;
    for (int64_t i = 0; i < count; i++) {
        words->words[2 * i] = names->words[i];
        if (take_word(source, words, 2 * i + 1) < 0)
            return -1;
    }
    return 0;
}

static int take_words(Source *source, int64_t count, Words *words)
{
    if (words_reserve(words, (uint64_t)count, 1) < 0)
        return -1;
    for (int64_t i = 0; i < count; i++)
        if (take_word(source, words, i) < 0)
            return -1;
    return 0;
}

typedef struct {
    EntryStore *store;
    Words names, words;
} Reading;

/* For an entry below tombstones, which Redis up to 7.0 adds after XSETID lowers the last id */
static int make_room(EntryStore *store, Id id)
{
    if (store->count == 0 || id <= store_last_live(store))
        return malformed("entries out of order");
    return store_reach_back(store, id - 1);
}

/* Add an entry of a node to the store; return whether it is a tombstone */
static int take_entry(Source *source, Reading *reading, Id master, int64_t names, int is_first)
{
    int64_t flags, ms, seq, size, count = names;
    if (take_integer(source, &flags) < 0 || take_integer(source, &ms) < 0 || take_integer(source, &seq) < 0)
        return -1;
    Id id = ID_MAKE(ID_MS(master) + (uint64_t)ms, ID_SEQ(master) + (uint64_t)seq);
    if (flags & 2 ? take_values(source, &reading->names, count, &reading->words) < 0
                  : take_count(source, &count) < 0 || take_words(source, 2 * count, &reading->words) < 0)
        return -1;
    if (take_integer(source, &size) < 0) /* number of the entry's elements, for walks backwards */
        return -1;
    if (size != (flags & 2 ? count + 3 : 2 * count + 4))
        return malformed("a node that cannot be walked backwards");
    if (count == 0)
        return malformed("an entry without its fields");
    EntryStore *store = reading->store;
    Id last = store->count ? STORE_NODE(store, store->count - 1)->last : 0;
    if (flags & 1 && !is_first ? id < last : id <= last) {
        /* A node that begins above the entry has only tombstones: the entry replaces its beginning */
        is_first |= store->count && id <= STORE_NODE(store, store->count - 1)->first;
        if (make_room(store, id) < 0)
            return -1;
    }
    if (store_put(store, id, reading->words.words, 2 * (Py_ssize_t)count, is_first, (int)(flags & 1)) < 0)
        return -1;
    return (int)(flags & 1);
}

static int read_listpack(View key, View packed, Reading *reading)
{
    int64_t live, dead, names, end;
    if (key.size != 16)
        return malformed("a node without its id");
    if (packed.size < 7 || get_little(packed.data, 4) != (uint64_t)packed.size || packed.data[packed.size - 1] != '\xff')
        return malformed("not a listpack");
    Source source = {packed.data + 6, packed.data + packed.size - 1};
    if (take_count(&source, &live) < 0 || take_count(&source, &dead) < 0 || take_count(&source, &names) < 0
        || take_words(&source, names, &reading->names) < 0 || take_integer(&source, &end) < 0)
        return -1;
    if (end != 0)
        return malformed("a node's head does not end");
    int64_t found = 0;
    for (int64_t i = 0; i < live + dead; i++) {
        int is_dead = take_entry(&source, reading, id_from_bytes(key.data), names, i == 0);
        if (is_dead < 0)
            return -1;
        found += is_dead;
    }
    return source.at != source.end || found != dead ? malformed("a node's counters are wrong") : 0;
}

/* read_listpacks(nodes) */
PyObject *read_listpacks(PyObject *Py_UNUSED(self), PyObject *nodes)
{
    PyObject *iterator = PyObject_GetIter(nodes), *node;
    if (iterator == NULL)
        return NULL;
    PyObject *store = PyType_GenericAlloc(&EntryStoreType, 0);
    Reading reading = {.store = (EntryStore *)store};
    int status = store == NULL ? -1 : 0;
    while (status == 0 && (node = PyIter_Next(iterator)) != NULL) {
        PyObject *key, *packed;
        if (!is_tuple(node) || !PyArg_ParseTuple(node, "SS", &key, &packed))
            status = -1;
        else
            status = read_listpack((View){PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)},
                                   (View){PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed)}, &reading);
        Py_DECREF(node);
    }
    Py_DECREF(iterator);
    if (status == 0 && PyErr_Occurred())
        status = -1;
    words_free(&reading.names);
    words_free(&reading.words);
    if (status < 0)
        Py_CLEAR(store);
    return store;
}

/* ---------------------------------------------------------------- pending records */

#define FIXED 24 /* bytes of a record before its count: id and time */
#define RECORD 32

/* A size as Redis writes it, with 6, 14, 32 or 64 bits, big-endian */
static int take_size(Source *source, uint64_t *size)
{
    if (LEFT(source) < 1)
        return malformed("cut short");
    int first = (unsigned char)*source->at++;
    int more = first < 0x40 ? 0 : first < 0x80 ? 1 : first == 0x80 ? 4 : first == 0x81 ? 8 : -1;
    if (more < 0 || LEFT(source) < (uint64_t)more)
        return malformed("a size expected");
    *size = first < 0x80 ? (uint64_t)first & 63 : 0;
    for (; more; more--)
        *size = *size << 8 | (unsigned char)*source->at++;
    return 0;
}

/* read_pending(data, at, count) */
PyObject *read_pending(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *data, *at, *number;
    Source source;
    if (!PyArg_ParseTuple(args, "OOO!", &data, &at, &PyLong_Type, &number) || source_at(data, at, &source) < 0)
        return NULL;
    unsigned long long count = PyLong_AsUnsignedLongLong(number);
    if (count == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    if (count > LEFT(&source) / (FIXED + 1))
        return malformed("cut short"), NULL;
    PyObject *records = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * RECORD);
    char *to = records == NULL ? NULL : PyBytes_AS_STRING(records);
    for (; records != NULL && count; count--) {
        uint64_t deliveries = 0;
        if (LEFT(&source) < FIXED) {
            malformed("cut short");
            Py_CLEAR(records);
            break;
        }
        to = put_bytes(to, source.at, FIXED);
        source.at += FIXED;
        if (take_size(&source, &deliveries) < 0)
            Py_CLEAR(records);
        else
            for (int shift = 0; shift < 64; shift += 8)
                *to++ = (char)(unsigned char)(deliveries >> shift);
    }
    return records == NULL ? NULL : Py_BuildValue("Nn", records, source.at - PyBytes_AS_STRING(data));
}

typedef struct {
    Id id;
    int64_t time, count;
    Consumer *holder;
} Row;

static int by_id(const void *one, const void *other)
{
    const Row *first = one, *second = other;
    return (first->id > second->id) - (first->id < second->id);
}

static int by_time(const void *one, const void *other)
{
    const Row *first = one, *second = other;
    return first->time == second->time ? by_id(one, other) : first->time < second->time ? -1 : 1;
}

/* The group's records, in the order of their ids */
static int read_rows(const char *at, Row *rows, Py_ssize_t count)
{
    int ascend = 1;
    for (Py_ssize_t i = 0; i < count; i++, at += RECORD) {
        rows[i] = (Row){id_from_bytes(at), (int64_t)get_little(at + 16, 8), (int64_t)get_little(at + 24, 8), NULL};
        if (rows[i].count < 0 || rows[i].time < OLDEST)
            return malformed("a number out of range");
        ascend = ascend && (i == 0 || rows[i - 1].id < rows[i].id);
    }
    if (!ascend)
        qsort(rows, (size_t)count, sizeof *rows, by_id);
    for (Py_ssize_t i = 1; !ascend && i < count; i++)
        if (rows[i - 1].id == rows[i].id)
            return malformed("one entry pending twice");
    return 0;
}

/* Make a consumer the holder of its ids; return their number, -1 */
static Py_ssize_t name_holder(Row *rows, Py_ssize_t count, Consumer *consumer, View ids)
{
    Row *next = rows; /* both lists of ids ascend, and a consumer's are often adjacent in the group's */
    for (Py_ssize_t i = 0; i < ids.size / 16; i++, next++) {
        Row wanted = {.id = id_from_bytes(ids.data + 16 * i)};
        if (next >= rows + count || next->id != wanted.id)
            next = bsearch(&wanted, rows, (size_t)count, sizeof *rows, by_id);
        if (next == NULL || next->holder != NULL)
            return malformed("a consumer's record that is not its group's, or another's");
        next->holder = consumer;
    }
    return ids.size / 16;
}

static int fill_group(Group *group, PyObject *records, PyObject *owned, Row *rows)
{
    Py_ssize_t count = PyBytes_GET_SIZE(records) / RECORD, held = 0;
    if (read_rows(PyBytes_AS_STRING(records), rows, count) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(owned); i++) {
        Consumer *consumer;
        PyObject *ids;
        PyObject *pair = PyList_GET_ITEM(owned, i);
        if (!is_tuple(pair) || !PyArg_ParseTuple(pair, "O!S", &ConsumerType, &consumer, &ids))
            return -1;
        Py_ssize_t own = name_holder(rows, count, consumer, (View){PyBytes_AS_STRING(ids), PyBytes_GET_SIZE(ids)});
        if (own < 0)
            return -1;
        held += own;
    }
    if (held != count)
        return malformed("a record without its consumer");
    qsort(rows, (size_t)count, sizeof *rows, by_time);
    for (Py_ssize_t i = 0; i < count; i++)
        if (group_assign(group, rows[i].id, rows[i].holder, rows[i].time, rows[i].count) < 0)
            return -1;
    return 0;
}

/* assign_pending(group, records, owned) */
PyObject *assign_pending(PyObject *Py_UNUSED(self), PyObject *args)
{
    Group *group;
    PyObject *records, *owned;
    if (!PyArg_ParseTuple(args, "O!SO!", &GroupType, &group, &records, &PyList_Type, &owned))
        return NULL;
    Row *rows = PyMem_New(Row, (size_t)(PyBytes_GET_SIZE(records) / RECORD));
    if (rows == NULL)
        return PyErr_NoMemory();
    int status = fill_group(group, records, owned, rows);
    PyMem_Free(rows);
    if (status < 0)
        return NULL;
    Py_RETURN_NONE;
}
