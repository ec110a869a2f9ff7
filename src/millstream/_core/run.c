/* Runs plain commands straight from a client's bytes; stands in for millstream.node.batch.PyPlainRunner, its specification.
 *
 * Invariants:
 *  - A command is taken only if all of it is here and written in the one usual form; nothing behind `end` is read.
 *  - A handler answers DONE, having changed all that the command changes and written its reply and its step of the
 *    log's record; or ORDINARY, having changed nothing, written nothing, and left no exception. So it asks for all the
 *    memory it needs before it changes anything, and whatever is unusual or fails takes the ordinary way.
 *  - None of it runs Python's code, in which a signal's exception could come up with commands done and not yet recorded.
 *  - Steps are MessagePack as millstream/node/log/codec.py writes it, with the shortest form of every number.
 */
#include <strings.h>
#include <time.h>

#include "pending.h"

#include <structmember.h>

#define WORDS_MAX (1 << 16)     /* words of a command that is taken; more take the ordinary way */
#define COMMANDS_MAX 512        /* of one run; then other clients have their turn */
#define REPLIES_MAX (256 << 10) /* bytes of one run; then they are to be sent */
#define REPLY_MAX (4 << 20)     /* bytes of one reply; a larger one takes the ordinary way, which holds it once */
#define ROWS_MAX 50000          /* of XPENDING; more are surely too many bytes, or nearly so */
#define ENTRIES_MAX 10000       /* of one reply; more are not copied but shared, which the ordinary way does */
#define DIGITS_MAX 18           /* of a number that surely is within 64 bits */
#define LARGEST (1LL << 31)     /* a count or a time above this takes the ordinary way */
#define KEPT_MAX (1 << 20)      /* bytes of a buffer that is kept for the next run */
#define CHANGES_MAX (1 << 20)   /* bytes of a script's steps; then they are to be taken over */

enum { ORDINARY, DONE };

typedef struct Runner Runner;

/* The run at work */
typedef struct {
    Runner *of;
    PyObject *keys, *expires; /* of the database, which outlives the run */
    PyObject *key;            /* the key last looked up; commands of one run are often about one */
    uint64_t db, wall;
    int resp, obeys; /* obeys: a primary says it; its replies go nowhere */
    int64_t max_bytes, max_entries, slow_from; /* slow_from: nanoseconds */
    Py_ssize_t changes, written, soft, hits, misses; /* written: steps of the record; one may be many changes */
    PyObject *woken;
    View *words; /* of the command at work */
    Py_ssize_t count; /* words */
} Run;

struct Runner {
    PyObject_HEAD
    PyObject *config, *waiting, *claiming;
    PyTypeObject *stream_type, *string_type;
    int records;
    Buf replies, steps, words; /* words: a View of each */
    uint64_t calls[16], nanoseconds[16];
    PyObject *slow;      /* a list: the commands that took long, each as it was sent, with its nanoseconds */
    Run script;          /* of a script's commands, between begin and end; keys is NULL without one */
    PyObject *table;     /* makes a table of the script's of a list */
    PyObject *faults;    /* a list: what came up, for who runs the script */
    uint64_t ends;       /* the time after which no more commands of it are run */
    Py_ssize_t commands; /* of the script */
    int last;            /* of them */
};

static PyObject *s_keys, *s_expires, *s_index, *s_data, *s_buffer, *s_entries, *s_last_id, *s_entries_added, *s_node_max_bytes,
    *s_node_max_entries, *s_slow_from, *s_sync_replicas, *s_nothing;
static PyTypeObject RunType;

/* ---------------------------------------------------------------- words */

/* "*3\r\n": the number behind the mark, without sign or leading zero; NULL for anything else, and where it ends early */
static const char *get_head(const char *at, const char *end, char mark, int64_t *number)
{
    if (at == end || *at++ != mark)
        return NULL;
    int64_t value = 0;
    const char *first = at;
    while (at < end && (unsigned char)(*at - '0') < 10 && at - first < 10)
        value = value * 10 + (*at++ - '0');
    if (at == first || (*first == '0' && at - first > 1) || end - at < 2 || at[0] != '\r' || at[1] != '\n')
        return NULL;
    *number = value;
    return at + 2;
}

