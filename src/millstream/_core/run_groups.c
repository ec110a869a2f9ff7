/* The plain forms of XREADGROUP, XACK, XPENDING, XCLAIM and XAUTOCLAIM, and a primary's of XCLAIM and XGROUP SETID.
 *
 * Delivering is plain if the group reads in order: its count is known and rises with the deliveries, and nothing above
 * its position is pending. So all records are new, and those made so far are removed again if memory ends.
 */
#include "extent.h"
#include "runs.h"

#define ROWS_MAX 50000 /* of XPENDING; more are surely too many bytes, or nearly so */
#define ATTEMPTS 10    /* records that XAUTOCLAIM looks at for each one it may claim */

/* The group of a stream (borrowed, as the stream holds it); NULL if there is none */
static Group *get_group(const Run *run, PyObject *stream, View name)
{
    PyObject *groups = SLOT(stream, run->of->groups_at), *found = NULL;
    PyObject *word = groups == NULL ? NULL : PyBytes_FromStringAndSize(name.data, name.size);
    if (word != NULL && PyDict_Check(groups))
        found = PyDict_GetItemWithError(groups, word);
    Py_XDECREF(word);
    return found != NULL && Py_TYPE(found) == &GroupType ? (Group *)found : NULL;
}

static Consumer *known_consumer(const Group *group, View name)
{
    PyObject *word = PyBytes_FromStringAndSize(name.data, name.size);
    PyObject *found = word == NULL ? NULL : PyDict_GetItemWithError(group->consumers, word);
    Py_XDECREF(word);
    return found != NULL && Py_TYPE(found) == &ConsumerType ? (Consumer *)found : NULL;
}

/* A consumer who may be given entries, with its group and the stream's entries, which is a new reference */
typedef struct {
    PyObject *stream;
    EntryStore *entries;
    Group *group;
    Consumer *consumer;
} Place;

/* 0: one of them is missing, or somebody waits to claim there, and would have to be looked at again */
static int get_holder(Run *run, View key, View group, View consumer, Place *place)
{
    place->entries = get_entries(run, key, &place->stream);
    if (place->entries == NULL)
        return 0;
    place->group = get_group(run, place->stream, group);
    place->consumer = place->group == NULL ? NULL : known_consumer(place->group, consumer);
    if (place->consumer != NULL && is_waited_for(run, run->of->claiming) == 0)
        return 1;
    Py_DECREF(place->entries);
    return 0;
}

/* Whether there are entries, and the group's count goes up by one with each further one; see Stream.counts_on */
static int counts_on(const Run *run, PyObject *stream, EntryStore *entries, const Group *group)
{
    Id deleted;
    PyObject *number = SLOT(stream, run->of->max_deleted_at);
    int known = number != NULL && id_from_int(number, &deleted) == 0;
    return known && store_length(entries) && group->entries_read >= 0 && group->last_id >= store_first_live(entries)
           && (deleted == 0 || group->last_id > deleted);
}

/* Whether there is something new, in order and counted */
static int reads_in_order(const Run *run, PyObject *stream, EntryStore *entries, const Group *group)
{
    Item *last = index_last(&group->records);
    return counts_on(run, stream, entries, group) && store_last_live(entries) > group->last_id
           && (last == NULL || last->key <= group->last_id);
}

/* Gives a consumer the entries whose ids are there, none of which is pending, as delivered so often; -1: nothing is
 * changed */
static int deliver(Group *group, Consumer *consumer, const Id *ids, Py_ssize_t count, int64_t now, int64_t deliveries)
{
    for (Py_ssize_t at = 0; at < count; at++)
        if (group_assign(group, ids[at], consumer, now, deliveries) < 0) {
            while (at--)
                group_forget(group, ids[at]);
            return -1;
        }
    return 0;
}

/* Of a consumer's step what all begin with: the names, which for a key is not always the same word, and the time */
static char *put_consumer_op(Run *run, Py_ssize_t arguments, const char *op, View key)
{
    char *at = put_binary(put_op(run->of->steps.data + run->of->steps.size, run, arguments, op), key);
    return put_unsigned(put_binary(put_binary(at, run->words[2]), run->words[3]), run->wall);
}

static void put_read_step(Run *run, View key, Id after, Id last, int noack)
{
    char packed[16], *at = put_consumer_op(run, 8, "gread", key);
    id_to_bytes(last, packed);
    at = put_binary(at, (View){packed, 16});
    *at++ = (char)(noack ? 0xc3 : 0xc2);
    id_to_bytes(after, packed);
    at = put_binary(at, (View){packed, 16});
    run->of->steps.size = at - run->of->steps.data;
    run->delivered = 1;
}

