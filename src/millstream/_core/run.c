/* Runs plain commands straight from a client's or a primary's bytes: the table of commands, and the runs. */
#include <time.h>

#include "runs.h"

#define KEPT_MAX (1 << 20) /* bytes of a buffer that is kept for the next run */

static PyObject *s_keys, *s_expires, *s_index, *s_node_max_bytes, *s_node_max_entries, *s_slow_from, *s_used, *s_nothing;
static PyTypeObject RunType;

/* Plain of a primary alone */
static int leave(Run *Py_UNUSED(run)) { return ORDINARY; }

/* The fewest words are those of a command that writes, as the command table has it; `obeyed` runs what a primary says of it,
 * if that is plain */
typedef struct {
    const char *name;
    int (*handler)(Run *);
    int fewest;
    int (*obeyed)(Run *);
} Form;

static const Form forms[] = {
    [GET] = {"get", run_get},
    [PING] = {"ping", run_ping},
    [SET] = {"set", run_set, .fewest = 3, .obeyed = run_set},
    [XACK] = {"xack", run_xack, .fewest = 4, .obeyed = run_xack},
    [XADD] = {"xadd", run_xadd, .fewest = 5, .obeyed = run_xadd},
    [XAUTOCLAIM] = {"xautoclaim", run_xautoclaim, .fewest = 6},
    [XCLAIM] = {"xclaim", run_xclaim, .fewest = 6, .obeyed = obey_xclaim},
    [XGROUP_SETID] = {"xgroup|setid", leave, .obeyed = obey_setid},
    [XLEN] = {"xlen", run_xlen},
    [XPENDING] = {"xpending", run_xpending},
    [XRANGE] = {"xrange", run_xrange},
    [XREAD] = {"xread", run_xread},
    [XREADGROUP] = {"xreadgroup", run_xreadgroup, .fewest = 7},
    [XREVRANGE] = {"xrevrange", run_xrevrange},
};
_Static_assert(sizeof forms / sizeof *forms == COMMANDS, "each command has its row");
PyObject *command_names;

Command find_command(View word)
{
    if (word.size == 0)
        return OTHER;
    for (Command at = 0; at < COMMANDS; at++)
        if ((*forms[at].name ^ *word.data) == 0x20 || *forms[at].name == *word.data) /* the first letter */
            if (is_word(word, forms[at].name))
                return at;
    return OTHER;
}

int run_handler(Run *run, Command command) { return forms[command].handler(run); }

/* The command in run->words, if what a primary says in it may be plain */
static Command find_obeyed(Run *run)
{
    if (run->count == 7 && is_word(run->words[0], "XGROUP") && is_word(run->words[1], "SETID"))
        return XGROUP_SETID;
    Command command = find_command(run->words[0]);
    return command != OTHER && forms[command].obeyed != NULL && run->count >= forms[command].fewest ? command : OTHER;
}

/* ---------------------------------------------------------------- a run */

uint64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The steps as one record: [version, wall, steps] */
static PyObject *make_record(Run *run)
{
    char head[20];
    Buf *steps = &run->of->steps;
    if (steps->size == 0)
        return Py_NewRef(Py_None);
    char *at = put_array(head, 3);
    *at++ = 1;
    at = put_array(put_unsigned(at, run->wall), (uint64_t)run->written);
    PyObject *record = PyBytes_FromStringAndSize(NULL, at - head + steps->size);
    if (record != NULL)
        put_bytes(put_bytes(PyBytes_AS_STRING(record), head, at - head), steps->data, steps->size);
    return record;
}

static void give_back(Buf *buf)
{
    buf->size = 0;
    if (buf->room > KEPT_MAX)
        buf_free(buf);
}

/* The fields of PlainRun, see millstream.node.plain; run_fields has their names */
enum { AT, WORDS, RUN, LAST, REPLIES, RECORD, CHANGES, HITS, MISSES, WOKEN, SOFT, WHOLE, FIELDS };

PyObject *make_result(Run *run, Py_ssize_t at, PyObject *words, Py_ssize_t count, Command last, Py_ssize_t whole)
{
    PyObject *result = PyStructSequence_New(&RunType);
    if (result == NULL) {
        Py_XDECREF(words);
        Py_XDECREF(run->woken);
        return NULL;
    }
    PyObject *const items[] = {
        [AT] = PyLong_FromSsize_t(at),
        [WORDS] = words == NULL ? Py_NewRef(Py_None) : words,
        [RUN] = PyLong_FromSsize_t(count),
        [LAST] = Py_NewRef(last == OTHER ? s_nothing : PyTuple_GET_ITEM(command_names, last)),
        [REPLIES] = buf_bytes(&run->of->replies),
        [RECORD] = make_record(run),
        [CHANGES] = PyLong_FromSsize_t(run->changes),
        [HITS] = PyLong_FromSsize_t(run->hits),
        [MISSES] = PyLong_FromSsize_t(run->misses),
        [WOKEN] = run->woken == NULL ? Py_NewRef(Py_None) : run->woken,
        [SOFT] = PyBool_FromLong(run->written && run->written == run->soft),
        [WHOLE] = PyLong_FromSsize_t(whole),
    };
    _Static_assert(sizeof items / sizeof *items == FIELDS, "each field has its item");
    int failed = 0;
    for (int item = 0; item < FIELDS; item++) {
        PyStructSequence_SET_ITEM(result, item, items[item]);
        failed |= items[item] == NULL;
    }
    if (failed)
        Py_CLEAR(result);
    return result;
}

