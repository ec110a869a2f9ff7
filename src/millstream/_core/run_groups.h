/* The plain forms of XREADGROUP and XACK; a part of run.c, whose invariants hold here too, and read behind its helpers.
 *
 * Delivering is plain where the group reads in order: its count is known and goes up by what is delivered, and nothing
 * above its position is pending. So all records are new, and those that were made go again if memory ends.
 */

static PyObject *s_groups, *s_max_deleted;

/* The group of a stream (borrowed, as the stream holds it); NULL if there is none */
static Group *get_group(PyObject *stream, View name)
{
    PyObject *groups = PyObject_GetAttr(stream, s_groups), *found = NULL;
    PyObject *word = groups == NULL ? NULL : PyBytes_FromStringAndSize(name.data, name.size);
    if (word != NULL && PyDict_Check(groups))
        found = PyDict_GetItemWithError(groups, word);
    Py_XDECREF(word);
    Py_XDECREF(groups);
    return found != NULL && Py_TYPE(found) == &GroupType ? (Group *)found : NULL;
}

static Consumer *known_consumer(Group *group, View name)
{
    PyObject *word = PyBytes_FromStringAndSize(name.data, name.size);
    PyObject *found = word == NULL ? NULL : PyDict_GetItemWithError(group->consumers, word);
    Py_XDECREF(word);
    return found != NULL && Py_TYPE(found) == &ConsumerType ? (Consumer *)found : NULL;
}

/* Whether there is something new, in order and counted; see PyRunner._xreadgroup */
static int reads_in_order(PyObject *stream, EntryStore *entries, const Group *group)
{
    Id deleted, first = store_first_live(entries);
    PyObject *number = PyObject_GetAttr(stream, s_max_deleted);
    int known = number != NULL && id_from_int(number, &deleted) == 0;
    Py_XDECREF(number);
    Item *last = index_last(&group->records);
    return known && store_length(entries) && store_last_live(entries) > group->last_id && group->entries_read >= 0
           && group->last_id >= first && (deleted == 0 || group->last_id > deleted)
           && (last == NULL || last->key <= group->last_id);
}

/* Gives a consumer the entries whose ids are there, none of which is pending; -1: nothing is changed */
static int deliver(Group *group, Consumer *consumer, const Id *ids, Py_ssize_t count, int64_t now)
{
    for (Py_ssize_t at = 0; at < count; at++)
        if (group_assign(group, ids[at], consumer, now, 1) < 0) {
            while (at--)
                group_forget(group, ids[at]);
            return -1;
        }
    return 0;
}

/* The entries above the group's position behind what is in replies, and their ids; how many, or -1 */
static Py_ssize_t reply_new(Run *run, EntryStore *entries, Id after, int64_t count, Buf *ids)
{
    Walk walk;
    Entry entry;
    Buf *replies = &run->of->replies;
    Py_ssize_t number = 0, head = replies->size, first = head + HEAD_ROOM;
    int more = 1;
    if (buf_reserve(replies, HEAD_ROOM) < 0)
        return -1;
    replies->size = first;
    walk_begin(&walk, entries, after + 1, ID_MAX, 0);
    while (number != count && (more = walk_next(&walk, &entry)) > 0) {
        if (replies->size >= first + REPLY_MAX || node_emit(walk.node, &entry, replies) < 0 || buf_add(ids, (const char *)&entry.id, sizeof(Id)) < 0) {
            more = -1;
            break;
        }
        number++;
    }
    walk_end(&walk);
    if (more < 0 || replies->size >= first + REPLY_MAX)
        return -1;
    char *at = put_head(replies->data + head, '*', (uint64_t)number);
    memmove(at, replies->data + first, (size_t)(replies->size - first));
    replies->size -= replies->data + first - at;
    return number;
}

static void put_read_step(Run *run, View key, Id last, int noack)
{
    Buf *steps = &run->of->steps;
    char packed[16];
    id_to_bytes(last, packed);
    char *at = put_binary(put_op(steps->data + steps->size, run, 7, "gread"), key);
    at = put_unsigned(put_binary(put_binary(at, run->words[2]), run->words[3]), run->wall);
    at = put_binary(at, (View){packed, 16});
    *at++ = (char)(noack ? 0xc3 : 0xc2);
    steps->size = at - steps->data;
}