/* Reads and delivers what is new; ORDINARY leaves everything as it was */
static int read_new(Run *run, EntryStore *entries, Group *group, Consumer *consumer, int64_t count, int noack)
{
    View key = run->words[run->count - 2];
    Buf ids = {0};
    Py_ssize_t before = run->of->replies.size, number = -1;
    if (reserve(run, 0) == 0 && reply_read(run, key, entries, group->last_id, count, &ids) == DONE)
        number = ids.size / (Py_ssize_t)sizeof(Id);
    const Id *found = (const Id *)ids.data;
    Id after = group->last_id;
    if (number < 1 || (!noack && deliver(group, consumer, found, number, (int64_t)run->wall, 1) < 0)) {
        run->of->replies.size = before;
        buf_free(&ids);
        return ORDINARY;
    }
    group->last_id = found[number - 1];
    group->entries_read += number < LLONG_MAX - group->entries_read ? number : LLONG_MAX - group->entries_read;
    consumer->seen = (long long)run->wall;
    if (!noack)
        consumer->active = consumer->seen;
    if (run->of->records)
        put_read_step(run, key, after, group->last_id, noack);
    run->hits++;
    run->written++;
    run->changes++;
    buf_free(&ids);
    return DONE;
}

/* XREADGROUP GROUP group consumer [COUNT n] [BLOCK ms] [NOACK] STREAMS key >, where there is something new */
int run_xreadgroup(Run *run)
{
    Py_ssize_t end = run->count - 3;
    int64_t count = -1;
    int noack = 0;
    if (end < 4 || !is_word(run->words[1], "GROUP") || !is_word(run->words[end], "STREAMS")
        || !is_sign(run->words[end + 2], '>'))
        return ORDINARY;
    for (Py_ssize_t at = 4; at < end; at++) {
        if (is_word(run->words[at], "NOACK")) {
            noack = 1;
            continue;
        }
        int is_count = is_word(run->words[at], "COUNT");
        if (at + 1 >= end || !(is_count || is_word(run->words[at], "BLOCK")))
            return ORDINARY;
        int64_t value = get_number(run->words[++at]);
        if (value < 0 || value > LARGEST)
            return ORDINARY;
        if (is_count)
            count = value ? value : -1;
    }
    Place place;
    if (!get_holder(run, run->words[end + 1], run->words[2], run->words[3], &place))
        return ORDINARY;
    int result = ORDINARY;
    if (reads_in_order(run, place.stream, place.entries, place.group)
        && ((count > 0 && count <= ENTRIES_MAX) || store_length(place.entries) <= ENTRIES_MAX))
        result = read_new(run, place.entries, place.group, place.consumer, count, noack);
    Py_DECREF(place.entries);
    return result;
}

/* The group of a key (borrowed, as the stream holds it); NULL if there is none */
static Group *find_group(Run *run)
{
    PyObject *stream;
    EntryStore *entries = get_entries(run, run->words[1], &stream);
    Group *group = entries == NULL ? NULL : get_group(run, stream, run->words[2]);
    Py_XDECREF(entries); /* the stream holds it */
    return group;
}

/* XACK key group id [id ...] */
int run_xack(Run *run)
{
    Id id;
    Py_ssize_t there = 0;
    if (run->count < 4)
        return ORDINARY;
    for (Py_ssize_t at = 3; at < run->count; at++)
        if (!get_id(run->words[at], &id))
            return ORDINARY;
    Group *group = find_group(run);
    Buf *steps = &run->of->steps;
    Py_ssize_t head = run->words[1].size + run->words[2].size + 64;
    if (group == NULL || buf_reserve(&run->of->replies, HEAD_ROOM) < 0 || buf_reserve(steps, head + 16 * run->count) < 0)
        return ORDINARY;
    char *at = steps->data + steps->size, *packed = at + head; /* they move up to what comes before them */
    for (Py_ssize_t word = 3; word < run->count; word++)
        if (get_id(run->words[word], &id) && group_forget(group, id))
            id_to_bytes(id, packed + 16 * there++);
    if (there && run->of->records) {
        at = put_binary(put_binary(put_op(at, run, 4, "gack"), run->words[1]), run->words[2]);
        at = put_binary_head(at, (uint64_t)there * 16);
        memmove(at, packed, (size_t)there * 16);
        steps->size = at + there * 16 - steps->data;
    }
    run->hits++;
    run->written += there > 0;
    run->changes += there;
    return buf_head(&run->of->replies, ':', (uint64_t)there) < 0 ? ORDINARY : DONE; /* there is room */
}