void keep_slow(Runner *of, PyObject *command, uint64_t took)
{
    PyObject *pair = command == NULL ? NULL : Py_BuildValue("(OK)", command, (unsigned long long)took);
    if (pair == NULL || PyList_Append(of->slow, pair) < 0)
        PyErr_Clear();
    Py_XDECREF(pair);
    Py_XDECREF(command);
}

/* A command was run since a time; what time it is now */
static uint64_t count_command(Run *run, Command command, uint64_t before, const char *at, const char *next)
{
    uint64_t after = nanoseconds();
    run->of->calls[command]++;
    run->of->nanoseconds[command] += after - before;
    if (after - before >= (uint64_t)run->slow_from)
        keep_slow(run->of, PyBytes_FromStringAndSize(at, next - at), after - before);
    return after;
}

const char *run_commands(Run *run, const char *at, const char *end, PyObject **other, Py_ssize_t *count, Command *last)
{
    Runner *of = run->of;
    uint64_t before = nanoseconds();
    while (*count < COMMANDS_MAX && of->replies.size < REPLIES_MAX && run->woken == NULL) {
        const char *next = split(run, at, end);
        if (next == NULL)
            break;
        Command command = find_command(run->words[0]);
        run->command = command;
        if (command == OTHER || forms[command].handler(run) != DONE) {
            PyErr_Clear();
            *other = view_list(run->words, run->count);
            if (*other == NULL)
                PyErr_Clear(); /* it stays where it is, and the reader finds that there is no memory */
            else
                at = next;
            break;
        }
        before = count_command(run, command, before, at, next);
        at = next;
        *last = command;
        ++*count;
    }
    return at;
}

/* ---------------------------------------------------------------- a primary's commands
 *
 * A primary's additions have their ids, its claims make records and may move the group's position, and what stands between
 * MULTI and EXEC is taken only if all of it is here and may be plain. A command that is not plain is left where it is;
 * between MULTI and EXEC it is handed out as a client's is, since those before it were run.
 */

/* Whether all commands up to EXEC are here, and are such as may be plain */
static int is_plain_unit(Run *run, const char *at, const char *end)
{
    while ((at = split(run, at, end)) != NULL) {
        if (run->count == 1)
            return is_word(run->words[0], "EXEC");
        if (find_obeyed(run) == OTHER)
            return 0;
    }
    return 0;
}

const char *obey_commands(Run *run, const char **whole, const char *end, int is_open, PyObject **other,
                                 Py_ssize_t *count, Command *last)
{
    const char *at = *whole, *next;
    uint64_t before = nanoseconds();
    while ((is_open || *count < COMMANDS_MAX) && run->woken == NULL && (next = split(run, at, end)) != NULL) {
        if (run->count == 1) {
            if (!is_word(run->words[0], is_open ? "EXEC" : "MULTI") || (!is_open && !is_plain_unit(run, next, end)))
                break;
            is_open = !is_open;
            at = next;
            *whole = is_open ? *whole : at;
            continue;
        }
        Command command = find_obeyed(run);
        if (command == OTHER || forms[command].obeyed(run) != DONE) {
            PyErr_Clear();
            if (is_open && (*other = view_list(run->words, run->count)) == NULL)
                PyErr_Clear(); /* it stays where it is, as outside of transactions */
            else if (is_open)
                at = next;
            break;
        }
        run->of->replies.size = 0;
        before = count_command(run, command, before, at, next);
        at = next;
        *whole = is_open ? *whole : at;
        *last = command;
        ++*count;
    }
    return at;
}