/* Reads and delivers what is new; ORDINARY leaves everything as it was */
static int read_new(Run *run, EntryStore *entries, Group *group, Consumer *consumer, int64_t count, int noack)
{
    View key = run->words[run->count - 2];
    Buf *replies = &run->of->replies, ids = {0};
    Py_ssize_t before = replies->size, number = -1;
    if (reserve(run) == 0 && buf_add(replies, run->resp == 2 ? "*1\r\n*2\r\n" : "%1\r\n", run->resp == 2 ? 8 : 4) == 0
        && buf_bulk(replies, key.data, key.size) == 0)
        number = reply_new(run, entries, group->last_id, count, &ids);
    const Id *found = (const Id *)ids.data;
    if (number < 1 || (!noack && deliver(group, consumer, found, number, (int64_t)run->wall) < 0)) {
        replies->size = before;
        buf_free(&ids);
        return ORDINARY;
    }
    group->last_id = found[number - 1];
    group->entries_read += number < LLONG_MAX - group->entries_read ? number : LLONG_MAX - group->entries_read;
    consumer->seen = (long long)run->wall;
    if (!noack)
        consumer->active = consumer->seen;
    if (run->of->records)
        put_read_step(run, key, group->last_id, noack);
    run->hits++;
    run->written++;
    run->changes++;
    buf_free(&ids);
    return DONE;
}

/* XREADGROUP GROUP group consumer [COUNT n] [BLOCK ms] [NOACK] STREAMS key >, where there is something new */
static int run_xreadgroup(Run *run)
{
    PyObject *stream;
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
    EntryStore *entries = get_entries(run, run->words[end + 1], &stream);
    if (entries == NULL)
        return ORDINARY;
    Group *group = get_group(stream, run->words[2]);
    Consumer *consumer = group == NULL ? NULL : known_consumer(group, run->words[3]);
    int result = ORDINARY;
    if (consumer != NULL && is_waited_for(run) == 0 && reads_in_order(stream, entries, group)
        && ((count > 0 && count <= ENTRIES_MAX) || store_length(entries) <= ENTRIES_MAX))
        result = read_new(run, entries, group, consumer, count, noack);
    Py_DECREF(entries);
    return result;
}

/* XACK key group id [id ...] */
static int run_xack(Run *run)
{
    PyObject *stream;
    Id ids[WORDS_MAX];
    Py_ssize_t count = run->count - 3, there = 0;
    if (count < 1)
        return ORDINARY;
    for (Py_ssize_t at = 0; at < count; at++) {
        View word = run->words[at + 3];
        if (is_sign(word, '-') || is_sign(word, '+') || !get_bound(word, 0, ids + at))
            return ORDINARY;
    }
    EntryStore *entries = get_entries(run, run->words[1], &stream);
    Group *group = entries == NULL ? NULL : get_group(stream, run->words[2]);
    Py_XDECREF(entries); /* the stream holds it */
    Buf *steps = &run->of->steps;
    Py_ssize_t size = 16 * count + run->words[1].size + run->words[2].size + 64;
    if (group == NULL || reserve(run) || (run->of->records && buf_reserve(steps, size) < 0))
        return ORDINARY;
    for (Py_ssize_t at = 0; at < count; at++)
        if (group_forget(group, ids[at]))
            ids[there++] = ids[at];
    if (there && run->of->records) {
        char *at = put_op(steps->data + steps->size, run, 4, "gack");
        at = put_binary(put_binary(at, run->words[1]), run->words[2]);
        at = put_binary_head(at, (uint64_t)there * 16);
        for (Py_ssize_t id = 0; id < there; id++, at += 16)
            id_to_bytes(ids[id], at);
        steps->size = at - steps->data;
    }
    run->hits++;
    run->written += there > 0;
    run->changes += there;
    return buf_head(&run->of->replies, ':', (uint64_t)there) < 0 ? ORDINARY : DONE; /* there is room */
}