/* The command at `at`, into run->words; where it ends, or NULL if it is not all here or not in the usual form */
static const char *split(Run *run, const char *at, const char *end)
{
    int64_t count, size;
    at = get_head(at, end, '*', &count);
    if (at == NULL || count < 1 || count > WORDS_MAX || count > (end - at) / 6) /* "$0", two line ends */
        return NULL;
    if (buf_reserve(&run->of->words, (Py_ssize_t)sizeof(View) * count) < 0) {
        PyErr_Clear();
        return NULL;
    }
    run->words = (View *)run->of->words.data;
    for (int64_t word = 0; word < count; word++) {
        at = get_head(at, end, '$', &size);
        if (at == NULL || end - at < size + 2 || at[size] != '\r' || at[size + 1] != '\n')
            return NULL;
        run->words[word] = (View){at, size};
        at += size + 2;
    }
    run->count = count;
    return at;
}

static int is_word(View word, const char *name)
{
    return (Py_ssize_t)strlen(name) == word.size && strncasecmp(word.data, name, (size_t)word.size) == 0;
}

static int is_sign(View word, char sign) { return word.size == 1 && *word.data == sign; }

/* A number in its one usual form; -1 for any other */
static int64_t get_number(View word)
{
    if (word.size < 1 || word.size > DIGITS_MAX || (*word.data == '0' && word.size > 1))
        return -1;
    int64_t value = 0;
    for (Py_ssize_t at = 0; at < word.size; at++) {
        if ((unsigned char)(word.data[at] - '0') > 9)
            return -1;
        value = value * 10 + (word.data[at] - '0');
    }
    return value;
}

/* An end of a range: "-", "+", "ms" or "ms-seq"; 0 for any other form */
static int get_bound(View word, uint64_t missing, Id *id)
{
    if (is_sign(word, '-') || is_sign(word, '+')) {
        *id = *word.data == '-' ? 0 : ID_MAX;
        return 1;
    }
    const char *dash = word.size > 0 ? memchr(word.data, '-', (size_t)word.size) : NULL;
    Py_ssize_t head = dash == NULL ? word.size : dash - word.data;
    int64_t ms = get_number((View){word.data, head});
    int64_t seq = dash == NULL ? 0 : get_number((View){dash + 1, word.size - head - 1});
    if (ms < 0 || seq < 0)
        return 0;
    *id = ID_MAKE(ms, dash == NULL ? missing : (uint64_t)seq);
    return 1;
}

/* An id: "ms" or "ms-seq"; 0 for any other form */
static int get_id(View word, Id *id)
{
    return !is_sign(word, '-') && !is_sign(word, '+') && get_bound(word, 0, id);
}

/* An end of a range, which "(" leaves out */
static int get_edge(View word, int is_end, Id *id)
{
    int out = word.size > 0 && *word.data == '(';
    View rest = {word.data + out, word.size - out};
    if ((out && (is_sign(rest, '-') || is_sign(rest, '+'))) || !get_bound(rest, is_end ? UINT64_MAX : 0, id))
        return 0;
    if (out && *id == (is_end ? 0 : ID_MAX))
        return 0;
    *id += !out ? 0 : is_end ? ID_MAX : 1;
    return 1;
}

/* ---------------------------------------------------------------- steps of the record */

static char *put_binary_head(char *at, uint64_t size)
{
    int power = size < 1 << 8 ? 0 : size < 1 << 16 ? 1 : 2;
    *at++ = (char)(0xc4 + power);
    return put_integer(at, 1 << power, size);
}

/* Five bytes and the word */
static char *put_binary(char *at, View word)
{
    return put_bytes(put_binary_head(at, (uint64_t)word.size), word.data, word.size);
}

static char *put_op(char *at, Run *run, Py_ssize_t arguments, const char *op)
{
    size_t size = strlen(op);
    at = put_array(at, (uint64_t)arguments + 1);
    *at++ = (char)(0xa0 | size);
    return put_unsigned(put_bytes(at, op, (Py_ssize_t)size), run->db);
}

