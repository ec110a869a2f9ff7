/* Consumer groups: doubles of PyGroup of millstream.engine.streams.group and of PyConsumer of its pending.py.
 *
 * pending.h has the invariants between calls. A change asks for all memory it needs before it changes anything. Taking
 * a record out of an index or out of the time order cannot fail.
 */
#include "pending.h"

/* Approximate size of the Python objects of a group and a consumer, without the consumer's name */
#define GROUP_SIZE 200
#define CONSUMER_SIZE 155

/* ---------------------------------------------------------------- the order of time */

static Moment *make_moment(Group *group, Id key)
{
    Moment *moment = count_block(PyMem_Malloc(sizeof *moment), sizeof *moment);
    if (moment == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *moment = (Moment){.key = key};
    if (index_add(&group->moments, (Item *)moment) < 0) {
        free_counted(moment, sizeof(Moment));
        return NULL;
    }
    return moment;
}

/* The moment of a time, created if necessary: it has no record then, and must be dropped if none is added */
static Moment *get_moment(Group *group, int64_t time)
{
    Id key = (uint64_t)time ^ TIME_SIGN;
    Moment *moment = (Moment *)index_last(&group->moments);
    if (moment == NULL || moment->key != key)
        moment = (Moment *)index_get(&group->moments, key);
    return moment != NULL ? moment : make_moment(group, key);
}

static void drop_moment(Group *group, Moment *moment)
{
    if (moment->last == NULL) {
        index_remove(&group->moments, moment->key);
        free_counted(moment, sizeof(Moment));
    }
}

static void link_behind(Group *group, Record *record, Record *before)
{
    Record *after = before == NULL ? group->head : before->after;
    record->before = before;
    record->after = after;
    if (before == NULL)
        group->head = record;
    else
        before->after = record;
    if (after != NULL)
        after->before = record;
}

/* Insert an owned record after all that were delivered no later */
static void order_insert(Group *group, Record *record, Moment *moment)
{
    Record *before = moment->last;
    if (before == NULL) { /* the first of its time */
        Moment *earlier = (Moment *)index_before(&group->moments, moment->key);
        before = earlier == NULL ? group->zone_end : earlier->last;
    }
    record->moment = moment;
    moment->last = record;
    link_behind(group, record, before);
}

static void order_release(Group *group, Record *record)
{
    link_behind(group, record, group->zone_end);
    group->zone_end = record;
    group->released++;
}

/* Remove a record; the moment `keep` stays even without a record */
static void order_remove(Group *group, Record *record, const Moment *keep)
{
    Moment *moment = record->moment;
    Record *before = record->before, *after = record->after;
    if (moment == NULL) {
        group->released--;
        if (group->zone_end == record)
            group->zone_end = before;
    } else if (moment->last == record) {
        moment->last = before != NULL && before->moment == moment ? before : NULL;
        if (moment != keep)
            drop_moment(group, moment);
    }
    if (before == NULL)
        group->head = after;
    else
        before->after = after;
    if (after != NULL)
        after->before = before;
}

/* ---------------------------------------------------------------- changes */

/* Create a record with this id in the group's index; NULL with an exception */
static Record *add_record(Group *group, Id id)
{
    Record *record = count_block(PyMem_Malloc(sizeof *record), sizeof *record);
    if (record == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *record = (Record){.id = id};
    if (index_add(&group->records, (Item *)record) < 0) {
        free_counted(record, sizeof *record);
        return NULL;
    }
    return record;
}

/* Remove a record from its consumer, if it has one */
static void disown(Record *record)
{
    if (record->consumer != NULL) {
        index_remove(&record->consumer->records, record->id);
        Py_CLEAR(record->consumer);
    }
}

/* Find or create the record with this id in the consumer's index; NULL with an exception */
static Record *own_record(Group *group, Id id, Consumer *consumer)
{
    if (consumer->records.size && consumer->of != group) {
        PyErr_SetString(PyExc_ValueError, "a consumer of another group");
        return NULL;
    }
    Record *found = (Record *)index_get(&group->records, id), *record = found;
    if (found != NULL && found->consumer == consumer)
        return found;
    if (record == NULL && (record = add_record(group, id)) == NULL)
        return NULL;
    if (index_add(&consumer->records, (Item *)record) < 0) {
        if (found == NULL) {
            index_remove(&group->records, id);
            free_counted(record, sizeof *record);
        }
        return NULL;
    }
    consumer->of = group;
    return record;
}

/* Put a record of the consumer's index in its place in time order; it may or may not have been there before */
static void settle(Group *group, Record *record, Consumer *consumer, Moment *moment)
{
    if (record->consumer != consumer) {
        disown(record);
        record->consumer = (Consumer *)Py_NewRef(consumer);
    }
    order_insert(group, record, moment);
    group->records.version++;
}

int group_assign(Group *group, Id id, Consumer *consumer, int64_t time, int64_t count)
{
    Moment *moment = get_moment(group, time);
    Py_ssize_t before = group->records.size;
    Record *record = moment == NULL ? NULL : own_record(group, id, consumer);
    if (record == NULL) {
        if (moment != NULL)
            drop_moment(group, moment);
        return -1;
    }
    if (group->records.size == before)
        order_remove(group, record, moment);
    record->count = count;
    settle(group, record, consumer, moment);
    return 0;
}

int group_claim(Group *group, Record *const *records, Py_ssize_t count, Consumer *consumer, int64_t time)
{
    Moment *moment = get_moment(group, time);
    if (moment == NULL)
        return -1;
    for (Py_ssize_t at = 0; at < count; at++)
        if (records[at]->consumer != consumer && index_add(&consumer->records, (Item *)records[at]) < 0) {
            while (at--)
                if (records[at]->consumer != consumer)
                    index_remove(&consumer->records, records[at]->id);
            drop_moment(group, moment);
            return -1;
        }
    consumer->of = group;
    for (Py_ssize_t at = 0; at < count; at++) {
        order_remove(group, records[at], moment);
        settle(group, records[at], consumer, moment);
    }
    return 0;
}

int group_release(Group *group, Id id, int64_t count)
{
    Record *record = (Record *)index_get(&group->records, id);
    if (record != NULL)
        order_remove(group, record, NULL);
    else if ((record = add_record(group, id)) == NULL)
        return -1;
    disown(record);
    record->moment = NULL;
    record->count = count;
    order_release(group, record);
    group->records.version++;
    return 0;
}

int group_forget(Group *group, Id id)
{
    Record *record = (Record *)index_remove(&group->records, id);
    if (record == NULL)
        return 0;
    order_remove(group, record, NULL);
    disown(record);
    free_counted(record, sizeof *record);
    return 1;
}

/* ---------------------------------------------------------------- what Python calls */

static int wanted(Py_ssize_t got, Py_ssize_t count)
{
    if (got != count)
        PyErr_Format(PyExc_TypeError, "%zd arguments expected, not %zd", count, got);
    return got == count ? 0 : -1;
}

static int get_int(PyObject *number, int64_t *value)
{
    *value = PyLong_AsLongLong(number);
    return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

static Consumer *get_consumer(PyObject *object)
{
    if (Py_TYPE(object) == &ConsumerType)
        return (Consumer *)object;
    PyErr_Format(PyExc_TypeError, "a consumer expected, not %.100s", Py_TYPE(object)->tp_name);
    return NULL;
}

static PyObject *new_consumer(PyObject *name, long long seen)
{
    if (!PyBytes_CheckExact(name)) {
        PyErr_SetString(PyExc_TypeError, "a consumer's name is bytes");
        return NULL;
    }
    Consumer *consumer = PyObject_New(Consumer, &ConsumerType);
    if (consumer != NULL) {
        consumer->name = Py_NewRef(name);
        consumer->seen = seen;
        consumer->active = -1;
        consumer->of = NULL;
        consumer->records = (Index){0};
        counted += CONSUMER_SIZE + PyBytes_GET_SIZE(name);
    }
    return (PyObject *)consumer;
}

/* consumer(name, now) */
static PyObject *find_consumer(Group *group, PyObject *const *args, Py_ssize_t nargs)
{
    int64_t seen;
    if (wanted(nargs, 2) < 0 || get_int(args[1], &seen) < 0)
        return NULL;
    PyObject *found = PyDict_GetItemWithError(group->consumers, args[0]);
    if (found != NULL || PyErr_Occurred())
        return Py_XNewRef(found);
    found = new_consumer(args[0], seen);
    if (found != NULL && PyDict_SetItem(group->consumers, args[0], found) < 0)
        Py_CLEAR(found);
    return found;
}

/* assign(entry_id, consumer, time, count) */
static PyObject *assign(Group *group, PyObject *const *args, Py_ssize_t nargs)
{
    Id id;
    int64_t time, count;
    Consumer *consumer;
    if (wanted(nargs, 4) < 0 || id_from_int(args[0], &id) < 0 || (consumer = get_consumer(args[1])) == NULL
        || get_int(args[2], &time) < 0 || get_int(args[3], &count) < 0
        || group_assign(group, id, consumer, time, count) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* release(entry_id, count) */
static PyObject *release(Group *group, PyObject *const *args, Py_ssize_t nargs)
{
    Id id;
    int64_t count;
    if (wanted(nargs, 2) < 0 || id_from_int(args[0], &id) < 0 || get_int(args[1], &count) < 0
        || group_release(group, id, count) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* restore(entry_id, consumer or None, time, count) */
static PyObject *restore(Group *group, PyObject *const *args, Py_ssize_t nargs)
{
    Id id;
    if (wanted(nargs, 4) < 0 || id_from_int(args[0], &id) < 0)
        return NULL;
    if (index_get(&group->records, id) != NULL)
        return PyErr_Format(PyExc_ValueError, "one entry pending twice");
    if (args[1] != Py_None)
        return assign(group, args, nargs);
    PyObject *left[] = {args[0], args[3]};
    return release(group, left, 2);
}

static PyObject *restored(PyObject *Py_UNUSED(group), PyObject *Py_UNUSED(nothing))
{
    Py_RETURN_NONE;
}

static PyObject *forget(Group *group, PyObject *number)
{
    Id id;
    int side = id_clamp(number, &id);
    return side == -2 ? NULL : PyBool_FromLong(side == 0 && group_forget(group, id));
}

/* Number of ids packed in bytes; -1 with an exception */
static Py_ssize_t packed_ids(PyObject *packed)
{
    if (PyBytes_Check(packed) && PyBytes_GET_SIZE(packed) % 16 == 0)
        return PyBytes_GET_SIZE(packed) / 16;
    PyErr_SetString(PyExc_ValueError, "packed ids are bytes, 16 each");
    return -1;
}

static PyObject *forget_all(Group *group, PyObject *packed)
{
    Py_ssize_t count = packed_ids(packed), forgotten = 0;
    for (Py_ssize_t at = 0; at < count; at++)
        forgotten += group_forget(group, id_from_bytes(PyBytes_AS_STRING(packed) + 16 * at));
    return count < 0 ? NULL : PyLong_FromSsize_t(forgotten);
}

/* assign_all(packed, consumer, time, counts) */
static PyObject *assign_all(Group *group, PyObject *const *args, Py_ssize_t nargs)
{
    int64_t time, deliveries;
    Consumer *consumer;
    if (wanted(nargs, 4) < 0 || (consumer = get_consumer(args[1])) == NULL || get_int(args[2], &time) < 0)
        return NULL;
    Py_ssize_t count = packed_ids(args[0]);
    if (count < 0)
        return NULL;
    if (!PyList_Check(args[3]) || PyList_GET_SIZE(args[3]) != count) {
        PyErr_SetString(PyExc_ValueError, "as many counts as ids expected");
        return NULL;
    }
    for (Py_ssize_t at = 0; at < count; at++)
        if (get_int(PyList_GET_ITEM(args[3], at), &deliveries) < 0
            || group_assign(group, id_from_bytes(PyBytes_AS_STRING(args[0]) + 16 * at), consumer, time, deliveries) < 0)
            return NULL;
    Py_RETURN_NONE;
}

static PyObject *drop_consumer(Group *group, PyObject *name)
{
    PyObject *found = PyDict_GetItemWithError(group->consumers, name);
    if (found == NULL)
        return PyErr_Occurred() ? NULL : PyLong_FromLong(0);
    Consumer *consumer = get_consumer(found);
    if (consumer == NULL)
        return NULL;
    Py_INCREF(consumer);
    Py_ssize_t dropped = 0;
    if (PyDict_DelItem(group->consumers, name) == 0) {
        Item *last;
        for (; (last = index_last(&consumer->records)) != NULL && group_forget(group, last->key); dropped++)
            ;
    }
    Py_DECREF(consumer);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(dropped);
}

/* ---------------------------------------------------------------- the group as an object */

static Group *new_group(Id last_id, long long entries_read)
{
    PyObject *consumers = PyDict_New();
    Group *group = consumers == NULL ? NULL : (Group *)PyType_GenericAlloc(&GroupType, 0);
    if (group == NULL) {
        Py_XDECREF(consumers);
        return NULL;
    }
    group->last_id = last_id;
    group->entries_read = entries_read;
    group->consumers = consumers;
    counted += GROUP_SIZE;
    return group;
}

static PyObject *make_group(PyTypeObject *Py_UNUSED(type), PyObject *args, PyObject *keywords)
{
    static char *names[] = {"last_id", "entries_read", NULL};
    PyObject *last;
    long long entries_read;
    Id last_id;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OL", names, &last, &entries_read) || id_from_int(last, &last_id) < 0)
        return NULL;
    return (PyObject *)new_group(last_id, entries_read);
}

static void free_group(Group *group)
{
    for (Record *record = group->head, *after; record != NULL; record = after) {
        after = record->after;
        if (record->consumer != NULL) {
            index_clear(&record->consumer->records); /* it may outlive the group */
            Py_DECREF(record->consumer);
        }
        free_counted(record, sizeof *record);
    }
    IndexPlace place;
    for (Item *moment = index_seek(&group->moments, 0, &place); moment != NULL; moment = index_next(&group->moments, &place))
        free_counted(moment, sizeof(Moment));
    index_clear(&group->moments);
    index_clear(&group->records);
    Py_XDECREF(group->consumers);
    counted -= GROUP_SIZE;
    Py_TYPE(group)->tp_free((PyObject *)group);
}

static int copy_consumers(const Group *group, Group *twin)
{
    PyObject *name, *found;
    Py_ssize_t at = 0;
    while (PyDict_Next(group->consumers, &at, &name, &found)) {
        Consumer *consumer = get_consumer(found);
        PyObject *other = consumer == NULL ? NULL : new_consumer(name, consumer->seen);
        if (other == NULL)
            return -1;
        ((Consumer *)other)->active = consumer->active;
        int status = PyDict_SetItem(twin->consumers, name, other);
        Py_DECREF(other);
        if (status < 0)
            return -1;
    }
    return 0;
}

static PyObject *copy(Group *group, PyObject *Py_UNUSED(nothing))
{
    Group *twin = new_group(group->last_id, group->entries_read);
    if (twin == NULL)
        return NULL;
    int status = copy_consumers(group, twin);
    for (Record *record = group->head; record != NULL && status == 0; record = record->after) {
        if (record->consumer == NULL) {
            status = group_release(twin, record->id, record->count);
            continue;
        }
        PyObject *other = PyDict_GetItemWithError(twin->consumers, record->consumer->name);
        if (other == NULL && !PyErr_Occurred())
            PyErr_SetObject(PyExc_KeyError, record->consumer->name);
        status = other == NULL ? -1 : group_assign(twin, record->id, (Consumer *)other, record_time(record), record->count);
    }
    if (status < 0)
        Py_CLEAR(twin);
    return (PyObject *)twin;
}

static PyObject *get_last_id(Group *group, void *Py_UNUSED(closure))
{
    return id_to_int(group->last_id);
}

static int set_last_id(Group *group, PyObject *value, void *Py_UNUSED(closure))
{
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "last_id stays");
        return -1;
    }
    return id_from_int(value, &group->last_id);
}

static PyObject *get_pending(Group *group, void *Py_UNUSED(closure))
{
    return index_view((PyObject *)group, &group->records);
}

/* Counted size, see bytes.h, computed again */
static PyObject *footprint(Group *group, void *Py_UNUSED(closure))
{
    PyObject *name, *found;
    Py_ssize_t at = 0, size = GROUP_SIZE + index_memory(&group->records) + index_memory(&group->moments)
                              + group->records.size * block_size(sizeof(Record)) + group->moments.size * block_size(sizeof(Moment));
    while (PyDict_Next(group->consumers, &at, &name, &found)) {
        Consumer *consumer = get_consumer(found);
        if (consumer == NULL)
            return NULL;
        size += CONSUMER_SIZE + PyBytes_GET_SIZE(consumer->name) + index_memory(&consumer->records);
    }
    return PyLong_FromSsize_t(size);
}

static PyMethodDef group_methods[] = {
    {"consumer", (PyCFunction)(void (*)(void))find_consumer, METH_FASTCALL, NULL},
    {"assign", (PyCFunction)(void (*)(void))assign, METH_FASTCALL, NULL},
    {"assign_all", (PyCFunction)(void (*)(void))assign_all, METH_FASTCALL, NULL},
    {"release", (PyCFunction)(void (*)(void))release, METH_FASTCALL, NULL},
    {"restore", (PyCFunction)(void (*)(void))restore, METH_FASTCALL, NULL},
    {"restored", restored, METH_NOARGS, NULL},
    {"forget", (PyCFunction)forget, METH_O, NULL},
    {"forget_all", (PyCFunction)forget_all, METH_O, NULL},
    {"drop_consumer", (PyCFunction)drop_consumer, METH_O, NULL},
    {"claimable", (PyCFunction)(void (*)(void))group_claimable, METH_VARARGS | METH_KEYWORDS, NULL},
    {"copy", (PyCFunction)copy, METH_NOARGS, NULL},
    {NULL},
};

static PyMemberDef group_members[] = {
    {"entries_read", Py_T_LONGLONG, offsetof(Group, entries_read), 0, NULL},
    {"consumers", Py_T_OBJECT_EX, offsetof(Group, consumers), Py_READONLY, NULL},
    {NULL},
};

static PyGetSetDef group_properties[] = {
    {"last_id", (getter)get_last_id, (setter)set_last_id, NULL, NULL},
    {"pending", (getter)get_pending, NULL, NULL, NULL},
    {"order", (getter)order_view, NULL, NULL, NULL},
    {"footprint", (getter)footprint, NULL, NULL, NULL},
    {NULL},
};

PyTypeObject GroupType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "millstream._native.Group",
    .tp_doc = "One consumer group; see PyGroup in millstream.engine.streams.group.",
    .tp_basicsize = sizeof(Group),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = make_group,
    .tp_dealloc = (destructor)free_group,
    .tp_methods = group_methods,
    .tp_members = group_members,
    .tp_getset = group_properties,
};

/* ---------------------------------------------------------------- the consumer as an object */

static PyObject *make_consumer(PyTypeObject *Py_UNUSED(type), PyObject *args, PyObject *keywords)
{
    static char *names[] = {"name", "seen", NULL};
    PyObject *name;
    long long seen;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "SL", names, &name, &seen))
        return NULL;
    return new_consumer(name, seen);
}

static void free_consumer(Consumer *consumer)
{
    index_clear(&consumer->records); /* no records exist, since each would keep it alive */
    counted -= CONSUMER_SIZE + PyBytes_GET_SIZE(consumer->name);
    Py_DECREF(consumer->name);
    PyObject_Free(consumer);
}

static PyObject *get_own(Consumer *consumer, void *Py_UNUSED(closure))
{
    return index_view((PyObject *)consumer, &consumer->records);
}

static PyMemberDef consumer_members[] = {
    {"name", Py_T_OBJECT_EX, offsetof(Consumer, name), Py_READONLY, NULL},
    {"seen", Py_T_LONGLONG, offsetof(Consumer, seen), 0, NULL},
    {"active", Py_T_LONGLONG, offsetof(Consumer, active), 0, NULL},
    {NULL},
};

static PyGetSetDef consumer_properties[] = {
    {"pending", (getter)get_own, NULL, NULL, NULL},
    {NULL},
};

PyTypeObject ConsumerType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "millstream._native.Consumer",
    .tp_doc = "One consumer of a group; see PyConsumer in millstream.engine.streams.pending.",
    .tp_basicsize = sizeof(Consumer),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = make_consumer,
    .tp_dealloc = (destructor)free_consumer,
    .tp_members = consumer_members,
    .tp_getset = consumer_properties,
};