/* ---------------------------------------------------------------- XPENDING */

/* "*2": each consumer that has records and how many, by name; names are sorted */
static Py_ssize_t reply_consumers(Buf *replies, const Group *group, PyObject *sorted)
{
    Py_ssize_t rows = 0;
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(sorted); at++) {
        PyObject *name = PyList_GET_ITEM(sorted, at), *found = PyDict_GetItemWithError(group->consumers, name);
        char number[NUMBER_ROOM];
        if (found == NULL || Py_TYPE(found) != &ConsumerType)
            return -1;
        const Consumer *consumer = (Consumer *)found;
        if (consumer->records.size == 0)
            continue;
        Py_ssize_t size = put_number(number, (uint64_t)consumer->records.size) - number;
        if (buf_head(replies, '*', 2) < 0 || buf_bulk(replies, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)) < 0
            || buf_bulk(replies, number, size) < 0)
            return -1;
        rows++;
    }
    return rows;
}

static int reply_summary(Run *run, const Group *group)
{
    Buf *replies = &run->of->replies;
    Py_ssize_t before = replies->size, first;
    IndexPlace place;
    PyObject *sorted = PyDict_Keys(group->consumers); /* before a record is looked at, as it may run other code */
    Item *last = index_last(&group->records);
    int result = ORDINARY;
    if (sorted != NULL && last == NULL) {
        const char *none = run->resp == 2 ? "*4\r\n:0\r\n$-1\r\n$-1\r\n*-1\r\n" : "*4\r\n:0\r\n_\r\n_\r\n_\r\n";
        result = buf_add(replies, none, (Py_ssize_t)strlen(none)) < 0 ? ORDINARY : DONE;
    } else if (sorted != NULL && PyList_Sort(sorted) == 0 && buf_head(replies, '*', 4) == 0
               && buf_head(replies, ':', (uint64_t)group->records.size) == 0
               && buf_id_bulk(replies, index_seek(&group->records, 0, &place)->key) == 0
               && buf_id_bulk(replies, last->key) == 0 && (first = begin_array(replies)) >= 0)
        result = end_array(replies, first, reply_consumers(replies, group, sorted));
    if (result == ORDINARY)
        replies->size = before;
    Py_XDECREF(sorted);
    return result;
}

/* [IDLE ms] start end count [consumer], from the fourth word on */
static int reply_range(Run *run, const Group *group)
{
    Id start, end;
    int is_idle = run->count > 7 && is_word(run->words[3], "IDLE");
    const View *words = run->words + (is_idle ? 5 : 3);
    Py_ssize_t left = run->words + run->count - words;
    int64_t min_idle = is_idle ? get_number(run->words[4]) : 0;
    if (left < 3 || left > 4 || min_idle < 0 || !get_edge(words[0], 0, &start) || !get_edge(words[1], 1, &end))
        return ORDINARY;
    int64_t count = get_number(words[2]);
    if (count < 0)
        return ORDINARY;
    const Index *index = &group->records;
    if (left == 4) {
        const Consumer *consumer = known_consumer(group, words[3]);
        if (consumer == NULL) {
            if (PyErr_Occurred() || buf_head(&run->of->replies, '*', 0) < 0)
                return ORDINARY;
            return DONE;
        }
        index = &consumer->records;
    }
    Buf *replies = &run->of->replies;
    Py_ssize_t first = (count < index->size ? count : index->size) > ROWS_MAX ? -1 : begin_array(replies);
    if (first < 0)
        return ORDINARY;
    return end_array(replies, first,
                     index_rows(index, start, end, count, min_idle, (int64_t)run->wall, first + REPLY_MAX, replies));
}

/* XPENDING key group, and XPENDING key group [IDLE ms] start end count [consumer] */
int run_xpending(Run *run)
{
    Group *group = run->count < 3 ? NULL : find_group(run);
    int result = group == NULL ? ORDINARY : run->count == 3 ? reply_summary(run, group) : reply_range(run, group);
    run->hits += result == DONE;
    return result;
}

/* ---------------------------------------------------------------- claims */

typedef struct {
    int64_t time, retry_count; /* retry_count: -1 without one */
    int just_id;
} Claim;

