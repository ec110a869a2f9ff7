/* Entries and pending records in the plain form of dumps, and back: doubles of millstream/engine/serialization/bulk.py.
 * The docstrings there apply here; the form is that of plain.py in the same folder.
 *
 * Invariants: that of dumps.h. If the bytes are refused, objects made of them are dropped. A group made of them is
 * useless to the caller, who drops it.
 */
#include "dumps.h"
#include "extent.h"

enum { NONE, FALSE, TRUE, INT, NEGATIVE, BYTES, LIST };

#define ID_SIZE 19       /* largest size of a number in bytes */
#define PIECE (1 << 16) /* smallest size of a piece of packed entries in bytes */

/* ---------------------------------------------------------------- for both readers */

int malformed(const char *what)
{
    PyObject *module = PyImport_ImportModule("millstream.engine.serialization.plain");
    PyObject *error = module == NULL ? NULL : PyObject_GetAttrString(module, "MalformedError");
    if (error != NULL)
        PyErr_SetString(error, what);
    Py_XDECREF(error);
    Py_XDECREF(module);
    return -1;
}

int words_reserve(Words *words, uint64_t count, int texts)
{
    if (count <= (uint64_t)words->room)
        return 0;
    size_t room = 2 * (size_t)count;
    View *views = PyMem_Realloc(words->words, room * sizeof(View));
    if (views != NULL)
        words->words = views;
    char(*kept)[NUMBER_ROOM + 1] = NULL;
    if (views != NULL && texts && (kept = PyMem_Realloc(words->texts, room * sizeof *kept)) != NULL)
        words->texts = kept;
    if (views == NULL || (texts && kept == NULL)) {
        PyErr_NoMemory();
        return -1;
    }
    words->room = (Py_ssize_t)room;
    return 0;
}

void words_free(Words *words)
{
    PyMem_Free(words->words);
    PyMem_Free(words->texts);
}

int source_at(PyObject *data, PyObject *at, Source *source)
{
    if (!PyBytes_Check(data)) {
        PyErr_SetString(PyExc_TypeError, "a payload is bytes");
        return -1;
    }
    Py_ssize_t place = PyLong_AsSsize_t(at);
    if (place == -1 && PyErr_Occurred())
        return -1;
    if (place < 0 || place > PyBytes_GET_SIZE(data)) {
        PyErr_SetString(PyExc_ValueError, "a position outside the data");
        return -1;
    }
    *source = (Source){PyBytes_AS_STRING(data) + place, PyBytes_AS_STRING(data) + PyBytes_GET_SIZE(data)};
    return 0;
}

/* ---------------------------------------------------------------- writing */

static char *put_tagged(char *at, char tag, Id number)
{
    *at++ = tag;
    for (; number >= 0x80; number >>= 7)
        *at++ = (char)((unsigned char)number | 0x80);
    *at++ = (char)number;
    return at;
}

static char *put_signed(char *at, int64_t number)
{
    return number >= 0 ? put_tagged(at, INT, (Id)number) : put_tagged(at, NEGATIVE, (Id)(-(number + 1)));
}

static int pack_node(const Node *node, Buf *out, Words *words)
{
    Entry entry;
    Id before = node->first;
    if (buf_reserve(out, 1 + ID_SIZE) < 0)
        return -1;
    out->size = put_tagged(out->data + out->size, LIST, (Id)node->stored) - out->data;
    for (char *place = node->data + node->begin; place < node->data + node->size; place = entry.end) {
        entry_read(place, before, &entry);
        before = entry.id;
        Py_ssize_t count = node_words(node, &entry, &words->words, &words->room);
        if (count < 0)
            return -1;
        Py_ssize_t need = 3 * (1 + ID_SIZE);
        for (Py_ssize_t i = 0; i < count; i++)
            need += 1 + VARINT_ROOM + words->words[i].size;
        if (buf_reserve(out, need) < 0)
            return -1;
        char *at = put_tagged(out->data + out->size, LIST, (Id)count + 2);
        at = put_tagged(at, INT, entry.id);
        *at++ = entry.dead ? TRUE : FALSE;
        for (Py_ssize_t i = 0; i < count; i++) {
            View word = words->words[i];
            at = put_bytes(put_tagged(at, BYTES, (Id)word.size), word.data, word.size);
        }
        out->size = at - out->data;
    }
    return 0;
}

/* Append the bytes packed so far to a list */
static int add_piece(PyObject *pieces, Buf *out)
{
    PyObject *piece = buf_bytes(out);
    int status = piece == NULL ? -1 : PyList_Append(pieces, piece);
    Py_XDECREF(piece);
    out->size = 0;
    return status;
}