/* Room for a step with all the words, and for a short reply */
static int reserve(Run *run)
{
    Py_ssize_t size = 64;
    for (Py_ssize_t at = 0; at < run->count; at++)
        size += run->words[at].size + 5;
    return (run->of->records && buf_reserve(&run->of->steps, size) < 0) || buf_reserve(&run->of->replies, 128) < 0;
}

/* ---------------------------------------------------------------- keys */

/* The word as the key at work; NULL with an exception */
static PyObject *get_key(Run *run, View word)
{
    PyObject *key = run->key;
    if (key != NULL && PyBytes_GET_SIZE(key) == word.size
        && memcmp(PyBytes_AS_STRING(key), word.data, (size_t)word.size) == 0)
        return key;
    Py_XSETREF(run->key, PyBytes_FromStringAndSize(word.data, word.size));
    return run->key;
}

/* The value at a key (borrowed, NULL if there is none); 0 if the key may have to be deleted first, or on an error */
static int look_up(Run *run, View word, PyObject **value)
{
    PyObject *key = get_key(run, word);
    if (key == NULL)
        return 0;
    if (PyDict_GET_SIZE(run->expires) && PyDict_Contains(run->expires, key))
        return 0;
    *value = PyDict_GetItemWithError(run->keys, key);
    return *value != NULL || !PyErr_Occurred();
}

/* The entries of the stream at a key (a new reference); NULL if there is none */
static EntryStore *get_entries(Run *run, View word, PyObject **stream)
{
    if (!look_up(run, word, stream) || *stream == NULL || Py_TYPE(*stream) != run->of->stream_type)
        return NULL;
    PyObject *entries = PyObject_GetAttr(*stream, s_entries);
    if (entries != NULL && Py_TYPE(entries) != &EntryStoreType)
        Py_CLEAR(entries);
    return (EntryStore *)entries;
}

/* Whether somebody waits for the key at work, or waits to claim there; -1 on an error */
static int is_waited_for(Run *run, PyObject *places)
{
    if (PyDict_GET_SIZE(places) == 0)
        return 0;
    PyObject *place = Py_BuildValue("(KO)", (unsigned long long)run->db, run->key);
    int found = place == NULL ? -1 : PyDict_Contains(places, place);
    Py_XDECREF(place);
    return found;
}

/* ---------------------------------------------------------------- the commands */

static int get_limit(PyObject *config, PyObject *name, int64_t *limit)
{
    PyObject *value = PyObject_GetAttr(config, name);
    *limit = value == NULL ? -1 : PyLong_AsLongLong(value);
    Py_XDECREF(value);
    return *limit == -1 && PyErr_Occurred() ? -1 : 0;
}

/* With sync-replicas what a run answers may wait without end, and a PING must not: its own reply tells of no data */
static int run_ping(Run *run)
{
    int64_t replicas;
    if (run->count != 1 || get_limit(run->of->config, s_sync_replicas, &replicas) < 0 || replicas)
        return ORDINARY;
    return buf_add(&run->of->replies, "+PONG\r\n", 7) < 0 ? ORDINARY : DONE;
}

/* The bytes of a string (a new reference), NULL while its parts are being changed; its own code would be Python's */
static PyObject *get_data(PyObject *string)
{
    PyObject *buffer = PyObject_GetAttr(string, s_buffer);
    Py_XDECREF(buffer);
    return buffer == Py_None ? PyObject_GetAttr(string, s_data) : NULL;
}

/* The same string as StringValue(data) */
static PyObject *make_string(Run *run, View word)
{
    PyTypeObject *type = run->of->string_type;
    PyObject *data = PyBytes_FromStringAndSize(word.data, word.size), *value = data == NULL ? NULL : type->tp_alloc(type, 0);
    if (value != NULL && (PyObject_SetAttr(value, s_data, data) < 0 || PyObject_SetAttr(value, s_buffer, Py_None) < 0))
        Py_CLEAR(value);
    Py_XDECREF(data);
    return value;
}