/* Of what is claimed, "*n" and ids or entries; ORDINARY: not all there, too many bytes, no memory */
static int reply_claimed(Run *run, const Found *found, EntryStore *entries, int just_id)
{
    Buf *replies = &run->of->replies;
    Walk walk = {0};
    Entry entry;
    Py_ssize_t first, count = FOUND_COUNT(found);
    if (buf_head(replies, '*', (uint64_t)count) < 0)
        return ORDINARY;
    first = replies->size;
    for (Py_ssize_t at = 0; at < count; at++) {
        const Record *record = FOUND(found)[at];
        if (record->count < 0)
            return ORDINARY;
        if (just_id ? buf_id_bulk(replies, record->id) < 0
                    : is_cold_id(entries, record->id) || !find_on(&walk, entries, record->id, &entry)
                          || node_emit(walk.node, &entry, replies) < 0)
            return ORDINARY;
        if (replies->size >= first + REPLY_MAX)
            return ORDINARY;
    }
    return DONE;
}

/* The step of a claim, in the room that there is; sets the counts of deliveries */
static void put_claim_step(Run *run, const Found *found, const Claim *claim)
{
    Py_ssize_t count = FOUND_COUNT(found);
    char *at = put_unsigned(put_consumer_op(run, 8, "gclaim", run->words[1]), (uint64_t)claim->time);
    at = put_binary_head(at, (uint64_t)count * 16);
    for (Py_ssize_t each = 0; each < count; each++, at += 16)
        id_to_bytes(FOUND(found)[each]->id, at);
    at = put_array(at, (uint64_t)count);
    for (Py_ssize_t each = 0; each < count; each++) {
        Record *record = FOUND(found)[each];
        if (claim->retry_count >= 0)
            record->count = claim->retry_count;
        else if (!claim->just_id && record->count < INT64_MAX)
            record->count++;
        at = put_unsigned(at, (uint64_t)record->count);
    }
    if (run->of->records)
        run->of->steps.size = at - run->of->steps.data;
}

/* The consumer was here, and claimed nothing; no reply waits for that */
static void note_seen(Run *run, Consumer *consumer)
{
    if (consumer->seen == (long long)run->wall)
        return;
    consumer->seen = (long long)run->wall;
    if (run->of->records)
        run->of->steps.size = put_consumer_op(run, 5, "cseen", run->words[1]) - run->of->steps.data;
    run->written++;
    run->soft++;
}

/* Gives what was found to the consumer and answers with it, if all is `well`; lets go of what was found and of the place */
static int claim_found(Run *run, Place *place, Found *found, const Claim *claim, int well, int with_cursor)
{
    Buf *replies = &run->of->replies;
    Py_ssize_t before = replies->size, count = FOUND_COUNT(found);
    Py_ssize_t room = run->words[1].size + run->words[2].size + run->words[3].size + 64 + 25 * count;
    int result = ORDINARY;
    if (well && (!with_cursor || (buf_head(replies, '*', 3) == 0 && buf_id_bulk(replies, found->cursor) == 0))
        && reply_claimed(run, found, place->entries, claim->just_id) == DONE
        && (!with_cursor || buf_head(replies, '*', 0) == 0) && buf_reserve(&run->of->steps, room) == 0
        && (count == 0 || group_claim(place->group, FOUND(found), count, place->consumer, claim->time) == 0)) {
        if (count) {
            put_claim_step(run, found, claim);
            place->consumer->seen = place->consumer->active = (long long)run->wall;
            run->written++;
            run->changes += count;
        } else
            note_seen(run, place->consumer);
        run->hits++;
        result = DONE;
    } else
        replies->size = before;
    found_free(found);
    Py_DECREF(place->entries);
    return result;
}

/* XCLAIM's options from a word on; 0 if there is another one */
static int get_claim(Run *run, Py_ssize_t at, Claim *claim)
{
    for (; at < run->count; at++) {
        View word = run->words[at];
        if (is_word(word, "JUSTID")) {
            claim->just_id = 1;
            continue;
        }
        int64_t value = at + 1 < run->count ? get_number(run->words[++at]) : -1;
        if (value < 0)
            return 0;
        if (is_word(word, "RETRYCOUNT"))
            claim->retry_count = value;
        else if (is_word(word, "TIME") || is_word(word, "IDLE"))
            claim->time = is_word(word, "TIME") ? value : (int64_t)run->wall - value;
        else
            return 0;
    }
    if (claim->time < 0 || claim->time > (int64_t)run->wall)
        claim->time = (int64_t)run->wall;
    return 1;
}