PyObject *pack_entries(PyObject *Py_UNUSED(self), PyObject *object)
{
    if (!PyObject_TypeCheck(object, &EntryStoreType))
        return PyErr_Format(PyExc_TypeError, "a store of entries is expected");
    EntryStore *store = (EntryStore *)object;
    Buf out = {0};
    Words words = {0};
    PyObject *pieces = PyList_New(0);
    int status = pieces == NULL ? -1 : buf_reserve(&out, 1 + ID_SIZE);
    if (status == 0)
        out.size = put_tagged(out.data, LIST, (Id)(store->count + (is_cold(store) ? store->cold->nodes : 0))) - out.data;
    Walk walk;
    walk_begin(&walk, store, 0, ID_MAX, 0);
    walk.all = 1;
    uint64_t version = store->version;
    for (int more = 1; status == 0 && more > 0;) {
        more = walk_node(&walk);
        status = more > 0 ? pack_node(walk.node, &out, &words) : more;
        if (status == 0 && out.size >= PIECE)
            status = add_piece(pieces, &out);
        if (status == 0 && store->version != version)
            status = refuse_cold("the entries changed while they were packed");
    }
    walk_end(&walk);
    if (status < 0 || add_piece(pieces, &out) < 0)
        Py_CLEAR(pieces);
    buf_free(&out);
    words_free(&words);
    return pieces;
}

/* pack_records(group, places) */
PyObject *pack_records(PyObject *Py_UNUSED(self), PyObject *args)
{
    Group *group;
    PyObject *places;
    if (!PyArg_ParseTuple(args, "O!O!", &GroupType, &group, &PyDict_Type, &places))
        return NULL;
    Buf out = {0};
    int status = buf_reserve(&out, 1 + ID_SIZE);
    if (status == 0)
        out.size = put_tagged(out.data, LIST, (Id)group->records.size) - out.data;
    Consumer *holder = NULL;
    long long place = 0;
    for (Record *record = group->head; record != NULL && status == 0; record = record->after) {
        if (record->consumer != NULL && record->consumer != holder) {
            holder = record->consumer;
            PyObject *found = PyDict_GetItemWithError(places, holder->name);
            if (found == NULL && !PyErr_Occurred())
                PyErr_SetObject(PyExc_KeyError, holder->name);
            place = found == NULL ? -1 : PyLong_AsLongLong(found);
        }
        if (PyErr_Occurred() || buf_reserve(&out, 5 * (1 + ID_SIZE)) < 0) {
            status = -1;
            break;
        }
        char *at = put_tagged(put_tagged(out.data + out.size, LIST, 4), INT, record->id);
        if (record->consumer == NULL)
            *at++ = NONE;
        else
            at = put_signed(at, place);
        out.size = put_signed(put_signed(at, record_time(record)), record->count) - out.data;
    }
    PyObject *packed = status < 0 ? NULL : buf_bytes(&out);
    buf_free(&out);
    return packed;
}

/* ---------------------------------------------------------------- reading */

static int take_tag(Source *source)
{
    return source->at == source->end ? malformed("cut short") : *(const unsigned char *)source->at++;
}

/* A size or a number: 1 if it has more bits than an id, which are then dropped */
static int take_number(Source *source, Id *number)
{
    int large = 0, shift = 0, byte;
    for (*number = 0;; shift += 7) {
        if (source->at == source->end || shift >= 7 * ID_SIZE)
            return malformed("cut short");
        byte = *(const unsigned char *)source->at++;
        *number |= (Id)(byte & 0x7f) << shift;
        large |= shift == 126 && (byte & 0x7c);
        if (byte < 0x80)
            return large;
    }
}

static int take_id(Source *source, Id *id)
{
    int tag = take_tag(source);
    if (tag < 0 || tag != INT || take_number(source, id) != 0)
        return PyErr_Occurred() ? -1 : malformed("an id expected");
    return 0;
}

/* A signed 64-bit number between two bounds */
static int take_between(Source *source, int tag, int64_t lowest, int64_t highest, int64_t *number)
{
    Id size;
    if (tag < 0 || (tag != INT && tag != NEGATIVE) || take_number(source, &size) != 0 || size > INT64_MAX)
        return PyErr_Occurred() ? -1 : malformed("a number out of range");
    *number = tag == INT ? (int64_t)size : -(int64_t)size - 1;
    return *number < lowest || *number > highest ? malformed("a number out of range") : 0;
}

/* The size of bytes or of a list, at most the number of remaining bytes */
static int take_size(Source *source, int wanted, uint64_t *size)
{
    Id number;
    int tag = take_tag(source);
    if (tag < 0 || tag != wanted || take_number(source, &number) != 0 || number > LEFT(source))
        return PyErr_Occurred() ? -1 : malformed("other parts expected");
    *size = (uint64_t)number;
    return 0;
}

