/* The plain forms of GET, PING, SET, XADD, XLEN, XRANGE, XREVRANGE and XREAD, and keys as handlers find them. */
#include "extent.h"
#include "runs.h"

static PyObject *s_sync_replicas;

int entries_prepare(void)
{
    const Name names[] = {{&s_sync_replicas, "sync_replicas"}};
    return intern_names(names, sizeof names / sizeof *names);
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

/* Whether the client's user may run the command at work on a key */
static int may_use(const Run *run, PyObject *key)
{
    PyObject *rights = run->of->rights;
    PyObject *bits = rights != NULL && PyDict_Check(rights) ? PyDict_GetItemWithError(rights, key) : NULL;
    return bits != NULL && PyLong_Check(bits) && (PyLong_AsLong(bits) >> run->command & 1);
}

/* The value at a key (borrowed, NULL if there is none); 0 if the key may have to be deleted first, the client may not use
 * it, or on an error. Every handler but PING's comes here for its only key. */
static int look_up(Run *run, View word, PyObject **value)
{
    PyObject *key = get_key(run, word);
    if (key == NULL || (is_restricted(run) && !may_use(run, key)))
        return 0;
    if (PyDict_GET_SIZE(run->expires) && PyDict_Contains(run->expires, key))
        return 0;
    *value = PyDict_GetItemWithError(run->keys, key);
    return *value != NULL || !PyErr_Occurred();
}

EntryStore *get_entries(Run *run, View word, PyObject **stream)
{
    if (!look_up(run, word, stream) || *stream == NULL || Py_TYPE(*stream) != run->of->stream_type)
        return NULL;
    PyObject *entries = SLOT(*stream, run->of->entries_at);
    return entries != NULL && Py_TYPE(entries) == &EntryStoreType ? (EntryStore *)Py_NewRef(entries) : NULL;
}

int is_waited_for(Run *run, PyObject *places)
{
    if (PyDict_GET_SIZE(places) == 0)
        return 0;
    PyObject *place = Py_BuildValue("(KO)", (unsigned long long)run->db, run->key);
    int found = place == NULL ? -1 : PyDict_Contains(places, place);
    Py_XDECREF(place);
    return found;
}

/* ---------------------------------------------------------------- the commands */

int get_limit(PyObject *config, PyObject *name, int64_t *limit)
{
    PyObject *value = PyObject_GetAttr(config, name);
    *limit = value == NULL ? -1 : PyLong_AsLongLong(value);
    Py_XDECREF(value);
    return *limit == -1 && PyErr_Occurred() ? -1 : 0;
}

/* With sync-replicas what a run answers may wait without end, and a PING must not: its own reply tells of no data */
int run_ping(Run *run)
{
    int64_t replicas;
    if (run->count != 1 || is_restricted(run) || get_limit(run->of->config, s_sync_replicas, &replicas) < 0 || replicas)
        return ORDINARY;
    return buf_add(&run->of->replies, "+PONG\r\n", 7) < 0 ? ORDINARY : DONE;
}

/* The bytes of a string (borrowed), NULL while its parts are being changed; its own code would be Python's */
static PyObject *get_data(const Run *run, PyObject *string)
{
    PyObject *data = SLOT(string, run->of->data_at);
    return SLOT(string, run->of->buffer_at) == Py_None && data != NULL && PyBytes_CheckExact(data) ? data : NULL;
}

/* The same string as StringValue(data) */
static PyObject *make_string(Run *run, View word)
{
    PyTypeObject *type = run->of->string_type;
    PyObject *data = PyBytes_FromStringAndSize(word.data, word.size), *value = data == NULL ? NULL : type->tp_alloc(type, 0);
    if (value == NULL) {
        Py_XDECREF(data);
        return NULL;
    }
    SLOT(value, run->of->data_at) = data;
    SLOT(value, run->of->buffer_at) = Py_NewRef(Py_None);
    return value;
}

int run_get(Run *run)
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
    PyObject *data = get_data(run, value);
    if (data == NULL || PyBytes_GET_SIZE(data) > REPLY_MAX
        || buf_bulk(replies, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)) < 0)
        return ORDINARY;
    run->hits++;
    return DONE;
}

/* What a key and its string count for in a database more with a new string; -1 where the old value is none that is whole.
 * 90 is STRING_SIZE of millstream.engine.keyspace. */