/* The records of the words from the sixth on that may be claimed; -1: one is without its entry, or there is no memory */
static int look_at(Run *run, const Place *place, Py_ssize_t end, int64_t min_idle, Found *found)
{
    Walk walk = {0};
    Entry entry;
    Id id;
    for (Py_ssize_t at = 5; at < end; at++) {
        Record *record = get_id(run->words[at], &id) ? (Record *)index_get(&place->group->records, id) : NULL;
        if (record == NULL)
            continue;
        if (is_cold_id(place->entries, id) || !find_on(&walk, place->entries, id, &entry))
            return -1;
        if (record_is_idle(record, min_idle, (int64_t)run->wall)
            && buf_add(&found->records, (const char *)&record, sizeof record) < 0)
            return -1;
    }
    return 0;
}

/* XCLAIM key group consumer min-idle id [id ...] [options], of ascending ids whose entries are there */
int run_xclaim(Run *run)
{
    Place place;
    Found found = {0};
    Claim claim = {(int64_t)run->wall, -1, 0};
    Py_ssize_t end = 5;
    Id id, before = 0;
    for (; end < run->count && get_id(run->words[end], &id); end++, before = id)
        if (end > 5 && id <= before)
            return ORDINARY;
    int64_t min_idle = run->count < 6 ? -1 : get_number(run->words[4]);
    if (min_idle < 0 || !get_claim(run, end, &claim)
        || !get_holder(run, run->words[1], run->words[2], run->words[3], &place))
        return ORDINARY;
    int well = look_at(run, &place, end, min_idle, &found) == 0;
    return claim_found(run, &place, &found, &claim, well, 0);
}

/* XAUTOCLAIM key group consumer min-idle start [COUNT n] [JUSTID], that comes upon no entry that is gone */
int run_xautoclaim(Run *run)
{
    Place place;
    Found found = {0};
    Claim claim = {(int64_t)run->wall, -1, 0};
    int64_t count = 100, min_idle = run->count < 6 ? -1 : get_number(run->words[4]);
    Id start;
    if (min_idle < 0 || !get_edge(run->words[5], 0, &start))
        return ORDINARY;
    for (Py_ssize_t at = 6; at < run->count; at++) {
        if (is_word(run->words[at], "JUSTID")) {
            claim.just_id = 1;
            continue;
        }
        count = is_word(run->words[at], "COUNT") && at + 1 < run->count ? get_number(run->words[++at]) : -1;
        if (count < 1 || count > LARGEST)
            return ORDINARY;
    }
    if (!get_holder(run, run->words[1], run->words[2], run->words[3], &place))
        return ORDINARY;
    IndexPlace first;
    Item *item = is_cold(place.entries) ? index_seek(&place.group->records, start, &first) : NULL;
    int status = item != NULL && is_cold_id(place.entries, item->key)
                     ? -1
                     : group_look(place.group, place.entries, start, min_idle, (int64_t)run->wall, count, count * ATTEMPTS, &found);
    return claim_found(run, &place, &found, &claim, status == 0 && found.gone.size == 0, 1);
}

/* ---------------------------------------------------------------- a primary's claims */

/* The options of a primary's claim: TIME ms RETRYCOUNT n FORCE JUSTID [LASTID id]; 0 for any others */
static int get_obeyed_claim(Run *run, Py_ssize_t at, Claim *claim, Id *position)
{
    int force = 0;
    for (; at < run->count; at++) {
        View word = run->words[at];
        if (is_word(word, "FORCE") || is_word(word, "JUSTID")) {
            *(is_word(word, "FORCE") ? &force : &claim->just_id) = 1;
            continue;
        }
        if (++at == run->count)
            return 0;
        if (is_word(word, "LASTID") ? !get_id(run->words[at], position)
            : is_word(word, "TIME") ? (claim->time = get_number(run->words[at])) < 0
                                    : !is_word(word, "RETRYCOUNT") || (claim->retry_count = get_number(run->words[at])) < 0)
            return 0;
    }
    return force && claim->just_id && claim->time >= 0 && claim->retry_count >= 0;
}

/* Moves a group to a position, with a count of entries read; the names are two words, and there is room for the step */
static void move_group(Run *run, Group *group, const View *names, Id position, int64_t entries_read)
{
    Buf *steps = &run->of->steps;
    char packed[16], *at = put_binary(put_op(steps->data + steps->size, run, 5, "gset"), names[0]);
    id_to_bytes(position, packed);
    at = put_unsigned(put_binary(put_binary(at, names[1]), (View){packed, 16}), (uint64_t)entries_read);
    steps->size = run->of->records ? at - steps->data : steps->size;
    group->last_id = position;
    group->entries_read = entries_read;
    run->written++;
}

