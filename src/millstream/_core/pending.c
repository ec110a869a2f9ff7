/* A group's records as Python sees them: IdIndex and TimeOrder of millstream.engine.streams.pending, and the rows of
 * replies. A record that Python holds is a copy, and never changes.
 *
 * Invariant: a walk holds the owner of its records, and the owner's version, which it compares before it looks at a
 * record. It reads a record's fields before it makes an object of them, since making one may run other code.
 */
#include "extent.h"
#include "pending.h"

static PyTypeObject PendingType;

typedef struct {
    PyObject_HEAD
    PyObject *owner; /* the group, or the consumer */
    Index *index;
} IndexView;

typedef struct {
    PyObject_HEAD
    PyObject *owner;
    const Index *index; /* object with the version to compare */
    uint64_t version;
    IndexPlace place;
    Record *next;
    int by_time;
} RecordWalk;

/* ---------------------------------------------------------------- one record, walks */

static PyObject *show(const Record *record)
{
    PyObject *fields[] = {NULL, Py_NewRef(record->consumer == NULL ? Py_None : (PyObject *)record->consumer), NULL, NULL};
    Id id = record->id;
    int64_t time = record_time(record), count = record->count;
    PyObject *shown = PyStructSequence_New(&PendingType);
    fields[0] = id_to_int(id);
    fields[2] = PyLong_FromLongLong(time);
    fields[3] = PyLong_FromLongLong(count);
    if (shown == NULL || fields[0] == NULL || fields[2] == NULL || fields[3] == NULL) {
        for (int at = 0; at < 4; at++)
            Py_XDECREF(fields[at]);
        Py_CLEAR(shown);
    }
    for (int at = 0; shown != NULL && at < 4; at++)
        PyStructSequence_SET_ITEM(shown, at, fields[at]);
    return shown;
}

static RecordWalk *new_walk(PyObject *owner, const Index *index)
{
    RecordWalk *walk = PyObject_New(RecordWalk, &RecordWalkType);
    if (walk != NULL) {
        walk->owner = Py_NewRef(owner);
        walk->index = index;
        walk->version = index->version;
        walk->next = NULL;
        walk->by_time = 0;
    }
    return walk;
}

static void free_walk(RecordWalk *walk)
{
    Py_DECREF(walk->owner);
    PyObject_Free(walk);
}

static PyObject *walk_on(RecordWalk *walk)
{
    Record *record = walk->next;
    if (record == NULL)
        return NULL;
    if (walk->version != walk->index->version) {
        PyErr_SetString(PyExc_RuntimeError, "the records changed while somebody went through them");
        return NULL;
    }
    walk->next = walk->by_time ? record->after : (Record *)index_next(walk->index, &walk->place);
    return show(record);
}

PyTypeObject RecordWalkType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "millstream._native.RecordWalk",
    .tp_doc = "Records one by one, until one of them changes.",
    .tp_basicsize = sizeof(RecordWalk),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)free_walk,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = (iternextfunc)walk_on,
};

/* ---------------------------------------------------------------- rows of replies */

static char *put_signed(char *at, __int128 number)
{
    if (number >= 0)
        return put_head(at, ':', (uint64_t)number);
    *at++ = ':';
    *at++ = '-';
    at = put_number(at, (uint64_t)-number);
    return put_bytes(at, "\r\n", 2);
}

/* One row: the id, the name unless the row is in the consumer's own list, a time, deliveries */
static int add_row(Buf *out, const Record *record, int own, __int128 time)
{
    PyObject *name = record->consumer == NULL ? NULL : record->consumer->name;
    Py_ssize_t size = own || name == NULL ? 0 : PyBytes_GET_SIZE(name);
    if (buf_reserve(out, 6 * HEAD_ROOM + ID_ROOM + size + 8) < 0)
        return -1;
    char *at = put_id_bulk(put_head(out->data + out->size, '*', own ? 3 : 4), record->id);
    if (!own)
        at = put_bulk(at, name == NULL ? "" : PyBytes_AS_STRING(name), size);
    out->size = put_signed(put_signed(at, time), record->count) - out->data;
    return 0;
}

