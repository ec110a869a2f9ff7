/* Nodes: storing, finding, deleting and replying entries, and the size of Redis's listpack of them.
 *
 * Invariants: those of node.h. The sizes are those of millstream/engine/streams/listpack.py, which has the reasons.
 */
#include "node.h"

/* ---------------------------------------------------------------- Redis's sizes */

static int64_t listpack_integer(int64_t value)
{
    if (value >= 0 && value <= 127)
        return 2;
    if (value >= -4096 && value <= 4095)
        return 3;
    if (value >= -32768 && value <= 32767)
        return 4;
    if (value >= -(1 << 23) && value < 1 << 23)
        return 5;
    return value >= INT32_MIN && value <= INT32_MAX ? 6 : 10;
}

/* Report whether the bytes are the canonical form of a 64-bit number */
int canonical(View word, int64_t *value)
{
    if (word.size == 0 || word.size > 20)
        return 0;
    int negative = word.data[0] == '-';
    Py_ssize_t digits = word.size - negative;
    const char *at = word.data + negative;
    if (digits == 0 || digits > 19 || (at[0] == '0' && word.size > 1))
        return 0;
    uint64_t number = 0;
    for (Py_ssize_t i = 0; i < digits; i++) {
        if (at[i] < '0' || at[i] > '9')
            return 0;
        number = number * 10 + (uint64_t)(at[i] - '0');
    }
    if (number > (uint64_t)INT64_MAX + (uint64_t)negative)
        return 0;
    *value = (int64_t)(negative ? 0 - number : number);
    return 1;
}

int64_t listpack_back(int64_t size)
{
    return size <= 127 ? 1 : size < 16383 ? 2 : size < 2097151 ? 3 : size < 268435455 ? 4 : 5;
}

static int64_t listpack_string(View word)
{
    int64_t value;
    if (canonical(word, &value))
        return listpack_integer(value);
    int64_t size = word.size + (word.size < 64 ? 1 : word.size < 4096 ? 2 : 5);
    return size + listpack_back(size);
}

int64_t node_size(const Node *node)
{
    return node->payload + listpack_integer(node->live) + listpack_integer(node->stored - node->live);
}

/* Size that an entry adds to the listpack: flags, id differences to the node's first entry, fields, element count */
static int64_t entry_payload(const Node *node, Id id, const View *words, Py_ssize_t count, int same)
{
    int64_t size = 2 + listpack_integer((int64_t)(ID_MS(id) - ID_MS(node->first)));
    size += listpack_integer((int64_t)(ID_SEQ(id) - ID_SEQ(node->first)));
    for (Py_ssize_t at = same; at < count; at += 1 + same)
        size += listpack_string(words[at]);
    if (same)
        return size + listpack_integer(count / 2 + 3);
    return size + listpack_integer(count / 2) + listpack_integer(count + 4);
}

/* ---------------------------------------------------------------- making and changing */

static size_t data_memory(const Node *node)
{
    return node->data == NULL ? 0 : (size_t)block_size((size_t)(node->room ? node->room : node->size));
}

static int node_reserve(Node *node, Py_ssize_t more)
{
    if (node->room - node->size >= more)
        return 0;
    int is_in_block = node->data != NULL && node->room == 0;
    Buf buf = {is_in_block ? NULL : node->data, is_in_block ? 0 : node->size, node->room};
    if (buf_grow(&buf, more + (is_in_block ? node->size : 0)) < 0)
        return -1;
    counted += block_size((size_t)buf.room) - (Py_ssize_t)data_memory(node);
    if (is_in_block) {
        memcpy(buf.data, node->data, (size_t)node->size);
        block_drop(node->data);
    }
    node->data = buf.data;
    node->room = buf.room;
    return 0;
}

void node_seal(Node *node, Block **block)
{
    Py_ssize_t before = (Py_ssize_t)data_memory(node);
    char *data = block == NULL || node->room == 0 ? NULL : block_add(block, node->data, (size_t)node->size);
    if (data != NULL) {
        PyMem_Free(node->data);
        node->room = 0;
    } else if (node->room > node->size && (data = PyMem_Realloc(node->data, (size_t)node->size)) != NULL) {
        node->room = node->size;
    }
    if (data != NULL)
        node->data = data;
    counted += (Py_ssize_t)data_memory(node) - before;
}

