/* Applies a record that does nothing but add entries, straight from its MessagePack: a double of py_apply_plain of
 * millstream.node.log.replay.
 *
 * Invariants:
 *  - A record is read twice. The first reading changes nothing. It checks that all of the record has the one form of
 *    adding (millstream/node/log/codec.py), for streams that exist. Only then is it applied; any other record is left
 *    to the ordinary way, unchanged.
 *  - A failure while it is applied (no memory, an id not above the last) ends the start, which drops the keyspace. So
 *    the steps applied before it are not taken back.
 *  - Reads stay within the record, whatever its lengths say.
 */
#include "core.h"

#define WORDS_MAX 256 /* strings of an entry; a larger one takes the ordinary way */

typedef struct {
    const unsigned char *at, *end;
} Reader;

typedef struct {
    uint64_t db;
    View key;
    Id id;
    int fresh;
    Py_ssize_t count;
    View words[WORDS_MAX];
} Add;

static PyObject *s_keys, *s_entries, *s_last_id, *s_entries_added, *s_offset, *s_db;

int replay_prepare(void)
{
    const Name names[] = {
        {&s_keys, "keys"},     {&s_entries, "entries"}, {&s_last_id, "last_id"}, {&s_entries_added, "entries_added"},
        {&s_offset, "offset"}, {&s_db, "db"},
    };
    return intern_names(names, sizeof names / sizeof *names);
}

/* ---------------------------------------------------------------- MessagePack: each returns whether it was there */

static int get_big_endian(Reader *reader, int bytes, uint64_t *number)
{
    if (reader->end - reader->at < bytes)
        return 0;
    for (*number = 0; bytes > 0; bytes--)
        *number = *number << 8 | *reader->at++;
    return 1;
}

static int get_byte(Reader *reader, unsigned char *byte)
{
    if (reader->at == reader->end)
        return 0;
    *byte = *reader->at++;
    return 1;
}

static int get_unsigned(Reader *reader, uint64_t *number)
{
    unsigned char kind;
    if (!get_byte(reader, &kind))
        return 0;
    *number = kind;
    if (kind < 0x80)
        return 1;
    return kind >= 0xcc && kind <= 0xcf && get_big_endian(reader, 1 << (kind - 0xcc), number);
}

static int get_array(Reader *reader, uint64_t *count)
{
    unsigned char kind;
    if (!get_byte(reader, &kind))
        return 0;
    *count = kind & 0x0f;
    if ((kind & 0xf0) == 0x90)
        return 1;
    return (kind == 0xdc || kind == 0xdd) && get_big_endian(reader, 2 << (kind - 0xdc), count);
}

static int get_binary(Reader *reader, View *found)
{
    unsigned char kind;
    uint64_t size;
    if (!get_byte(reader, &kind) || kind < 0xc4 || kind > 0xc6 || !get_big_endian(reader, 1 << (kind - 0xc4), &size))
        return 0;
    if (size > (uint64_t)(reader->end - reader->at))
        return 0;
    found->data = (const char *)reader->at;
    found->size = (Py_ssize_t)size;
    reader->at += size;
    return 1;
}

static int get_text(Reader *reader, const char *text, Py_ssize_t size)
{
    if (reader->end - reader->at < size || memcmp(reader->at, text, size) != 0)
        return 0;
    reader->at += size;
    return 1;
}

/* ["xadd", db, key, id, [field, value ...], fresh, nil] */
static int get_add(Reader *reader, Add *add)
{
    uint64_t count;
    View id;
    unsigned char fresh;
    if (!get_text(reader, "\x97\xa4xadd", 6) || !get_unsigned(reader, &add->db) || !get_binary(reader, &add->key))
        return 0;
    if (!get_binary(reader, &id) || id.size != 16 || !get_array(reader, &count))
        return 0;
    if (count == 0 || count % 2 || count > WORDS_MAX)
        return 0;
    for (uint64_t at = 0; at < count; at++)
        if (!get_binary(reader, &add->words[at]))
            return 0;
    if (!get_byte(reader, &fresh) || (fresh & 0xfe) != 0xc2 || !get_text(reader, "\xc0", 1))
        return 0;
    add->id = id_from_bytes(id.data);
    add->fresh = fresh == 0xc3;
    add->count = (Py_ssize_t)count;
    return 1;
}