/* Makes records of entries, none of which is pending, and moves the group to a position, 0 for none; ORDINARY leaves all as
 * it was */
static int claim_new(Run *run, Place *place, Py_ssize_t count, const Claim *claim, Id position)
{
    Group *group = place->group;
    Walk walk = {0};
    Entry entry;
    Id *wanted = (Id *)run->of->replies.data; /* it is empty, and of the memory's alignment */
    Buf *steps = &run->of->steps;
    if (position && (!counts_on(run, place->stream, place->entries, group) || group->entries_read == LLONG_MAX))
        return ORDINARY;
    for (Py_ssize_t at = 0; at < count; at++)
        if (!get_id(run->words[5 + at], &wanted[at]) || index_get(&group->records, wanted[at]) != NULL
            || is_cold_id(place->entries, wanted[at]) || !find_on(&walk, place->entries, wanted[at], &entry))
            return ORDINARY;
    Py_ssize_t names = run->words[1].size + run->words[2].size + run->words[3].size;
    if (buf_reserve(steps, 2 * names + 192 + 25 * count) < 0
        || deliver(group, place->consumer, wanted, count, claim->time, claim->retry_count) < 0)
        return ORDINARY;
    if (position)
        move_group(run, group, run->words + 1, position, group->entries_read + 1);
    char *at = put_unsigned(put_consumer_op(run, 8, "gclaim", run->words[1]), (uint64_t)claim->time);
    at = put_binary_head(at, (uint64_t)count * 16);
    for (Py_ssize_t each = 0; each < count; each++, at += 16)
        id_to_bytes(wanted[each], at);
    at = put_array(at, (uint64_t)count);
    for (Py_ssize_t each = 0; each < count; each++)
        at = put_unsigned(at, (uint64_t)claim->retry_count);
    steps->size = run->of->records ? at - steps->data : steps->size;
    place->consumer->seen = place->consumer->active = (long long)run->wall;
    run->written++;
    run->changes += count;
    run->hits++;
    return DONE;
}

/* XCLAIM key group consumer 0 id [id ...] of ascending ids whose entries are there, either all pending or none, with the
 * options in which a primary tells of what was read or claimed */
int obey_xclaim(Run *run)
{
    Place place;
    Found found = {0};
    Claim claim = {-1, -1, 0};
    Py_ssize_t end = 5;
    Id id, before = 0, position = 0;
    for (; end < run->count && get_id(run->words[end], &id); end++, before = id)
        if (end > 5 && id <= before)
            return ORDINARY;
    if (end == 5 || get_number(run->words[4]) != 0 || !get_obeyed_claim(run, end, &claim, &position)
        || buf_reserve(&run->of->replies, (Py_ssize_t)sizeof(Id) * (end - 5)) < 0
        || !get_holder(run, run->words[1], run->words[2], run->words[3], &place))
        return ORDINARY;
    if (position <= place.group->last_id)
        position = 0;
    if (position || !get_id(run->words[5], &id) || index_get(&place.group->records, id) == NULL) {
        int result = claim_new(run, &place, end - 5, &claim, position);
        Py_DECREF(place.entries);
        return result;
    }
    int well = look_at(run, &place, end, 0, &found) == 0 && FOUND_COUNT(&found) == end - 5;
    return claim_found(run, &place, &found, &claim, well, 0);
}

/* XGROUP SETID key group id ENTRIESREAD n */
int obey_setid(Run *run)
{
    PyObject *stream;
    Id id;
    int64_t entries_read = is_word(run->words[5], "ENTRIESREAD") ? get_number(run->words[6]) : -1;
    if (entries_read < 0 || !get_id(run->words[4], &id) || reserve(run, 0))
        return ORDINARY;
    EntryStore *entries = get_entries(run, run->words[2], &stream);
    Group *group = entries == NULL ? NULL : get_group(run, stream, run->words[3]);
    PyObject *added = group == NULL ? NULL : SLOT(stream, run->of->added_at);
    int is_known = added != NULL && entries_read <= PyLong_AsLongLong(added);
    Py_XDECREF(entries);
    if (!is_known)
        return ORDINARY;
    move_group(run, group, run->words + 2, id, entries_read);
    run->changes++;
    return DONE;
}