Node *node_new(Id id, const View *words, Py_ssize_t count)
{
    Node *node = count_block(PyMem_Calloc(1, sizeof *node), sizeof *node);
    if (node == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    Py_ssize_t need = VARINT_ROOM;
    for (Py_ssize_t at = 0; at < count; at += 2)
        need += VARINT_ROOM + words[at].size;
    if (node_reserve(node, need) < 0) {
        node_free(node);
        return NULL;
    }
    node->first = node->last = node->before_low = id;
    node->payload = 7 + listpack_integer(count / 2) + listpack_integer(0); /* 7: its header and its end */
    char *at = put_varint(node->data, (uint64_t)count / 2);
    for (Py_ssize_t i = 0; i < count; i += 2) {
        at = put_bytes(put_varint(at, (uint64_t)words[i].size), words[i].data, words[i].size);
        node->payload += listpack_string(words[i]);
    }
    node->begin = node->size = node->low = at - node->data;
    return node;
}

void node_free(Node *node)
{
    counted -= (Py_ssize_t)data_memory(node);
    if (node->data != NULL && node->room == 0)
        block_drop(node->data);
    else
        PyMem_Free(node->data);
    free_counted(node, sizeof *node);
}

Py_ssize_t node_memory(const Node *node)
{
    return block_size(sizeof *node) + (Py_ssize_t)data_memory(node);
}

Node *node_copy(const Node *node)
{
    Node *twin = count_block(PyMem_Malloc(sizeof *twin), sizeof *twin);
    char *data = count_block(PyMem_Malloc((size_t)node->size), (size_t)node->size);
    if (twin == NULL || data == NULL) {
        free_counted(twin, sizeof *twin);
        free_counted(data, (size_t)node->size);
        PyErr_NoMemory();
        return NULL;
    }
    *twin = *node;
    twin->data = memcpy(data, node->data, (size_t)node->size);
    twin->room = node->size;
    return twin;
}

static int same_names(const Node *node, const View *words, Py_ssize_t count)
{
    const char *at = node->data;
    if ((Py_ssize_t)get_varint(&at) * 2 != count)
        return 0;
    for (Py_ssize_t i = 0; i < count; i += 2) {
        Py_ssize_t size = (Py_ssize_t)get_varint(&at);
        if (size != words[i].size || memcmp(at, words[i].data, (size_t)size) != 0)
            return 0;
        at += size;
    }
    return 1;
}

static char *put_difference(char *at, Id before, Id id)
{
    uint64_t ms = ID_MS(id) - ID_MS(before);
    return put_varint(put_varint(at, ms), ms ? ID_SEQ(id) : ID_SEQ(id) - ID_SEQ(before));
}

/* Add an entry at or above the last one; measure: also compute its size in a listpack */
int node_put(Node *node, Id id, const View *words, Py_ssize_t count, int dead, int measure)
{
    int same = same_names(node, words, count);
    Py_ssize_t body = same ? 0 : varint_size((uint64_t)count / 2);
    for (Py_ssize_t at = same; at < count; at += 1 + same)
        body += varint_size((uint64_t)words[at].size) + words[at].size;
    if (node_reserve(node, 3 * VARINT_ROOM + body) < 0)
        return -1;
    char *at = node->data + node->size;
    at = put_varint(at, (uint64_t)body << 2 | (uint64_t)same << 1 | (uint64_t)dead);
    at = put_difference(at, node->last, id);
    if (!same)
        at = put_varint(at, (uint64_t)count / 2);
    for (Py_ssize_t i = same; i < count; i += 1 + same)
        at = put_bytes(put_varint(at, (uint64_t)words[i].size), words[i].data, words[i].size);
    if (!dead) {
        if (node->live++ == 0) {
            node->low = node->size;
            node->before_low = node->last;
            node->first_live = id;
        }
        node->last_live = id;
    }
    if (measure)
        node->payload += entry_payload(node, id, words, count, same);
    node->size = at - node->data;
    node->last = id;
    node->stored++;
    if (node->live == 0) {
        node->low = node->size;
        node->before_low = id;
    }
    return 0;
}

void node_kill(Node *node, const Entry *entry)
{
    *entry->at |= 1;
    if (--node->live == 0) {
        node->low = node->size;
        node->before_low = node->last;
        node->first_live = node->last_live = 0;
        return;
    }
    Entry next;
    Id before = node->before_low;
    char *at = node->data + node->low;
    if (entry->at == at) {
        for (entry_read(at, before, &next); next.dead; entry_read(at, before, &next)) {
            before = next.id;
            at = next.end;
        }
        node->low = at - node->data;
        node->before_low = before;
        node->first_live = next.id;
    } else if (entry->id == node->last_live) {
        for (; at < entry->at; at = next.end, before = next.id) {
            entry_read(at, before, &next);
            if (!next.dead)
                node->last_live = next.id;
        }
    }
}

Node *node_reach_back(const Node *node, Id last)
{
    Node *twin = node_copy(node);
    /* Only the first changed entry can need more room, since later ones store the difference to its id */
    if (twin == NULL || node_reserve(twin, 2 * VARINT_ROOM) < 0) {
        if (twin != NULL)
            node_free(twin);
        return NULL;
    }
    Entry entry;
    Id before = node->first, written = before;
    char *at = node->data + node->begin, *to = twin->data + node->begin;
    for (; at < node->data + node->size; at = entry.end, before = entry.id) {
        entry_read(at, before, &entry);
        Id id = entry.id < last ? entry.id : last;
        if (at == node->data + node->low) {
            twin->low = to - twin->data;
            twin->before_low = written;
        }
        const char *head = at;
        to = put_varint(to, get_varint(&head));
        to = put_difference(to, written, id);
        to = put_bytes(to, entry.body, entry.end - entry.body);
        written = id;
    }
    twin->size = to - twin->data;
    twin->last = written;
    if (twin->live == 0) {
        twin->low = twin->size;
        twin->before_low = written;
    }
    return twin;
}

/* ---------------------------------------------------------------- reading */

int node_find(Node *node, Id id, Entry *entry)
{
    if (node->live == 0 || id < node->first_live || id > node->last_live)
        return 0;
    Id before = node->before_low;
    char *at = node->data + node->low;
    for (; at < node->data + node->size; at = entry->end, before = entry->id) {
        entry_read(at, before, entry);
        if (entry->id >= id)
            return entry->id == id && !entry->dead;
    }
    return 0;
}

int node_emit(const Node *node, const Entry *entry, Buf *out)
{
    const char *value = entry->body, *name = node->data;
    uint64_t fields = get_varint(entry->same ? &name : &value);
    Py_ssize_t names = entry->same ? node->begin : 0;
    Py_ssize_t need = 3 * HEAD_ROOM + ID_ROOM + 2 + (entry->end - value) + names + (Py_ssize_t)fields * 2 * (HEAD_ROOM + 2);
    if (buf_reserve(out, need) < 0)
        return -1;
    char *at = put_bytes(out->data + out->size, "*2\r\n", 4);
    at = put_head(put_id_bulk(at, entry->id), '*', fields * 2);
    const char **source = entry->same ? &name : &value;
    for (; fields; fields--) {
        Py_ssize_t size = (Py_ssize_t)get_varint(source);
        at = put_bulk(at, *source, size);
        *source += size;
        size = (Py_ssize_t)get_varint(&value);
        at = put_bulk(at, value, size);
        value += size;
    }
    out->size = at - out->data;
    return 0;
}

/* Names and values, alternating, in the caller's array, which grows (PyMem); they point into the node */
Py_ssize_t node_words(const Node *node, const Entry *entry, View **words, Py_ssize_t *room)
{
    const char *value = entry->body, *name = node->data;
    Py_ssize_t count = 2 * (Py_ssize_t)get_varint(entry->same ? &name : &value);
    if (count > *room) {
        View *grown = PyMem_Realloc(*words, (size_t)count * sizeof(View));
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        *words = grown;
        *room = count;
    }
    for (Py_ssize_t at = 0; at < count; at++) {
        const char **source = entry->same && at % 2 == 0 ? &name : &value;
        Py_ssize_t size = (Py_ssize_t)get_varint(source);
        (*words)[at] = (View){*source, size};
        *source += size;
    }
    return count;
}

/* ---------------------------------------------------------------- among the others */

Py_ssize_t store_index(EntryStore *store, Id id)
{
    Py_ssize_t low = 0, high = store->count;
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        if (STORE_NODE(store, middle)->first <= id)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}