static int run_get(Run *run)
{
    PyObject *value;
    if (run->count != 2 || !look_up(run, run->words[1], &value))
        return ORDINARY;
    Buf *replies = &run->of->replies;
    if (value == NULL) {
        if (buf_add(replies, run->resp == 2 ? "$-1\r\n" : "_\r\n", run->resp == 2 ? 5 : 3) < 0)
            return ORDINARY;
        run->misses++;
        return DONE;
    }
    if (Py_TYPE(value) != run->of->string_type)
        return ORDINARY;
    PyObject *data = get_data(value);
    int result = ORDINARY;
    if (data != NULL && PyBytes_CheckExact(data) && PyBytes_GET_SIZE(data) <= REPLY_MAX
        && buf_bulk(replies, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)) == 0) {
        run->hits++;
        result = DONE;
    }
    Py_XDECREF(data);
    return result;
}

static int run_set(Run *run)
{
    PyObject *old;
    if (run->count != 3 || !look_up(run, run->words[1], &old) || is_waited_for(run, run->of->waiting)
        || reserve(run))
        return ORDINARY;
    PyObject *value = make_string(run, run->words[2]);
    int failed = value == NULL || PyDict_SetItem(run->keys, run->key, value) < 0;
    Py_XDECREF(value);
    if (failed)
        return ORDINARY;
    if (run->of->records) {
        Buf *steps = &run->of->steps;
        char *at = put_op(steps->data + steps->size, run, 4, "set");
        at = put_binary(put_binary(at, run->words[1]), run->words[2]);
        *at++ = (char)0xc0;
        steps->size = at - steps->data;
    }
    run->written++;
    run->changes++;
    return buf_add(&run->of->replies, "+OK\r\n", 5) < 0 ? ORDINARY : DONE; /* there is room */
}

/* Adds the entry under an id, or 0: the next one; its id, or 0 */
static Id add_entry(Run *run, PyObject *stream, EntryStore *entries, Id wanted, int *fresh)
{
    Id last = 0, id = 0;
    Py_ssize_t size = 0;
    PyObject *old_last = PyObject_GetAttr(stream, s_last_id), *old_added = PyObject_GetAttr(stream, s_entries_added);
    PyObject *new_last = NULL, *new_added = NULL;
    long long added = old_added == NULL ? -1 : PyLong_AsLongLong(old_added);
    if (old_last == NULL || added < 0 || added == LLONG_MAX || id_from_int(old_last, &last) < 0 || last == ID_MAX)
        goto end;
    for (Py_ssize_t at = 3; at < run->count; at++)
        size += run->words[at].size;
    Id next = wanted ? wanted : ID_MAKE(run->wall, 0);
    if (next <= last) {
        if (wanted)
            goto end;
        next = last + 1;
    }
    new_last = id_to_int(next);
    new_added = PyLong_FromLongLong(added + 1);
    if (new_last == NULL || new_added == NULL)
        goto end;
    *fresh = store_needs_node(entries, size, run->max_bytes, run->max_entries);
    if (store_append(entries, next, run->words + 3, run->count - 3, *fresh) < 0)
        goto end;
    /* Slots that are there take another int without asking for memory */
    PyObject_SetAttr(stream, s_last_id, new_last);
    PyObject_SetAttr(stream, s_entries_added, new_added);
    id = next;
end:
    Py_XDECREF(old_last);
    Py_XDECREF(old_added);
    Py_XDECREF(new_last);
    Py_XDECREF(new_added);
    return id;
}

