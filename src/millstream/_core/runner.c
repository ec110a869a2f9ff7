/* The runner of plain commands as Python has it: its methods, and its type. */
#include "runs.h"

/* run(db, data, at, wall, resp), and obey(db, data, at, wall, is_open) */
static PyObject *run_or_obey(Runner *self, PyObject *const *args, Py_ssize_t nargs, int obeys)
{
    if (nargs != 5 || !PyBytes_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "(db, data, at, wall, resp or is_open)");
        return NULL;
    }
    Run run = {.of = self, .obeys = obeys};
    PyObject *other = NULL, *result = NULL;
    Py_ssize_t size = PyBytes_GET_SIZE(args[1]), first = PyLong_AsSsize_t(args[2]), count = 0;
    run.wall = PyLong_AsUnsignedLongLong(args[3]);
    run.resp = (int)PyLong_AsLong(args[4]);
    if (PyErr_Occurred())
        return NULL;
    if (first < 0 || first > size) {
        PyErr_SetString(PyExc_ValueError, "a position outside the data");
        return NULL;
    }
    if (open_run(&run, args[0]) == 0) {
        Command last = OTHER;
        const char *data = PyBytes_AS_STRING(args[1]);
        const char *whole = data + first, *at = obeys ? obey_commands(&run, &whole, data + size, run.resp, &other, &count, &last)
                                                      : run_commands(&run, whole, data + size, &other, &count, &last);
        if (!obeys)
            whole = at;
        settle_growth(&run);
        result = make_result(&run, at - data, other, count, last, whole - data);
    }
    close_run(&run);
    return result;
}

static PyObject *runner_run(Runner *self, PyObject *const *args, Py_ssize_t nargs)
{
    return run_or_obey(self, args, nargs, 0);
}

static PyObject *runner_obey(Runner *self, PyObject *const *args, Py_ssize_t nargs)
{
    return run_or_obey(self, args, nargs, 1);
}

static PyObject *runner_drain(Runner *self, PyObject *Py_UNUSED(nothing))
{
    PyObject *list = PyList_New(COMMANDS);
    for (Command at = 0; list != NULL && at < COMMANDS; at++) {
        PyObject *counted = Py_BuildValue("(OKK)", PyTuple_GET_ITEM(command_names, at), (unsigned long long)self->calls[at],
                                          (unsigned long long)self->nanoseconds[at]);
        if (counted == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, at, counted);
    }
    if (list != NULL) {
        memset(self->calls, 0, sizeof self->calls);
        memset(self->nanoseconds, 0, sizeof self->nanoseconds);
    }
    return list;
}

/* ---------------------------------------------------------------- the type */

static PyTypeObject *find_type(const char *module, const char *name)
{
    PyObject *found = PyImport_ImportModule(module), *type = NULL;
    if (found != NULL) {
        type = PyObject_GetAttrString(found, name);
        Py_DECREF(found);
    }
    return (PyTypeObject *)type;
}

/* The offset of one of a type's slots; -1 with an exception */
static Py_ssize_t find_slot(PyTypeObject *type, const char *name)
{
    PyObject *found = PyObject_GetAttrString((PyObject *)type, name);
    Py_ssize_t at = -1;
    if (found != NULL && Py_IS_TYPE(found, &PyMemberDescr_Type))
        at = ((PyMemberDescrObject *)found)->d_member->offset;
    else if (found != NULL)
        PyErr_Format(PyExc_TypeError, "%s is not a slot", name);
    Py_XDECREF(found);
    return at;
}

