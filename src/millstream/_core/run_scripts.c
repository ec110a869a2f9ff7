/* Plain commands of a script, one call each.
 *
 * Invariants:
 *  - No other run is at work between begin and end. The changes of the commands gather in `steps`, and end returns
 *    them as one record.
 *  - A call never fails: it returns None, with nothing changed, for anything that is not plain.
 *  - If the reply of a command that was run cannot become a value, the exception goes to `faults`, for the code that
 *    runs the script.
 */
#include "runs.h"

#define CHANGES_MAX (1 << 20) /* bytes of a script's steps; then they are to be taken over */
#define SLOW_MAX 512        /* commands of a script that took long; then they are to be taken over */
#define FLAT_MAX (16 << 10) /* bytes of an array's reply; of more its leaves may be too many to be given at once */

void end_script(Runner *self)
{
    self->script.of = self;
    close_run(&self->script);
    Py_CLEAR(self->script.woken);
    Py_CLEAR(self->table);
    Py_CLEAR(self->faults);
}

PyObject *runner_begin(Runner *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 5 || self->table != NULL || !PyList_Check(args[4]))
        return PyErr_Format(PyExc_TypeError, "begin(db, wall, left, table, faults), once");
    self->script = (Run){.of = self, .wall = PyLong_AsUnsignedLongLong(args[1]), .resp = 2};
    long long left = PyErr_Occurred() ? -1 : PyLong_AsLongLong(args[2]);
    self->ends = left < 0 ? UINT64_MAX : nanoseconds() + (uint64_t)left;
    self->commands = 0;
    self->last = OTHER;
    self->table = Py_NewRef(args[3]);
    self->faults = Py_NewRef(args[4]);
    if (PyErr_Occurred() || open_run(&self->script, args[0]) < 0) {
        end_script(self);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* "$5" and the like: the number, -1 for none; moves behind the line, which is the core's own */
static int64_t read_line(const char **at)
{
    int64_t number = 0;
    const char *p = *at + 1;
    int is_none = *p == '-';
    for (; *p != '\r'; p++)
        number = number * 10 + (*p - '0');
    *at = p + 2;
    return is_none ? -1 : number;
}

/* A reply that is no array and that the core has written, as a script has it; NULL with an exception */
static PyObject *make_leaf(const char **at)
{
    char mark = **at;
    int64_t number = read_line(at);
    if (mark == ':')
        return PyLong_FromLongLong(number);
    if (number < 0)
        Py_RETURN_FALSE;
    const char *text = *at;
    *at += number + 2;
    return PyBytes_FromStringAndSize(text, (Py_ssize_t)number);
}

static int is_array(const char *at) { return *at == '*' && at[1] != '-'; }

/* The same of an array, by `table` */
static PyObject *make_table(Runner *self, const char **at)
{
    Py_ssize_t number = (Py_ssize_t)read_line(at);
    PyObject *list = PyList_New(number), *value;
    for (Py_ssize_t item = 0; list != NULL && item < number; item++) {
        if ((value = is_array(*at) ? make_table(self, at) : make_leaf(at)) == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, item, value);
    }
    value = list == NULL ? NULL : PyObject_CallOneArg(self->table, list);
    Py_XDECREF(list);
    return value;
}

/* Appends what is in an array, at any depth, to `leaves`, and to `shape` two bytes for each array: how many items it has,
 * and 0x8000 if some of them are arrays; then each of those that are not has 0xffff there. -1 with an exception */
static int flatten(const char **at, PyObject *leaves, Buf *shape)
{
    Py_ssize_t number = (Py_ssize_t)read_line(at), place = shape->size, deep = 0;
    if (buf_reserve(shape, 2 * number + 2) < 0)
        return -1;
    shape->size += 2;
    for (Py_ssize_t item = 0; item < number; item++) {
        int inner = is_array(*at);
        if (inner && !deep) {
            deep = 1;
            memset(shape->data + shape->size, 0xff, (size_t)item * 2);
            shape->size += item * 2;
        }
        if (inner) {
            if (flatten(at, leaves, shape) < 0)
                return -1;
            continue;
        }
        if (deep && buf_add(shape, "\xff\xff", 2) < 0)
            return -1;
        PyObject *leaf = make_leaf(at);
        int failed = leaf == NULL || PyList_Append(leaves, leaf) < 0;
        Py_XDECREF(leaf);
        if (failed)
            return -1;
    }
    put_integer(shape->data + place, 2, (uint64_t)(number | deep << 15));
    return 0;
}

/* A small array as True, False, its shape and its leaves, of which Lua makes tables faster than it is given them */
static PyObject *make_leaves(const char **at)
{
    Buf shape = {0};
    PyObject *leaves = Py_BuildValue("[OOO]", Py_True, Py_False, Py_None), *made = NULL, *text = NULL;
    if (leaves != NULL && flatten(at, leaves, &shape) == 0 && (text = buf_bytes(&shape)) != NULL
        && PyList_SetItem(leaves, 2, text) == 0)
        made = PyList_AsTuple(leaves);
    buf_free(&shape);
    Py_XDECREF(leaves);
    return made;
}

/* The reply in `replies` */
static PyObject *make_value(Runner *self)
{
    const char *at = self->replies.data;
    if (*at == '+')
        return Py_BuildValue("(Oy#)", Py_True, at + 1, self->replies.size - 3);
    if (!is_array(at))
        return make_leaf(&at);
    return self->replies.size <= FLAT_MAX ? make_leaves(&at) : make_table(self, &at);
}

/* Keeps the exception that is set; -1 if there is no memory for that */
static int keep_fault(Runner *self)
{
    PyObject *error = take_error();
    int failed = PyList_Append(self->faults, error);
    if (failed)
        PyErr_Clear();
    Py_XDECREF(error);
    return failed;
}

/* Whether the command at work was run; its reply is then in replies */
static int run_one(Runner *self, PyObject *data, Command *command)
{
    Run *run = &self->script;
    if (self->table == NULL || !PyBytes_CheckExact(data) || run->woken != NULL || PyList_GET_SIZE(self->slow) >= SLOW_MAX
        || self->steps.size + PyBytes_GET_SIZE(data) > CHANGES_MAX)
        return 0;
    const char *at = PyBytes_AS_STRING(data), *end = at + PyBytes_GET_SIZE(data);
    if (split(run, at, end) != end || (*command = find_command(run->words[0])) == OTHER)
        return 0;
    if (run_handler(run, *command) == DONE) {
        settle_growth(run); /* a command that is not plain may come next, and SWAPDB exchanges the counts */
        return 1;
    }
    PyErr_Clear();
    return 0;
}

PyObject *runner_call(Runner *self, PyObject *data)
{
    Command command;
    Py_ssize_t written = self->script.written;
    uint64_t before = nanoseconds();
    if (before >= self->ends || !run_one(self, data, &command))
        Py_RETURN_NONE;
    self->calls[command]++;
    uint64_t took = nanoseconds() - before;
    self->nanoseconds[command] += took;
    if (took >= (uint64_t)self->script.slow_from)
        keep_slow(self, Py_NewRef(data), took);
    self->commands++;
    self->last = command;
    PyObject *value = make_value(self);
    self->replies.size = 0;
    if (value != NULL)
        return value;
    if (keep_fault(self) < 0 && self->script.written > written)
        Py_CLEAR(self->table); /* so that end fails: what was changed would be taken for not run, and run again */
    Py_RETURN_NONE;
}

PyObject *runner_end(Runner *self, PyObject *Py_UNUSED(nothing))
{
    if (self->table == NULL) {
        end_script(self);
        return PyErr_Format(PyExc_TypeError, "end(), behind begin");
    }
    self->replies.size = 0;
    Run *run = &self->script;
    PyObject *result = make_result(run, 0, NULL, self->commands, self->last, 0);
    run->woken = NULL; /* the result's, or gone with it */
    end_script(self);
    return result;
}