static int get_growth(Run *run, PyObject *old, Py_ssize_t size, Py_ssize_t *growth)
{
    *growth = size + PyBytes_GET_SIZE(run->key) + 90;
    if (old == NULL)
        return 0;
    PyObject *data = Py_TYPE(old) == run->of->string_type ? get_data(run, old) : NULL;
    if (data == NULL)
        return -1;
    *growth = size - PyBytes_GET_SIZE(data);
    return 0;
}

int run_set(Run *run)
{
    PyObject *old;
    Py_ssize_t growth;
    if (run->count != 3 || is_full(run) || !look_up(run, run->words[1], &old) || is_waited_for(run, run->of->waiting)
        || get_growth(run, old, run->words[2].size, &growth) < 0 || reserve(run, 0))
        return ORDINARY;
    PyObject *value = make_string(run, run->words[2]);
    int failed = value == NULL || PyDict_SetItem(run->keys, run->key, value) < 0;
    Py_XDECREF(value);
    if (failed)
        return ORDINARY;
    run->grown += growth;
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

/* MAXLEN or MINID of XADD, without LIMIT and without a policy */
typedef struct {
    enum { UNCAPPED, LENGTH, LOWEST } kind;
    int is_exact; /* "=", or no sign */
    Id threshold; /* a number of entries, or an id */
} Cap;

/* Where the id of an XADD is, behind a cap; 0 for other options */
static Py_ssize_t get_cap(const Run *run, Cap *cap)
{
    View word = run->words[2];
    cap->kind = is_word(word, "MAXLEN") ? LENGTH : is_word(word, "MINID") ? LOWEST : UNCAPPED;
    if (cap->kind == UNCAPPED)
        return 2;
    cap->is_exact = !is_sign(run->words[3], '~');
    Py_ssize_t at = !cap->is_exact || is_sign(run->words[3], '=') ? 4 : 3;
    word = run->words[at];
    int64_t length = cap->kind == LENGTH ? get_number(word) : 0;
    if (length < 0 || (cap->kind == LOWEST && !get_id(word, &cap->threshold)))
        return 0;
    cap->threshold = cap->kind == LENGTH ? (Id)length : cap->threshold;
    return at + 1;
}

/* The id below which entries go, as _bound in commands/streams/trimming.py finds it; *all: every entry goes */
static Id find_bound(const Run *run, EntryStore *store, const Cap *cap, int *all)
{
    Py_ssize_t length = store_length(store), removed = 0, wanted = cap->kind == LENGTH ? (Py_ssize_t)cap->threshold : 0;
    int64_t budget = run->max_entries <= 0 ? 10000 : run->max_entries < 10000 ? 100 * run->max_entries : 1000000;
    for (Py_ssize_t index = 0; index < store->count; index++) {
        Node *node = STORE_NODE(store, index);
        if ((cap->kind == LENGTH && length <= wanted) || (!cap->is_exact && removed + node->live > budget))
            return node->first;
        if (cap->kind == LENGTH ? length - node->live >= wanted : node->last < cap->threshold) {
            length -= node->live;
            removed += node->live;
            continue;
        }
        if (!cap->is_exact)
            return node->first;
        if (cap->kind == LOWEST)
            return cap->threshold;
        Walk walk;
        Entry entry = {.id = node->first};
        walk_begin(&walk, store, node->first, ID_MAX, 0);
        for (Py_ssize_t left = length - wanted; left >= 0 && walk_next(&walk, &entry) > 0;)
            left--;
        walk_end(&walk);
        return entry.id;
    }
    *all = 1;
    return ID_MAX;
}

/* Removes what is above the cap, and writes the step of it */
static void trim(Run *run, EntryStore *store, const Cap *cap)
{
    int all = 0;
    Id bound = find_bound(run, store, cap, &all), first = store_first_live(store);
    if (store->count == 0 || !(all || (first > 0 && first < bound) || STORE_NODE(store, 0)->last < bound))
        return;
    store_cut(store, bound, all, 1);
    if (run->of->records) {
        Buf *steps = &run->of->steps;
        char packed[16];
        id_to_bytes(bound, packed);
        char *at = put_binary(put_op(steps->data + steps->size, run, 5, "xtrim"), run->words[1]);
        if (all)
            *at++ = (char)0xc0;
        else
            at = put_binary(at, (View){packed, 16});
        *at++ = (char)0xc2;
        *at++ = (char)0xc3;
        steps->size = at - steps->data;
    }
    run->written++;
}

/* Adds the entry of the words from `from` on under an id, or 0: the next one; its id, or 0 */
static Id add_entry(Run *run, PyObject *stream, EntryStore *entries, Id wanted, Py_ssize_t from, int *fresh)
{
    Id last = 0;
    Py_ssize_t size = 0;
    PyObject **old_last = &SLOT(stream, run->of->last_id_at), **old_added = &SLOT(stream, run->of->added_at);
    long long added = *old_added == NULL ? -1 : PyLong_AsLongLong(*old_added);
    if (*old_last == NULL || added < 0 || added == LLONG_MAX || id_from_int(*old_last, &last) < 0 || last == ID_MAX)
        return 0;
    for (Py_ssize_t at = from; at < run->count; at++)
        size += run->words[at].size;
    Id next = wanted ? wanted : ID_MAKE(run->wall, 0);
    if (next <= last) {
        if (wanted)
            return 0;
        next = last + 1;
    }
    PyObject *new_last = id_to_int(next), *new_added = PyLong_FromLongLong(added + 1);
    *fresh = store_needs_node(entries, size, run->max_bytes, run->max_entries);
    if (new_last == NULL || new_added == NULL
        || store_append(entries, next, run->words + from, run->count - from, *fresh) < 0) {
        Py_XDECREF(new_last);
        Py_XDECREF(new_added);
        return 0;
    }
    Py_SETREF(*old_last, new_last);
    Py_SETREF(*old_added, new_added);
    return next;
}

int run_xadd(Run *run)
{
    PyObject *stream;
    Id wanted = 0;
    Cap cap;
    Py_ssize_t from = run->count < 5 || is_full(run) ? 0 : get_cap(run, &cap) + 1; /* the first field */
    if (from < 3 || run->count < from + 2 || (run->count - from) % 2)
        return ORDINARY;
    int is_next = !run->obeys && is_sign(run->words[from - 1], '*');
    if (!is_next && (!get_id(run->words[from - 1], &wanted) || wanted == 0))
        return ORDINARY;
    EntryStore *entries = get_entries(run, run->words[1], &stream);
    if (entries == NULL)
        return ORDINARY;
    int fresh = 0, waited_for = is_waited_for(run, run->of->waiting);
    int may_trim = cap.kind == UNCAPPED || !(run->delivered || is_cold(entries));
    int is_left = waited_for < 0 || !may_trim || reserve(run, 64 + run->words[1].size);
    Id id = is_left ? 0 : add_entry(run, stream, entries, wanted, from, &fresh);
    if (id == 0) {
        Py_DECREF(entries);
        return ORDINARY;
    }
    if (run->of->records) {
        Buf *steps = &run->of->steps;
        char packed[16];
        id_to_bytes(id, packed);
        char *at = put_binary(put_op(steps->data + steps->size, run, 6, "xadd"), run->words[1]);
        at = put_array(put_binary(at, (View){packed, 16}), (uint64_t)(run->count - from));
        for (Py_ssize_t word = from; word < run->count; word++)
            at = put_binary(at, run->words[word]);
        *at++ = (char)(fresh ? 0xc3 : 0xc2);
        *at++ = (char)0xc0;
        steps->size = at - steps->data;
    }
    run->written++;
    run->changes++;
    if (cap.kind != UNCAPPED)
        trim(run, entries, &cap);
    Py_DECREF(entries);
    if (waited_for)
        run->woken = Py_NewRef(run->key);
    return buf_id_bulk(&run->of->replies, id) < 0 ? ORDINARY : DONE; /* there is room */
}

int run_xlen(Run *run)
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

Py_ssize_t begin_array(Buf *replies)
{
    if (buf_reserve(replies, HEAD_ROOM) < 0)
        return -1;
    return replies->size += HEAD_ROOM;
}

int end_array(Buf *replies, Py_ssize_t first, Py_ssize_t count)
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
    if (is_cold_id(entries, start) && (ids != NULL || !cold_runs_no_python(entries)))
        return ORDINARY; /* what is delivered is then named in its record */
    Py_ssize_t first = begin_array(replies);
    if (first < 0)
        return ORDINARY;
    cold_be_quiet(1);
    Py_ssize_t number = store_reply(entries, start, end, (Py_ssize_t)count, backwards, first + REPLY_MAX, replies, ids);
    cold_be_quiet(0);
    return end_array(replies, first, number);
}

int reply_read(Run *run, View key, EntryStore *entries, Id after, int64_t count, Buf *ids)
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

int run_xrange(Run *run) { return run_range(run, 0); }

int run_xrevrange(Run *run) { return run_range(run, 1); }

/* XREAD [COUNT n] [BLOCK ms] STREAMS key id, where there is something */
int run_xread(Run *run)
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