static int run_xadd(Run *run)
{
    PyObject *stream;
    Id wanted = 0;
    if (run->count < 5 || !(run->count & 1))
        return ORDINARY;
    if (run->obeys ? !get_id(run->words[2], &wanted) || wanted == 0 : !is_sign(run->words[2], '*'))
        return ORDINARY;
    EntryStore *entries = get_entries(run, run->words[1], &stream);
    if (entries == NULL)
        return ORDINARY;
    int fresh = 0, waited_for = is_waited_for(run, run->of->waiting);
    Id id = waited_for < 0 || reserve(run) ? 0 : add_entry(run, stream, entries, wanted, &fresh);
    Py_DECREF(entries);
    if (id == 0)
        return ORDINARY;
    if (run->of->records) {
        Buf *steps = &run->of->steps;
        char packed[16];
        id_to_bytes(id, packed);
        char *at = put_binary(put_op(steps->data + steps->size, run, 6, "xadd"), run->words[1]);
        at = put_array(put_binary(at, (View){packed, 16}), (uint64_t)run->count - 3);
        for (Py_ssize_t word = 3; word < run->count; word++)
            at = put_binary(at, run->words[word]);
        *at++ = (char)(fresh ? 0xc3 : 0xc2);
        *at++ = (char)0xc0;
        steps->size = at - steps->data;
    }
    run->written++;
    run->changes++;
    if (waited_for)
        run->woken = Py_NewRef(run->key);
    return buf_id_bulk(&run->of->replies, id) < 0 ? ORDINARY : DONE; /* there is room */
}

static int run_xlen(Run *run)
{
    PyObject *stream;
    EntryStore *entries = run->count == 2 ? get_entries(run, run->words[1], &stream) : NULL;
    if (entries == NULL)
        return ORDINARY;
    uint64_t length = (uint64_t)store_length(entries);
    Py_DECREF(entries);
    if (buf_head(&run->of->replies, ':', length) < 0)
        return ORDINARY;
    run->hits++;
    return DONE;
}

/* Begins an array in replies, of which it is known behind them how many items it has; where they begin, or -1 */
static Py_ssize_t begin_array(Buf *replies)
{
    if (buf_reserve(replies, HEAD_ROOM) < 0)
        return -1;
    return replies->size += HEAD_ROOM;
}

/* Moves the items up to their head; ORDINARY where count is -1 or they are too many bytes, and nothing is there of them */
static int end_array(Buf *replies, Py_ssize_t first, Py_ssize_t count)
{
    if (count < 0 || replies->size >= first + REPLY_MAX) {
        replies->size = first - HEAD_ROOM;
        return ORDINARY;
    }
    char *at = put_head(replies->data + first - HEAD_ROOM, '*', (uint64_t)count);
    memmove(at, replies->data + first, (size_t)(replies->size - first));
    replies->size -= replies->data + first - at;
    return DONE;
}

/* "*n" and the entries between two ids behind what is in replies, and their ids to ids, which may be NULL; ORDINARY leaves
 * replies as they were */
static int reply_entries(Run *run, EntryStore *entries, Id start, Id end, int64_t count, int backwards, Buf *ids)
{
    Buf *replies = &run->of->replies;
    if ((count < 0 || count > ENTRIES_MAX) && store_length(entries) > ENTRIES_MAX)
        return ORDINARY;
    Py_ssize_t first = begin_array(replies);
    if (first < 0)
        return ORDINARY;
    return end_array(replies, first,
                     store_reply(entries, start, end, (Py_ssize_t)count, backwards, first + REPLY_MAX, replies, ids));
}

/* What XREAD and XREADGROUP answer of one key: its name, and entries as above */
static int reply_read(Run *run, View key, EntryStore *entries, Id after, int64_t count, Buf *ids)
{
    Buf *replies = &run->of->replies;
    Py_ssize_t before = replies->size;
    if (buf_add(replies, run->resp == 2 ? "*1\r\n*2\r\n" : "%1\r\n", run->resp == 2 ? 8 : 4) == 0
        && buf_bulk(replies, key.data, key.size) == 0 && reply_entries(run, entries, after + 1, ID_MAX, count, 0, ids) == DONE)
        return DONE;
    replies->size = before;
    return ORDINARY;
}

static int run_range(Run *run, int backwards)
{
    PyObject *stream;
    Id start, end;
    int64_t count = -1;
    if (run->count == 6) {
        count = is_word(run->words[4], "COUNT") ? get_number(run->words[5]) : 0;
        if (count < 1)
            return ORDINARY;
    } else if (run->count != 4)
        return ORDINARY;
    if (!get_edge(run->words[2 + backwards], 0, &start) || !get_edge(run->words[3 - backwards], 1, &end))
        return ORDINARY;
    EntryStore *entries = get_entries(run, run->words[1], &stream);
    if (entries == NULL)
        return ORDINARY;
    int result = reply_entries(run, entries, start, end, count, backwards, NULL);
    run->hits += result == DONE;
    Py_DECREF(entries);
    return result;
}