static PyObject *runner_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"config", "waiting", "claiming", "records", NULL};
    PyObject *config, *waiting, *claiming;
    int records;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O!p", keywords, &config, &PyDict_Type, &waiting, &PyDict_Type,
                                     &claiming, &records))
        return NULL;
    Runner *self = (Runner *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->config = Py_NewRef(config);
    self->waiting = Py_NewRef(waiting);
    self->claiming = Py_NewRef(claiming);
    self->rights = Py_NewRef(Py_None);
    self->records = records;
    self->room = LLONG_MAX;
    self->stream_type = find_type("millstream.engine.streams.stream", "Stream");
    self->string_type = find_type("millstream.engine.keyspace", "StringValue");
    self->slow = PyList_New(0);
    if (self->stream_type == NULL || self->string_type == NULL || self->slow == NULL
        || (self->data_at = find_slot(self->string_type, "_data")) < 0
        || (self->buffer_at = find_slot(self->string_type, "_buffer")) < 0
        || (self->entries_at = find_slot(self->stream_type, "entries")) < 0
        || (self->last_id_at = find_slot(self->stream_type, "last_id")) < 0
        || (self->added_at = find_slot(self->stream_type, "entries_added")) < 0
        || (self->groups_at = find_slot(self->stream_type, "groups")) < 0
        || (self->max_deleted_at = find_slot(self->stream_type, "max_deleted")) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int runner_traverse(Runner *self, visitproc visit, void *arg)
{
    Py_VISIT(self->config);
    Py_VISIT(self->waiting);
    Py_VISIT(self->claiming);
    Py_VISIT(self->rights);
    Py_VISIT(self->stream_type);
    Py_VISIT(self->string_type);
    Py_VISIT(self->slow);
    Py_VISIT(self->script.database);
    Py_VISIT(self->script.keys);
    Py_VISIT(self->script.expires);
    Py_VISIT(self->table);
    Py_VISIT(self->faults);
    return 0;
}

static int runner_clear(Runner *self)
{
    Py_CLEAR(self->config);
    Py_CLEAR(self->waiting);
    Py_CLEAR(self->claiming);
    Py_CLEAR(self->rights);
    Py_CLEAR(self->stream_type);
    Py_CLEAR(self->string_type);
    Py_CLEAR(self->slow);
    end_script(self);
    return 0;
}

static void runner_dealloc(Runner *self)
{
    PyObject_GC_UnTrack(self);
    runner_clear(self);
    buf_free(&self->replies);
    buf_free(&self->steps);
    buf_free(&self->words);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef runner_methods[] = {
    {"run", (PyCFunction)(void (*)(void))runner_run, METH_FASTCALL, "See millstream.node.plain.PlainRunner."},
    {"obey", (PyCFunction)(void (*)(void))runner_obey, METH_FASTCALL, "See millstream.node.plain.PlainRunner."},
    {"begin", (PyCFunction)(void (*)(void))runner_begin, METH_FASTCALL, "See millstream.node.plain.PlainRunner."},
    {"call", (PyCFunction)runner_call, METH_O, "See millstream.node.plain.PlainRunner."},
    {"end", (PyCFunction)runner_end, METH_NOARGS, "See millstream.node.plain.PlainRunner."},
    {"drain", (PyCFunction)runner_drain, METH_NOARGS, "See millstream.node.plain.PlainRunner."},
    {NULL},
};

static PyMemberDef runner_members[] = {
    {"records", Py_T_INT, offsetof(Runner, records), 0, "See millstream.node.plain.PlainRunner."},
    {"rights", Py_T_OBJECT_EX, offsetof(Runner, rights), 0, "See millstream.node.plain.PlainRunner."},
    {"room", Py_T_LONGLONG, offsetof(Runner, room), 0, "See millstream.node.plain.PlainRunner."},
    {"slow", Py_T_OBJECT_EX, offsetof(Runner, slow), Py_READONLY, "See millstream.node.plain.PlainRunner."},
    {NULL},
};

PyTypeObject RunnerType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "millstream._native.PlainRunner",
    .tp_doc = "Runs plain commands; see millstream.node.batch.",
    .tp_basicsize = sizeof(Runner),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = runner_new,
    .tp_traverse = (traverseproc)runner_traverse,
    .tp_clear = (inquiry)runner_clear,
    .tp_dealloc = (destructor)runner_dealloc,
    .tp_methods = runner_methods,
    .tp_members = runner_members,
};
