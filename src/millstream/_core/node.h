/* One node of a stream's entries, and the fields of the store, for the files that walk through it.
 *
 * A node's bytes: the field names of its first entry (varint of their number; varint of the size and the bytes of
 * each), then its entries, one after the other:
 *
 *     varint  (bytes after the id) << 2 | has the first entry's names << 1 | is a tombstone
 *     varint  milliseconds since the entry before (the first entry: since the node's first id)
 *     varint  with the same milliseconds the difference of the sequences, else the sequence
 *     [varint number of fields]            only with names of its own; then names and values in turn, else values only
 *     varint size, bytes                   and so on
 *
 * Invariants, of each node between any two calls:
 *  - stored > 0, and exactly that many entries lie between begin and size; live of them are not tombstones.
 *  - Ids do not descend; a live id differs from all before it. first and last are the outermost stored ids.
 *  - low is the place of the first live entry, before_low the id in front of it, first_live and last_live the
 *    outermost live ids. Without a live entry low is size, before_low is last, and both ids are 0.
 *  - payload is the size of Redis's listpack without the two counters at its head.
 *  - room is 0 where data is in a block (blocks.c), and then never grows there.
 */
#ifndef MILLSTREAM_NODE_H
#define MILLSTREAM_NODE_H
#include "core.h"

typedef struct {
    Id first, last, first_live, last_live, before_low;
    char *data;
    Py_ssize_t size, room, begin, low;
    int64_t stored, live, payload;
} Node;

typedef struct Block Block;
typedef struct Cold Cold;         /* extent.h */
typedef struct ColdWalk ColdWalk;

typedef struct {
    Id id;
    char *at;         /* position of the entry */
    const char *body; /* position after the id */
    char *end;
    int dead, same;
} Entry;

/* nodes[head] to nodes[head + count - 1], oldest first; sealed is the size of all but the last. length is the sum of the
 * live entries of all nodes, also cold ones. Every change increases version, so that walks through the store notice it. */
struct EntryStore {
    PyObject_HEAD
    Node **nodes;
    Py_ssize_t head, count, room, length, sealed;
    uint64_t version;
    Block *block; /* blocks for full nodes; NULL: none yet */
    Cold *cold;   /* nodes before these, in packs; NULL: none */
    PyObject *reads; /* reads the packs; NULL: nobody does */
};

#define STORE_NODE(store, index) ((store)->nodes[(store)->head + (index)])

static inline void entry_read(char *at, Id before, Entry *entry)
{
    const char *p = at;
    uint64_t head = get_varint(&p), ms = get_varint(&p), seq = get_varint(&p);
    entry->id = ms ? ID_MAKE(ID_MS(before) + ms, seq) : before + seq;
    entry->at = at;
    entry->body = p;
    entry->end = (char *)p + (head >> 2);
    entry->same = (int)(head >> 1 & 1);
    entry->dead = (int)(head & 1);
}

char *block_add(Block **open, const char *data, size_t size);          /* its copy in a block; NULL: it has no room */
void block_drop(const char *data);
void block_close(Block *block);                                        /* no more entries are added */

Node *node_new(Id id, const View *words, Py_ssize_t count);            /* without entries, but with its names */
Node *node_copy(const Node *node);
void node_free(Node *node);
void node_seal(Node *node, Block **block);                             /* it is full; block NULL: its stream is small */
int node_put(Node *node, Id id, const View *words, Py_ssize_t count, int dead, int measure);
Py_ssize_t node_memory(const Node *node);                              /* its counted size, see bytes.h */
int64_t node_size(const Node *node);                                   /* size of Redis's listpack */
int node_find(Node *node, Id id, Entry *entry);                        /* reports whether the id is there and alive */
void node_kill(Node *node, const Entry *entry);                        /* turns a live entry into a tombstone */
Node *node_reach_back(const Node *node, Id last);                      /* a copy with ids above last lowered to it */
int node_emit(const Node *node, const Entry *entry, Buf *out);         /* the entry in wire form */
Py_ssize_t node_words(const Node *node, const Entry *entry, View **words, Py_ssize_t *room); /* number; -1 */
int canonical(View word, int64_t *value);                              /* whether it is a number as numbers are written */
int64_t listpack_back(int64_t size);                                   /* size of an element's back length */
PyObject *node_pack(const Node *node);                                 /* packed.c: same result as Block.pack */
Node *node_unpack(PyObject *packed);
PyObject *node_form(const Node *node);                                 /* packed.c: same result as nodeform.encode */
PyObject *node_listpack(const Node *node);                             /* listpacks.c: same result as Block.listpack */

/* A walk through the live entries in [start, end]; views.c. walk_next returns 1 with the next one, 0 at the end, -1. */
typedef struct {
    EntryStore *store;
    Id start, end, before;
    Py_ssize_t index; /* of the node */
    Node *node;
    char *at;
    int backwards, all; /* all: also nodes without a live entry, for walk_node */
    int is_cold;        /* it is before the nodes in memory */
    ColdWalk *cold;     /* its place there; NULL: it was not there yet */
    Py_ssize_t wanted;  /* entries that may be asked for; of cold ones no more are read */
    Id ahead;           /* the end of what is read next; `end` unless a caller sets it */
    Entry *found; /* backwards: remaining entries of this node */
    Py_ssize_t left, room;
} Walk;

void walk_begin(Walk *walk, EntryStore *store, Id start, Id end, int backwards);
int walk_node(Walk *walk);                                             /* 1: the next node with something of the range; 0; -1 */
int walk_next(Walk *walk, Entry *entry);
void walk_end(Walk *walk);
/* Also adds tombstones; arguments and failure as for store_append */
int store_put(EntryStore *store, Id id, const View *words, Py_ssize_t count, int fresh, int dead);
int store_reach_back(EntryStore *store, Id last);                      /* lowers tombstones above last to it */
Py_ssize_t store_index(EntryStore *store, Id id);                      /* of the last node that begins at or below id; -1 */

extern PyTypeObject NodeType, NodesType, RowsType;
PyObject *nodes_of(EntryStore *store, Py_ssize_t skipped);            /* without those of the first extents */
PyObject *rows_of(EntryStore *store, Id start, Id end, Py_ssize_t count);

#endif