static int run_xrange(Run *run) { return run_range(run, 0); }

static int run_xrevrange(Run *run) { return run_range(run, 1); }

/* XREAD [COUNT n] [BLOCK ms] STREAMS key id, where there is something */
static int run_xread(Run *run)
{
    PyObject *stream;
    Py_ssize_t at = 1;
    int64_t count = -1;
    Id after;
    for (; run->count > at + 3; at += 2) {
        int64_t value = get_number(run->words[at + 1]);
        int is_count = is_word(run->words[at], "COUNT");
        if (value < 0 || value > LARGEST || !(is_count || is_word(run->words[at], "BLOCK")))
            return ORDINARY;
        if (is_count)
            count = value ? value : -1;
    }
    if (run->count != at + 3 || !is_word(run->words[at], "STREAMS"))
        return ORDINARY;
    View key = run->words[at + 1], id = run->words[at + 2];
    if (!get_id(id, &after) || after == ID_MAX)
        return ORDINARY;
    EntryStore *entries = get_entries(run, key, &stream);
    if (entries == NULL)
        return ORDINARY;
    int result = ORDINARY;
    if (store_length(entries) && store_last_live(entries) > after)
        result = reply_read(run, key, entries, after, count, NULL);
    run->hits += result == DONE;
    Py_DECREF(entries);
    return result;
}

#include "run_groups.h"

/* Plain of a primary alone */
static int leave(Run *Py_UNUSED(run)) { return ORDINARY; }

/* In the order of millstream.node.plain.NAMES; with the fewest words of one that writes, as the command table has it, and
 * what runs it for a primary, if that is plain */
static const struct {
    const char *name;
    int (*handler)(Run *);
    int fewest;
    int (*obeyed)(Run *);
} commands[] = {
    {"get", run_get, 0, NULL},          {"ping", run_ping, 0, NULL},
    {"set", run_set, 3, run_set},       {"xack", run_xack, 4, run_xack},
    {"xadd", run_xadd, 5, run_xadd},    {"xautoclaim", run_xautoclaim, 6, NULL},
    {"xclaim", run_xclaim, 6, obey_xclaim}, {"xgroup|setid", leave, 0, obey_setid},
    {"xlen", run_xlen, 0, NULL},        {"xpending", run_xpending, 0, NULL},
    {"xrange", run_xrange, 0, NULL},    {"xread", run_xread, 0, NULL},
    {"xreadgroup", run_xreadgroup, 7, NULL}, {"xrevrange", run_xrevrange, 0, NULL},
};
#define SETID 7 /* its place in the table */
#define COMMANDS ((int)(sizeof commands / sizeof *commands))
static PyObject *names[COMMANDS];

static int find_command(View word)
{
    if (word.size == 0)
        return -1;
    for (int at = 0; at < COMMANDS; at++)
        if ((*commands[at].name ^ *word.data) == 0x20 || *commands[at].name == *word.data) /* the first letter */
            if (is_word(word, commands[at].name))
                return at;
    return -1;
}

/* The command in run->words, if what a primary says in it may be plain; -1: it is not */
static int find_obeyed(Run *run)
{
    if (run->count == 7 && is_word(run->words[0], "XGROUP") && is_word(run->words[1], "SETID"))
        return SETID;
    int command = find_command(run->words[0]);
    return command >= 0 && commands[command].obeyed != NULL && run->count >= commands[command].fewest ? command : -1;
}

/* ---------------------------------------------------------------- a run */

static uint64_t nanoseconds(void)
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

