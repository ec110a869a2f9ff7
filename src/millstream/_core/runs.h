/* Declarations that the files of the runner of plain commands share: the runner, the run at work, and tools for
 * handlers.
 *
 * run_words.c reads words, run_entries.c and run_groups.c have the handlers. run.c has the table of commands and the
 * runs, run_scripts.c runs a script's commands, runner.c has the type. Each of these calls only those named before it.
 *
 * Invariants, of all these files:
 *  - A command is taken only if all of it is here and written in the one usual form; nothing after `end` is read.
 *  - A handler returns DONE or ORDINARY. DONE: it has made all changes of the command, and written its reply and its
 *    step of the log's record. ORDINARY: it has changed nothing, written nothing, and left no exception.
 *  - So a handler asks for all the memory it needs before it changes anything; unusual commands and failures take the
 *    ordinary way.
 *  - None of it runs Python code, in which a signal's exception could come up with commands done and not yet recorded.
 *  - Steps are MessagePack as millstream/node/log/codec.py writes it, with the shortest form of every number.
 *
 * The handlers in millstream/commands are the specification; tests/node/test_batch.py compares.
 */
#ifndef MILLSTREAM_RUNS_H
#define MILLSTREAM_RUNS_H
#include <strings.h>

#include "pending.h"

#define COMMANDS_MAX 512        /* of one run; then other clients have their turn */
#define REPLIES_MAX (256 << 10) /* bytes of one run; then they are to be sent */
#define REPLY_MAX (4 << 20)     /* bytes of one reply; a larger one takes the ordinary way, which holds it once */
#define ENTRIES_MAX 10000       /* of one reply; more are not copied but shared, which the ordinary way does */
#define LARGEST (1LL << 31)     /* a count or a time above this takes the ordinary way */

enum { ORDINARY, DONE };

/* The commands that have plain forms; forms in run.c has a row for each */
typedef enum {
    GET,
    PING,
    SET,
    XACK,
    XADD,
    XAUTOCLAIM,
    XCLAIM,
    XGROUP_SETID,
    XLEN,
    XPENDING,
    XRANGE,
    XREAD,
    XREADGROUP,
    XREVRANGE,
    COMMANDS, /* how many they are */
    OTHER = -1
} Command;

typedef struct Runner Runner;

/* The run at work */
typedef struct {
    Runner *of;
    PyObject *database, *keys, *expires;
    PyObject *key;            /* the key last looked up; commands of one run are often about one */
    uint64_t db, wall;
    Command command; /* at work; set for clients, whose rights may be restricted */
    int resp, obeys; /* obeys: a primary says it; its replies go nowhere */
    int64_t max_bytes, max_entries, slow_from; /* slow_from: nanoseconds */
    Py_ssize_t changes, written, soft, hits, misses; /* written: steps of the record; one may be many changes */
    Py_ssize_t begun, grown; /* bytes: streams counted when it began; keys and strings grew since the last settle_growth */
    PyObject *woken;
    int delivered; /* a step delivers entries; replicas are told their ids after the run, so nothing may trim them in it */
    View *words; /* of the command at work */
    Py_ssize_t count; /* words */
} Run;

struct Runner {
    PyObject_HEAD
    PyObject *config, *waiting, *claiming;
    PyObject *rights;    /* a dict: the commands that the client may run by key, a bit for each; None: all */
    PyTypeObject *stream_type, *string_type;
    Py_ssize_t data_at, buffer_at; /* offsets of a string's slots: reading them by name costs a call each */
    Py_ssize_t entries_at, last_id_at, added_at, groups_at, max_deleted_at; /* those of a stream's slots */
    int records;
    long long room;      /* bytes that commands of clients may add; those that add more take the ordinary way */
    Buf replies, steps, words; /* words: a View of each */
    uint64_t calls[COMMANDS], nanoseconds[COMMANDS];
    PyObject *slow;      /* a list: the commands that took long, each as it was sent, with its nanoseconds */
    Run script;          /* of a script's commands, between begin and end; keys is NULL without one */
    PyObject *table;     /* makes a table of the script's of a list */
    PyObject *faults;    /* a list: what came up, for who runs the script */
    uint64_t ends;       /* the time after which no more commands of it are run */
    Py_ssize_t commands; /* of the script */
    Command last;        /* of them */
};

/* A slot of an object, at an offset that find_slot has found */
#define SLOT(object, at) (*(PyObject **)((char *)(object) + (at)))

/* ---------------------------------------------------------------- run_words.c: each get_... returns 0 for another form */

const char *split(Run *run, const char *at, const char *end); /* a command into run->words; where it ends, or NULL */
int64_t get_number(View word);                                /* -1 for any other form */
int get_id(View word, Id *id);                                /* "ms" or "ms-seq" */
int get_edge(View word, int is_end, Id *id);                  /* an end of a range, which "(" leaves out */

static inline int is_word(View word, const char *name)
{
    return (Py_ssize_t)strlen(name) == word.size && strncasecmp(word.data, name, (size_t)word.size) == 0;
}