int record_is_idle(const Record *record, int64_t min_idle, int64_t now)
{
    return !min_idle || record->moment == NULL || (__int128)now - record_time(record) >= min_idle;
}

/* Return the number of rows and their bytes; free the buffer */
static PyObject *rows_made(Py_ssize_t count, Buf *out)
{
    PyObject *bytes = count < 0 ? NULL : buf_bytes(out);
    buf_free(out);
    return bytes == NULL ? NULL : Py_BuildValue("nN", count, bytes);
}

Py_ssize_t index_rows(const Index *index, Id start, Id end, int64_t count, int64_t min_idle, int64_t now, Py_ssize_t bytes,
                      Buf *out)
{
    Py_ssize_t made = 0;
    IndexPlace place;
    Record *record = (Record *)index_seek(index, start, &place);
    for (; record != NULL && record->id <= end && made < count && out->size < bytes;
         record = (Record *)index_next(index, &place)) {
        __int128 idle = record->moment == NULL ? -1 : (__int128)now - record_time(record);
        if (record->moment != NULL && idle < 0)
            idle = 0;
        if (record->moment != NULL && idle < min_idle)
            continue;
        if (add_row(out, record, 0, idle) < 0)
            return -1;
        made++;
    }
    return made;
}

/* idle_rows(start, end, count, min_idle, now) */
static PyObject *idle_rows(IndexView *view, PyObject *args)
{
    PyObject *first, *last;
    Id start, end;
    long long count, min_idle, now;
    if (!PyArg_ParseTuple(args, "OOLLL", &first, &last, &count, &min_idle, &now))
        return NULL;
    int low = id_clamp(first, &start), high = id_clamp(last, &end);
    if (low == -2 || high == -2)
        return NULL;
    Buf out = {0};
    if (low > 0 || high < 0)
        count = 0;
    return rows_made(index_rows(view->index, start, end, count, min_idle, now, PY_SSIZE_T_MAX, &out), &out);
}

/* rows(count, *, own) */
static PyObject *rows(IndexView *view, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"count", "own", NULL};
    long long count;
    int own;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "L$p", names, &count, &own))
        return NULL;
    Py_ssize_t made = 0;
    Buf out = {0};
    IndexPlace place;
    Record *record = (Record *)index_seek(view->index, 0, &place);
    for (; record != NULL && made != count; record = (Record *)index_next(view->index, &place), made++)
        if (add_row(&out, record, own, record_time(record)) < 0) {
            made = -1;
            break;
        }
    return rows_made(made, &out);
}

/* ---------------------------------------------------------------- what may be claimed */

int find_on(Walk *walk, EntryStore *store, Id id, Entry *entry)
{
    int found = 1;
    if (walk->node == NULL || id > walk->node->last) {
        walk_end(walk);
        walk_begin(walk, store, id, is_cold_id(store, id) ? id : ID_MAX, 0); /* no cold node is read that lies behind it */
        walk->ahead = ID_MAX;
        walk->wanted = 1; /* the next one may be far */
        found = walk_node(walk);
        if (found > 0 && walk->is_cold)
            walk->end = walk->node->last; /* all of this node may be asked for next */
        if (found > 0)
            found = walk_next(walk, entry);
    }
    while (found > 0 && entry->id < id)
        found = walk_next(walk, entry);
    return found > 0 ? entry->id == id : found;
}

void found_free(Found *found)
{
    buf_free(&found->records);
    buf_free(&found->gone);
}