/* A value of any type, with at most this many nested lists */
static int skip(Source *source, int depth)
{
    Id size;
    int tag = take_tag(source);
    if (tag < 0 || tag > LIST)
        return tag < 0 ? -1 : malformed("unknown tag");
    if (tag <= TRUE)
        return 0;
    int large = take_number(source, &size);
    if (large < 0 || tag <= NEGATIVE)
        return large < 0 ? -1 : 0;
    if (large || size > LEFT(source) || (tag == LIST && depth == 0))
        return malformed("cut short, or too deep");
    if (tag == BYTES) {
        source->at += (uint64_t)size;
        return 0;
    }
    for (; size; size--)
        if (skip(source, depth - 1) < 0)
            return -1;
    return 0;
}

/* Add an entry to the store, as the first of its node or behind the others */
static int read_entry(Source *source, EntryStore *store, Words *words, int is_first)
{
    uint64_t count, size;
    Id id, last = store->count ? STORE_NODE(store, store->count - 1)->last : 0;
    if (take_size(source, LIST, &count) < 0)
        return -1;
    if (count < 4 || count % 2)
        return malformed("an entry without its fields");
    if (take_id(source, &id) < 0)
        return -1;
    int tag = take_tag(source);
    if (tag < 0 || (tag != TRUE && tag != FALSE))
        return tag < 0 ? -1 : malformed("a mark of a tombstone expected");
    if (tag == TRUE && !is_first ? id < last : id <= last)
        return malformed("entries out of order");
    count -= 2;
    if (count > LEFT(source) / 2) /* two bytes are the shortest string */
        return malformed("cut short");
    if (words_reserve(words, count, 0) < 0)
        return -1;
    for (uint64_t i = 0; i < count; i++) {
        if (take_size(source, BYTES, &size) < 0)
            return -1;
        words->words[i] = (View){source->at, (Py_ssize_t)size};
        source->at += size;
    }
    return store_put(store, id, words->words, (Py_ssize_t)count, is_first, tag == TRUE);
}

static int read_nodes(Source *source, EntryStore *store, Words *words)
{
    uint64_t nodes, entries;
    if (take_size(source, LIST, &nodes) < 0)
        return -1;
    for (; nodes; nodes--) {
        if (take_size(source, LIST, &entries) < 0)
            return -1;
        if (entries == 0)
            return malformed("a block without entries");
        for (int is_first = 1; entries; entries--, is_first = 0)
            if (read_entry(source, store, words, is_first) < 0)
                return -1;
    }
    return 0;
}

/* read_entries(data, at) */
PyObject *read_entries(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *data, *at;
    Source source;
    Words words = {0};
    if (!PyArg_ParseTuple(args, "OO", &data, &at) || source_at(data, at, &source) < 0)
        return NULL;
    PyObject *store = PyType_GenericAlloc(&EntryStoreType, 0);
    if (store != NULL && read_nodes(&source, (EntryStore *)store, &words) < 0)
        Py_CLEAR(store);
    words_free(&words);
    return store == NULL ? NULL : Py_BuildValue("Nn", store, source.at - PyBytes_AS_STRING(data));
}

/* Read a record; latest is the time of the last record with a consumer */
static int read_record(Source *source, Group *group, PyObject *holders, int64_t *latest)
{
    uint64_t parts;
    Id id;
    int64_t place = 0, count;
    if (take_size(source, LIST, &parts) < 0 || parts != 4)
        return PyErr_Occurred() ? -1 : malformed("4 parts expected");
    if (take_id(source, &id) < 0)
        return -1;
    if (index_get(&group->records, id) != NULL)
        return malformed("one entry pending twice");
    int tag = take_tag(source);
    if (tag == NONE) {
        if (skip(source, 3) < 0)
            return -1;
    } else if (take_between(source, tag, 0, PyList_GET_SIZE(holders) - 1, &place) < 0
               || take_between(source, take_tag(source), *latest, INT64_MAX, latest) < 0) {
        return -1;
    }
    if (take_between(source, take_tag(source), 0, INT64_MAX, &count) < 0)
        return -1;
    if (tag != NONE)
        return group_assign(group, id, (Consumer *)PyList_GET_ITEM(holders, place), *latest, count);
    if (group->released != group->records.size)
        return malformed("a released entry behind an owned one");
    return group_release(group, id, count);
}

static int are_consumers(PyObject *list)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++)
        if (Py_TYPE(PyList_GET_ITEM(list, i)) != &ConsumerType) {
            PyErr_SetString(PyExc_TypeError, "consumers are expected");
            return 0;
        }
    return 1;
}

/* read_records(data, at, group, holders) */
PyObject *read_records(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *data, *at, *holders;
    Group *group;
    Source source;
    uint64_t count;
    int64_t latest = OLDEST;
    if (!PyArg_ParseTuple(args, "OOO!O!", &data, &at, &GroupType, &group, &PyList_Type, &holders)
        || source_at(data, at, &source) < 0 || !are_consumers(holders) || take_size(&source, LIST, &count) < 0)
        return NULL;
    for (; count; count--)
        if (read_record(&source, group, holders, &latest) < 0)
            return NULL;
    return PyLong_FromSsize_t(source.at - PyBytes_AS_STRING(data));
}