static inline int is_sign(View word, char sign) { return word.size == 1 && *word.data == sign; }

/* ---------------------------------------------------------------- steps of the record */

static inline char *put_binary_head(char *at, uint64_t size)
{
    int power = size < 1 << 8 ? 0 : size < 1 << 16 ? 1 : 2;
    *at++ = (char)(0xc4 + power);
    return put_integer(at, 1 << power, size);
}

/* Five bytes and the word */
static inline char *put_binary(char *at, View word)
{
    return put_bytes(put_binary_head(at, (uint64_t)word.size), word.data, word.size);
}

static inline char *put_op(char *at, Run *run, Py_ssize_t arguments, const char *op)
{
    size_t size = strlen(op);
    at = put_array(at, (uint64_t)arguments + 1);
    *at++ = (char)(0xa0 | size);
    return put_unsigned(put_bytes(at, op, (Py_ssize_t)size), run->db);
}

/* Room for a step with all the words, for more bytes of steps, and for a short reply */
static inline int reserve(Run *run, Py_ssize_t more)
{
    Py_ssize_t size = 64 + more;
    for (Py_ssize_t at = 0; at < run->count; at++)
        size += run->words[at].size + 5;
    return (run->of->records && buf_reserve(&run->of->steps, size) < 0) || buf_reserve(&run->of->replies, 128) < 0;
}

/* ---------------------------------------------------------------- run_entries.c: strings and entries */

int run_get(Run *run), run_ping(Run *run), run_set(Run *run), run_xadd(Run *run), run_xlen(Run *run), run_xrange(Run *run),
    run_xread(Run *run), run_xrevrange(Run *run);

static inline int is_restricted(const Run *run) { return run->of->rights != Py_None; }
/* The entries of the stream at a key (a new reference); NULL if there is none */
EntryStore *get_entries(Run *run, View word, PyObject **stream);
/* Whether somebody waits for the key at work, or waits to claim there; -1 on an error */
int is_waited_for(Run *run, PyObject *places);
/* Whether a command that adds must be refused, or seen to by the ordinary way; what a primary says is never refused */
static inline int is_full(const Run *run) { return !run->obeys && counted - run->begun + run->grown > run->of->room; }
int get_limit(PyObject *config, PyObject *name, int64_t *limit); /* -1 with an exception */
/* Begins an array in replies, of which it is known behind them how many items it has; where they begin, or -1 */
Py_ssize_t begin_array(Buf *replies);
/* Moves the items up to their head; ORDINARY where count is -1 or they are too many bytes, and nothing is there of them */
int end_array(Buf *replies, Py_ssize_t first, Py_ssize_t count);
/* What XREAD and XREADGROUP answer of one key: its name, and entries, whose ids go to ids, which may be NULL */
int reply_read(Run *run, View key, EntryStore *entries, Id after, int64_t count, Buf *ids);
int entries_prepare(void);

/* ---------------------------------------------------------------- run_groups.c */

int run_xack(Run *run), run_xautoclaim(Run *run), run_xclaim(Run *run), run_xpending(Run *run), run_xreadgroup(Run *run),
    obey_setid(Run *run), obey_xclaim(Run *run);

/* ---------------------------------------------------------------- run.c */

uint64_t nanoseconds(void);
Command find_command(View word);     /* OTHER: it has no plain form */
int run_handler(Run *run, Command command);
/* Makes a run ready for the keys of a database; -1 with an exception, and then it is to be closed, too */
int open_run(Run *run, PyObject *database);
void close_run(Run *run);
void settle_growth(Run *run);         /* counts in the database what keys and strings have grown */
/* Runs what is plain of a client; where it ended, with the words of a command that is not in *other */
const char *run_commands(Run *run, const char *at, const char *end, PyObject **other, Py_ssize_t *count, Command *last);
/* Runs what is plain of a primary from *whole on, in a transaction if it is open; where it ended. *whole is after the last
 * unit of which all was run, so it is the same unless a transaction is open; *other is a command of that which is not plain. */
const char *obey_commands(Run *run, const char **whole, const char *end, int is_open, PyObject **other, Py_ssize_t *count,
                          Command *last);
extern PyObject *command_names; /* a tuple in the order of Command */
/* What came of it; changes that were made must be logged, so a lack of memory here is the caller's to end by */
PyObject *make_result(Run *run, Py_ssize_t at, PyObject *words, Py_ssize_t count, Command last, Py_ssize_t whole);
/* Keeps a command (a new reference, or NULL) that took long; where there is no memory for that, it is not kept */
void keep_slow(Runner *of, PyObject *command, uint64_t took);

/* ---------------------------------------------------------------- run_scripts.c: methods of the type */

PyObject *runner_begin(Runner *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *runner_call(Runner *self, PyObject *data);
PyObject *runner_end(Runner *self, PyObject *nothing);
void end_script(Runner *self);

#endif