/* What came of it; changes that were made must be logged, so a lack of memory here is the caller's to end by */
static PyObject *make_result(Run *run, Py_ssize_t at, PyObject *words, Py_ssize_t count, int last, Py_ssize_t whole)
{
    PyObject *result = PyStructSequence_New(&RunType);
    if (result == NULL) {
        Py_XDECREF(words);
        Py_XDECREF(run->woken);
        return NULL;
    }
    PyStructSequence_SET_ITEM(result, 0, PyLong_FromSsize_t(at));
    PyStructSequence_SET_ITEM(result, 1, words == NULL ? Py_NewRef(Py_None) : words);
    PyStructSequence_SET_ITEM(result, 2, PyLong_FromSsize_t(count));
    PyStructSequence_SET_ITEM(result, 3, Py_NewRef(last < 0 ? s_nothing : names[last]));
    PyStructSequence_SET_ITEM(result, 4, buf_bytes(&run->of->replies));
    PyStructSequence_SET_ITEM(result, 5, make_record(run));
    PyStructSequence_SET_ITEM(result, 6, PyLong_FromSsize_t(run->changes));
    PyStructSequence_SET_ITEM(result, 7, PyLong_FromSsize_t(run->hits));
    PyStructSequence_SET_ITEM(result, 8, PyLong_FromSsize_t(run->misses));
    PyStructSequence_SET_ITEM(result, 9, run->woken == NULL ? Py_NewRef(Py_None) : run->woken);
    PyStructSequence_SET_ITEM(result, 10, PyBool_FromLong(run->written && run->written == run->soft));
    PyStructSequence_SET_ITEM(result, 11, PyLong_FromSsize_t(whole));
    for (int item = 0; item < 12; item++)
        if (PyStructSequence_GET_ITEM(result, item) == NULL) {
            Py_DECREF(result);
            return NULL;
        }
    return result;
}

/* Keeps a command (a new reference, or NULL) that took long; where there is no memory for that, it is not kept */
static void keep_slow(Runner *of, PyObject *command, uint64_t nanoseconds)
{
    PyObject *pair = command == NULL ? NULL : Py_BuildValue("(OK)", command, (unsigned long long)nanoseconds);
    if (pair == NULL || PyList_Append(of->slow, pair) < 0)
        PyErr_Clear();
    Py_XDECREF(pair);
    Py_XDECREF(command);
}

/* A command was run since a time; what time it is now */
static uint64_t count_command(Run *run, int command, uint64_t before, const char *at, const char *next)
{
    uint64_t after = nanoseconds();
    run->of->calls[command]++;
    run->of->nanoseconds[command] += after - before;
    if (after - before >= (uint64_t)run->slow_from)
        keep_slow(run->of, PyBytes_FromStringAndSize(at, next - at), after - before);
    return after;
}