int group_look(Group *group, EntryStore *store, Id start, int64_t min_idle, int64_t now, int64_t most, int64_t looks, Found *found)
{
    Walk walk = {0};
    Entry entry;
    IndexPlace place;
    int there = 0;
    uint64_t version = group->records.version;
    Record *record = (Record *)index_seek(&group->records, start, &place);
    for (; record != NULL && there >= 0; record = (Record *)index_next(&group->records, &place)) {
        if (!most || !looks) {
            found->cursor = record->id;
            break;
        }
        looks--;
        there = find_on(&walk, store, record->id, &entry);
        if (there >= 0 && version != group->records.version) {
            PyErr_SetString(PyExc_RuntimeError, "the group changed while its entries were read");
            there = -1;
        }
        if (there < 0)
            break;
        if (there == 0) {
            if (buf_add(&found->gone, (const char *)&record->id, sizeof(Id)) < 0)
                there = -1;
        } else if (!record_is_idle(record, min_idle, now))
            continue;
        else if (buf_add(&found->records, (const char *)&record, sizeof record) < 0)
            there = -1;
        most--;
    }
    walk_end(&walk);
    return there < 0 ? -1 : 0;
}

/* Build Claimable from the results, as a tuple; creating a list may run code that changes the group */
static PyObject *show_found(const Group *group, const Found *found)
{
    uint64_t version = group->records.version;
    Py_ssize_t count = FOUND_COUNT(found), gone = found->gone.size / (Py_ssize_t)sizeof(Id);
    PyObject *parts[] = {id_to_int(found->cursor), PyBytes_FromStringAndSize(NULL, 16 * count), PyList_New(count),
                         PyBytes_FromStringAndSize(NULL, 16 * gone)};
    PyObject *result = NULL;
    if (parts[0] == NULL || parts[1] == NULL || parts[2] == NULL || parts[3] == NULL)
        goto end;
    if (version != group->records.version) {
        PyErr_SetString(PyExc_RuntimeError, "the records changed while somebody went through them");
        goto end;
    }
    for (Py_ssize_t at = 0; at < gone; at++)
        id_to_bytes(((const Id *)found->gone.data)[at], PyBytes_AS_STRING(parts[3]) + 16 * at);
    for (Py_ssize_t at = 0; at < count; at++) {
        const Record *record = FOUND(found)[at];
        PyObject *number = PyLong_FromLongLong(record->count);
        if (number == NULL)
            goto end;
        id_to_bytes(record->id, PyBytes_AS_STRING(parts[1]) + 16 * at);
        PyList_SET_ITEM(parts[2], at, number);
    }
    result = PyTuple_Pack(4, parts[0], parts[1], parts[2], parts[3]);
end:
    for (int at = 0; at < 4; at++)
        Py_XDECREF(parts[at]);
    return result;
}

/* claimable(entries, start, min_idle, now, *, most, looks) */
PyObject *group_claimable(Group *group, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"entries", "start", "min_idle", "now", "most", "looks", NULL};
    EntryStore *store;
    PyObject *first;
    long long min_idle, now, most, looks;
    Id start;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!OLL$LL", names, &EntryStoreType, &store, &first, &min_idle, &now,
                                     &most, &looks))
        return NULL;
    int side = id_clamp(first, &start);
    if (side == -2)
        return NULL;
    Found found = {0};
    int failed = side <= 0 && group_look(group, store, start, min_idle, now, most, looks, &found) < 0;
    PyObject *result = failed ? NULL : show_found(group, &found);
    found_free(&found);
    return result;
}

/* ---------------------------------------------------------------- the records by id */

PyObject *index_view(PyObject *owner, Index *index)
{
    IndexView *view = PyObject_New(IndexView, &IndexViewType);
    if (view != NULL) {
        view->owner = Py_NewRef(owner);
        view->index = index;
    }
    return (PyObject *)view;
}

static void free_view(IndexView *view)
{
    Py_DECREF(view->owner);
    PyObject_Free(view);
}

static Py_ssize_t length(IndexView *view) { return view->index->size; }

static int contains(IndexView *view, PyObject *number)
{
    Id id;
    int side = id_clamp(number, &id);
    return side == -2 ? -1 : side == 0 && index_get(view->index, id) != NULL;
}