/* ["off", db, bytes] at the end of the record */
static int get_count(Reader *reader, uint64_t *db, uint64_t *size)
{
    return get_text(reader, "\x93\xa3off", 5) && get_unsigned(reader, db) && get_unsigned(reader, size) && *size <= INT64_MAX
           && reader->at == reader->end;
}

static int get_record(Reader *reader, uint64_t *wall, uint64_t *steps)
{
    return get_text(reader, "\x93\x01", 2) && get_unsigned(reader, wall) && *wall <= INT64_MAX && get_array(reader, steps);
}

/* ---------------------------------------------------------------- applying */

/* The stream to add to, borrowed; NULL without an exception if the ordinary way must find the error */
static PyObject *find_stream(PyObject *databases, PyTypeObject *type, const Add *add)
{
    if (add->db >= (uint64_t)PyList_GET_SIZE(databases))
        return NULL;
    PyObject *keys = PyObject_GetAttr(PyList_GET_ITEM(databases, (Py_ssize_t)add->db), s_keys);
    if (keys == NULL)
        return NULL;
    PyObject *name = PyBytes_FromStringAndSize(add->key.data, add->key.size), *stream = NULL;
    if (name != NULL && PyDict_CheckExact(keys))
        stream = PyDict_GetItemWithError(keys, name); /* the database keeps it */
    Py_XDECREF(name);
    Py_DECREF(keys);
    return stream != NULL && Py_IS_TYPE(stream, type) ? stream : NULL;
}

static int count_added(PyObject *stream)
{
    PyObject *old = PyObject_GetAttr(stream, s_entries_added);
    long long added = old == NULL ? -1 : PyLong_AsLongLong(old);
    Py_XDECREF(old);
    if (added == -1 && PyErr_Occurred())
        return -1;
    if (added == LLONG_MAX)
        return 0;
    PyObject *new = PyLong_FromLongLong(added + 1);
    int failed = new == NULL ? -1 : PyObject_SetAttr(stream, s_entries_added, new);
    Py_XDECREF(new);
    return failed;
}

static int apply_add(PyObject *stream, const Add *add)
{
    PyObject *entries = PyObject_GetAttr(stream, s_entries), *last = NULL, *before = PyObject_GetAttr(stream, s_last_id);
    Id highest;
    int failed = -1;
    if (before == NULL || id_from_int(before, &highest) < 0)
        goto end;
    if (add->id <= highest) {
        PyErr_SetString(PyExc_ValueError, "an id that is not above the last");
        goto end;
    }
    if (entries == NULL || !Py_IS_TYPE(entries, &EntryStoreType)) {
        if (entries != NULL)
            PyErr_SetString(PyExc_TypeError, "a stream's entries are not kept by the native core");
        goto end;
    }
    if ((last = id_to_int(add->id)) == NULL)
        goto end;
    if (store_append((EntryStore *)entries, add->id, add->words, add->count, add->fresh) < 0)
        goto end;
    failed = PyObject_SetAttr(stream, s_last_id, last) < 0 ? -1 : count_added(stream);
end:
    Py_XDECREF(before);
    Py_XDECREF(entries);
    Py_XDECREF(last);
    return failed;
}

/* This many more bytes of a history describe the record, after which a database is selected */
static int apply_count(PyObject *history, uint64_t db, uint64_t size)
{
    PyObject *old = PyObject_GetAttr(history, s_offset), *more = PyLong_FromUnsignedLongLong(size);
    PyObject *new = old == NULL || more == NULL ? NULL : PyNumber_Add(old, more), *index = PyLong_FromUnsignedLongLong(db);
    int failed = new == NULL || index == NULL || PyObject_SetAttr(history, s_offset, new) < 0
                 || PyObject_SetAttr(history, s_db, index) < 0;
    Py_XDECREF(old);
    Py_XDECREF(more);
    Py_XDECREF(new);
    Py_XDECREF(index);
    return failed ? -1 : 0;
}