int open_run(Run *run, PyObject *database)
{
    PyObject *index = PyObject_GetAttr(database, s_index);
    run->begun = counted;
    run->database = Py_NewRef(database);
    run->keys = PyObject_GetAttr(database, s_keys);
    run->expires = PyObject_GetAttr(database, s_expires);
    run->db = index == NULL ? 0 : PyLong_AsUnsignedLongLong(index);
    Py_XDECREF(index);
    if (!PyErr_Occurred() && (!PyDict_Check(run->keys) || !PyDict_Check(run->expires)))
        PyErr_SetString(PyExc_TypeError, "not a database");
    if (PyErr_Occurred() || get_limit(run->of->config, s_node_max_bytes, &run->max_bytes) < 0
        || get_limit(run->of->config, s_slow_from, &run->slow_from) < 0)
        return -1;
    return get_limit(run->of->config, s_node_max_entries, &run->max_entries);
}

void settle_growth(Run *run)
{
    if (run->grown == 0)
        return;
    PyObject *old = PyObject_GetAttr(run->database, s_used);
    long long used = old == NULL ? -1 : PyLong_AsLongLong(old);
    PyObject *new = PyErr_Occurred() ? NULL : PyLong_FromLongLong(used + run->grown);
    if (new == NULL || PyObject_SetAttr(run->database, s_used, new) < 0)
        PyErr_Clear(); /* a count that is off by some bytes is less than a change without its record */
    Py_XDECREF(old);
    Py_XDECREF(new);
    run->grown = 0;
}

void close_run(Run *run)
{
    Py_CLEAR(run->database);
    give_back(&run->of->replies);
    give_back(&run->of->steps);
    give_back(&run->of->words);
    Py_CLEAR(run->key);
    Py_CLEAR(run->keys);
    Py_CLEAR(run->expires);
}

PyObject *queue_plain(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t nargs)
{
    Py_ssize_t first = nargs == 2 && PyBytes_Check(args[0]) ? PyLong_AsSsize_t(args[1]) : -1;
    if (first < 0 || first > PyBytes_GET_SIZE(args[0]))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "queue_plain(data, at)");
    Runner of = {.words = {0}};
    Run run = {.of = &of};
    const char *data = PyBytes_AS_STRING(args[0]), *end = data + PyBytes_GET_SIZE(args[0]), *at = data + first, *next;
    Py_ssize_t count = 0, words = 0, size = 0;
    Command last = OTHER;
    while (count < COMMANDS_MAX && (next = split(&run, at, end)) != NULL) {
        Command command = find_command(run.words[0]);
        if (command == OTHER || forms[command].fewest == 0 || run.count < forms[command].fewest)
            break;
        for (Py_ssize_t word = 0; word < run.count; word++)
            size += run.words[word].size;
        words += run.count;
        last = command;
        at = next;
        count++;
    }
    buf_free(&of.words);
    return Py_BuildValue("(nnnns)", at - data, count, size, words, last == OTHER ? "" : forms[last].name);
}

static PyStructSequence_Field run_fields[] = {
    [AT] = {"at", NULL},           [WORDS] = {"words", NULL},     [RUN] = {"commands", NULL}, [LAST] = {"last", NULL},
    [REPLIES] = {"replies", NULL}, [RECORD] = {"record", NULL},   [CHANGES] = {"changes", NULL}, [HITS] = {"hits", NULL},
    [MISSES] = {"misses", NULL},   [WOKEN] = {"woken", NULL},     [SOFT] = {"soft", NULL},    [WHOLE] = {"whole", NULL},
    [FIELDS] = {NULL, NULL},
};
static PyStructSequence_Desc run_description = {"millstream._native.PlainRun", "See millstream.node.plain.PlainRun.", run_fields,
                                                FIELDS};

int runner_prepare(PyObject *module)
{
    const Name attributes[] = {
        {&s_nothing, ""},
        {&s_keys, "keys"},
        {&s_expires, "expires"},
        {&s_index, "index"},
        {&s_node_max_bytes, "node_max_bytes"},
        {&s_node_max_entries, "node_max_entries"},
        {&s_slow_from, "slow_from"},
        {&s_used, "used"},
    };
    if (intern_names(attributes, sizeof attributes / sizeof *attributes) < 0 || entries_prepare() < 0)
        return -1;
    Py_XSETREF(command_names, PyTuple_New(COMMANDS));
    for (Command at = 0; command_names != NULL && at < COMMANDS; at++) {
        PyObject *name = PyUnicode_InternFromString(forms[at].name);
        if (name == NULL)
            return -1;
        PyTuple_SET_ITEM(command_names, at, name);
    }
    if (command_names == NULL || PyModule_AddObjectRef(module, "PLAIN_COMMANDS", command_names) < 0)
        return -1;
    if (RunType.tp_name == NULL && PyStructSequence_InitType2(&RunType, &run_description) < 0)
        return -1;
    /* No item is NULL. As such members the interpreter reads them at once; as they are, each time by a call */
    for (int at = 0; at < FIELDS; at++)
        RunType.tp_members[at].type = Py_T_OBJECT_EX;
    return 0;
}