static PyObject *get(IndexView *view, PyObject *number)
{
    Id id;
    int side = id_clamp(number, &id);
    Record *record = side == 0 ? (Record *)index_get(view->index, id) : NULL;
    return side == -2 ? NULL : record == NULL ? Py_NewRef(Py_None) : show(record);
}

static PyObject *walk(IndexView *view, PyObject *const *args, Py_ssize_t nargs)
{
    Id start = 0;
    int side = nargs ? id_clamp(args[0], &start) : 0;
    RecordWalk *walk = side == -2 ? NULL : new_walk(view->owner, view->index);
    if (walk != NULL && side <= 0)
        walk->next = (Record *)index_seek(view->index, start, &walk->place);
    return (PyObject *)walk;
}

static PyObject *end(IndexView *view, int last)
{
    IndexPlace place;
    Item *item = last ? index_last(view->index) : index_seek(view->index, 0, &place);
    if (item != NULL)
        return id_to_int(item->key);
    PyErr_SetString(PyExc_IndexError, "there is no record");
    return NULL;
}

static PyObject *first(IndexView *view, PyObject *Py_UNUSED(nothing)) { return end(view, 0); }

static PyObject *last(IndexView *view, PyObject *Py_UNUSED(nothing)) { return end(view, 1); }

static PyMethodDef index_methods[] = {
    {"get", (PyCFunction)get, METH_O, NULL},
    {"walk", (PyCFunction)(void (*)(void))walk, METH_FASTCALL, NULL},
    {"first", (PyCFunction)first, METH_NOARGS, NULL},
    {"last", (PyCFunction)last, METH_NOARGS, NULL},
    {"idle_rows", (PyCFunction)idle_rows, METH_VARARGS, NULL},
    {"rows", (PyCFunction)(void (*)(void))rows, METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL},
};

static PySequenceMethods index_sequence = {.sq_length = (lenfunc)length, .sq_contains = (objobjproc)contains};

PyTypeObject IndexViewType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "millstream._native.IdIndex",
    .tp_doc = "Records by id, in id order; see IdIndex in millstream.engine.streams.pending.",
    .tp_basicsize = sizeof(IndexView),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)free_view,
    .tp_methods = index_methods,
    .tp_as_sequence = &index_sequence,
};

/* ---------------------------------------------------------------- the records by time */

PyObject *order_view(Group *group, void *Py_UNUSED(closure))
{
    IndexView *view = PyObject_New(IndexView, &OrderViewType);
    if (view != NULL) {
        view->owner = Py_NewRef(group);
        view->index = &group->records;
    }
    return (PyObject *)view;
}

static PyObject *iterate(IndexView *view)
{
    RecordWalk *walk = new_walk(view->owner, view->index);
    if (walk != NULL) {
        walk->by_time = 1;
        walk->next = ((Group *)view->owner)->head;
    }
    return (PyObject *)walk;
}

static PyObject *get_released(IndexView *view, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(((Group *)view->owner)->released);
}

static PyGetSetDef order_properties[] = {
    {"released", (getter)get_released, NULL, NULL, NULL},
    {NULL},
};

PyTypeObject OrderViewType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "millstream._native.TimeOrder",
    .tp_doc = "Records by time; see TimeOrder in millstream.engine.streams.pending.",
    .tp_basicsize = sizeof(IndexView),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)free_view,
    .tp_iter = (getiterfunc)iterate,
    .tp_getset = order_properties,
};

static PyStructSequence_Field pending_fields[] = {
    {"id", NULL}, {"consumer", NULL}, {"time", NULL}, {"count", NULL}, {NULL, NULL},
};
static PyStructSequence_Desc pending_description = {
    "millstream._native.Pending", "A record as it was; see Pending in millstream.engine.streams.pending.", pending_fields, 4,
};

int pending_prepare(void)
{
    return PendingType.tp_name != NULL ? 0 : PyStructSequence_InitType2(&PendingType, &pending_description);
}