/* Runs what is plain of a client; where it ended, with the words of a command that is not in *other */
static const char *run_commands(Run *run, const char *at, const char *end, PyObject **other, Py_ssize_t *count, int *last)
{
    Runner *of = run->of;
    uint64_t before = nanoseconds();
    while (*count < COMMANDS_MAX && of->replies.size < REPLIES_MAX && run->woken == NULL) {
        const char *next = split(run, at, end);
        if (next == NULL)
            break;
        int command = find_command(run->words[0]);
        if (command < 0 || commands[command].handler(run) != DONE) {
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

#include "run_obeyed.h"

/* Makes a run ready for the keys of a database; -1 with an exception, and then it is to be closed, too */
static int open_run(Run *run, PyObject *database)
{
    PyObject *index = PyObject_GetAttr(database, s_index);
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

static void close_run(Run *run)
{
    give_back(&run->of->replies);
    give_back(&run->of->steps);
    give_back(&run->of->words);
    Py_CLEAR(run->key);
    Py_CLEAR(run->keys);
    Py_CLEAR(run->expires);
}

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
        int last = -1;
        const char *data = PyBytes_AS_STRING(args[1]);
        const char *whole = data + first, *at = obeys ? obey_commands(&run, &whole, data + size, run.resp, &other, &count, &last)
                                                      : run_commands(&run, whole, data + size, &other, &count, &last);
        if (!obeys)
            whole = at;
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

PyObject *queue_plain(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t nargs)
{
    Py_ssize_t first = nargs == 2 && PyBytes_Check(args[0]) ? PyLong_AsSsize_t(args[1]) : -1;
    if (first < 0 || first > PyBytes_GET_SIZE(args[0]))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "queue_plain(data, at)");
    Runner of = {.words = {0}};
    Run run = {.of = &of};
    const char *data = PyBytes_AS_STRING(args[0]), *end = data + PyBytes_GET_SIZE(args[0]), *at = data + first, *next;
    Py_ssize_t count = 0, words = 0, size = 0;
    int last = -1;
    while (count < COMMANDS_MAX && (next = split(&run, at, end)) != NULL) {
        int command = find_command(run.words[0]);
        if (command < 0 || commands[command].fewest == 0 || run.count < commands[command].fewest)
            break;
        for (Py_ssize_t word = 0; word < run.count; word++)
            size += run.words[word].size;
        words += run.count;
        last = command;
        at = next;
        count++;
    }
    buf_free(&of.words);
    return Py_BuildValue("(nnnns)", at - data, count, size, words, last < 0 ? "" : commands[last].name);
}

#include "run_scripts.h"

static PyObject *runner_drain(Runner *self, PyObject *Py_UNUSED(nothing))
{
    PyObject *list = PyList_New(COMMANDS);
    for (int at = 0; list != NULL && at < COMMANDS; at++) {
        PyObject *pair = Py_BuildValue("(KK)", (unsigned long long)self->calls[at],
                                       (unsigned long long)self->nanoseconds[at]);
        if (pair == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, at, pair);
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
    self->records = records;
    self->stream_type = find_type("millstream.engine.streams.stream", "Stream");
    self->string_type = find_type("millstream.engine.keyspace", "StringValue");
    self->slow = PyList_New(0);
    if (self->stream_type == NULL || self->string_type == NULL || self->slow == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int runner_traverse(Runner *self, visitproc visit, void *arg)
{
    Py_VISIT(self->config);
    Py_VISIT(self->waiting);
    Py_VISIT(self->claiming);
    Py_VISIT(self->stream_type);
    Py_VISIT(self->string_type);
    Py_VISIT(self->slow);
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
    {"records", T_INT, offsetof(Runner, records), 0, "See millstream.node.plain.PlainRunner."},
    {"slow", T_OBJECT_EX, offsetof(Runner, slow), READONLY, "See millstream.node.plain.PlainRunner."},
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

static PyStructSequence_Field run_fields[] = {
    {"at", NULL},     {"words", NULL}, {"commands", NULL}, {"last", NULL},   {"replies", NULL}, {"record", NULL},
    {"changes", NULL}, {"hits", NULL},  {"misses", NULL}, {"woken", NULL}, {"soft", NULL},
    {"whole", NULL},  {NULL, NULL},
};
static PyStructSequence_Desc run_description = {"millstream._native.PlainRun", "See millstream.node.plain.PlainRun.", run_fields, 12};

int runner_prepare(void)
{
    const struct {
        PyObject **place;
        const char *text;
    } strings[] = {
        {&s_nothing, ""},
        {&s_keys, "keys"},
        {&s_expires, "expires"},
        {&s_index, "index"},
        {&s_data, "_data"},
        {&s_buffer, "_buffer"},
        {&s_entries, "entries"},
        {&s_last_id, "last_id"},
        {&s_entries_added, "entries_added"},
        {&s_groups, "groups"},
        {&s_max_deleted, "max_deleted"},
        {&s_node_max_bytes, "node_max_bytes"},
        {&s_node_max_entries, "node_max_entries"},
        {&s_slow_from, "slow_from"},
        {&s_sync_replicas, "sync_replicas"},
    };
    for (size_t at = 0; at < sizeof strings / sizeof *strings; at++)
        if ((*strings[at].place = PyUnicode_InternFromString(strings[at].text)) == NULL)
            return -1;
    for (int at = 0; at < COMMANDS; at++)
        if ((names[at] = PyUnicode_InternFromString(commands[at].name)) == NULL)
            return -1;
    if (PyStructSequence_InitType2(&RunType, &run_description) < 0)
        return -1;
    for (int at = 0; at < run_description.n_in_sequence; at++) /* no item is NULL; the interpreter reads these at once */
        RunType.tp_members[at].type = T_OBJECT_EX;
    return 0;
}