PyObject *apply_plain(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *databases, *payload, *history, *stream = NULL;
    PyTypeObject *type;
    uint64_t wall, steps, db, size = 0;
    if (!PyArg_ParseTuple(args, "O!O!SO", &PyList_Type, &databases, &PyType_Type, &type, &payload, &history))
        return NULL;
    const unsigned char *data = (const unsigned char *)PyBytes_AS_STRING(payload);
    Reader reader = {data, data + PyBytes_GET_SIZE(payload)}, again;
    Add add;
    if (!get_record(&reader, &wall, &steps) || steps == 0)
        return PyLong_FromLong(-1);
    again = reader;
    int is_counted = 0;
    for (uint64_t step = 0; step < steps; step++) {
        Reader before = reader;
        if (get_add(&reader, &add) && (stream = find_stream(databases, type, &add)) != NULL)
            continue;
        if (PyErr_Occurred())
            return NULL;
        reader = before;
        is_counted = step > 0 && step + 1 == steps && get_count(&reader, &db, &size);
        if (!is_counted)
            return PyLong_FromLong(-1);
    }
    if (reader.at != reader.end)
        return PyLong_FromLong(-1);
    if (steps == 1) /* a shortcut for most records: the last stream is still there */
        return apply_add(stream, &add) < 0 ? NULL : PyLong_FromUnsignedLongLong(wall);
    for (uint64_t step = 0; step < steps - (uint64_t)is_counted; step++)
        if (!get_add(&again, &add) || (stream = find_stream(databases, type, &add)) == NULL || apply_add(stream, &add) < 0)
            return NULL;
    if (is_counted && apply_count(history, db, size) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(wall);
}

/* ---------------------------------------------------------------- the stream for replicas */

/* Begin a command with this many arguments in the stream for replicas */
static int begin_command(Buf *out, uint64_t words, const char *name)
{
    return buf_head(out, '*', words) < 0 || buf_bulk(out, name, (Py_ssize_t)strlen(name)) < 0 ? -1 : 0;
}

static int tell_add(Buf *out, const Add *add)
{
    int failed = begin_command(out, (uint64_t)add->count + 3, "XADD") < 0 || buf_bulk(out, add->key.data, add->key.size) < 0
                 || buf_id_bulk(out, add->id) < 0;
    for (Py_ssize_t at = 0; at < add->count && !failed; at++)
        failed = buf_bulk(out, add->words[at].data, add->words[at].size) < 0;
    return failed ? -1 : 0;
}

/* Write ["set", db, key, data, nil] or ["gack", db, key, group, ids] as a command; return whether it was one of these;
 * -1 on an error */
static int tell_other(Buf *out, Reader *reader, uint64_t *db)
{
    View words[3];
    int is_set = get_text(reader, "\x95\xa3set", 5);
    if (!is_set && !get_text(reader, "\x95\xa4gack", 6))
        return 0;
    if (!get_unsigned(reader, db) || !get_binary(reader, &words[0]) || !get_binary(reader, &words[1]))
        return 0;
    if (is_set ? !get_text(reader, "\xc0", 1) : !get_binary(reader, &words[2]) || words[2].size % 16)
        return 0;
    Py_ssize_t ids = is_set ? 0 : words[2].size / 16;
    if (begin_command(out, (uint64_t)ids + 3, is_set ? "SET" : "XACK") < 0 || buf_bulk(out, words[0].data, words[0].size) < 0
        || buf_bulk(out, words[1].data, words[1].size) < 0)
        return -1;
    for (Py_ssize_t at = 0; at < ids; at++)
        if (buf_id_bulk(out, id_from_bytes(words[2].data + 16 * at)) < 0)
            return -1;
    return 1;
}

static int tell_select(Buf *out, uint64_t db)
{
    char text[NUMBER_ROOM];
    Py_ssize_t size = put_number(text, db) - text;
    return begin_command(out, 2, "SELECT") < 0 || buf_bulk(out, text, size) < 0 ? -1 : 0;
}

/* The record with an additional step ["off", db, bytes], the number of bytes that describe it */
static PyObject *with_count(PyObject *payload, uint64_t db, uint64_t size)
{
    const char *data = PyBytes_AS_STRING(payload), *end = data + PyBytes_GET_SIZE(payload);
    Reader reader = {(const unsigned char *)data, (const unsigned char *)end};
    uint64_t wall, steps;
    char head[5], count[5 + 9 + 9];
    if (!get_text(&reader, "\x93\x01", 2) || !get_unsigned(&reader, &wall))
        return PyErr_Format(PyExc_ValueError, "no record");
    Py_ssize_t before = (const char *)reader.at - data;
    if (!get_array(&reader, &steps))
        return PyErr_Format(PyExc_ValueError, "no record");
    Py_ssize_t rest = end - (const char *)reader.at, heads = put_array(head, steps + 1) - head;
    Py_ssize_t counts = put_unsigned(put_unsigned(put_bytes(count, "\x93\xa3off", 5), db), size) - count;
    PyObject *result = PyBytes_FromStringAndSize(NULL, before + heads + rest + counts);
    if (result != NULL) {
        char *at = put_bytes(put_bytes(PyBytes_AS_STRING(result), data, before), head, heads);
        put_bytes(put_bytes(at, (const char *)reader.at, rest), count, counts);
    }
    return result;
}

/* tell_plain(payload, selected, uncounted), see py_tell_plain of millstream.node.log.feeding */
PyObject *tell_plain(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t nargs)
{
    long selected = nargs == 3 && PyBytes_Check(args[0]) ? PyLong_AsLong(args[1]) : -2;
    if (selected < -1)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "tell_plain(payload, selected, uncounted)");
    unsigned long long uncounted = PyLong_AsUnsignedLongLong(args[2]);
    if (PyErr_Occurred())
        return NULL;
    const unsigned char *data = (const unsigned char *)PyBytes_AS_STRING(args[0]);
    Reader reader = {data, data + PyBytes_GET_SIZE(args[0])};
    Buf out = {0};
    Add add;
    uint64_t wall, steps, db = 0, first = 0;
    PyObject *result = NULL;
    int known = get_record(&reader, &wall, &steps) && steps > 0;
    for (uint64_t step = 0; known > 0 && step < steps; step++) {
        Reader before = reader;
        Py_ssize_t begin = out.size;
        if (step == 0 && buf_reserve(&out, 128) < 0) /* a SELECT and a MULTI, which come first */
            goto failed;
        if (step == 0)
            begin = out.size = 128;
        if (get_add(&reader, &add)) {
            db = add.db;
            known = tell_add(&out, &add) < 0 ? -1 : 1;
        } else {
            reader = before;
            known = tell_other(&out, &reader, &db);
        }
        if (step == 0)
            first = db;
        if (known > 0 && db != first)
            known = 0;
        if (known == 0)
            out.size = begin;
    }
    if (known < 0)
        goto failed;
    if (!known || reader.at != reader.end) {
        result = Py_NewRef(Py_None);
    } else {
        Buf head = {0};
        if ((selected == (long)first || tell_select(&head, first) == 0)
            && (steps == 1 || (buf_add(&head, "*1\r\n$5\r\nMULTI\r\n", 15) == 0 && buf_add(&out, "*1\r\n$4\r\nEXEC\r\n", 14) == 0))) {
            Py_ssize_t begin = 128 - head.size;
            if (head.size)
                memcpy(out.data + begin, head.data, (size_t)head.size);
            PyObject *counted = with_count(args[0], first, uncounted + (uint64_t)(out.size - begin));
            if (counted != NULL)
                result = Py_BuildValue("(y#KN)", out.data + begin, out.size - begin, (unsigned long long)first, counted);
        }
        buf_free(&head);
    }
failed:
    buf_free(&out);
    return result;
}
