/* A group's pending records, and the index that holds them by id; for pending.c and the files that use it.
 *
 * Invariants, between any two calls:
 *  - A record is in its group's index, in the index of its consumer if it has one, and in the group's time order. That
 *    order has the released records first, as they were released. Then come the owned ones by time, those of one time
 *    in the order in which they came.
 *  - A moment is the last owned record of one time. There is exactly one for each time of an owned record.
 *  - An index's pieces ascend, none is empty, and slots[n].last is the last key of its piece.
 *  - A record keeps its consumer alive, and a consumer knows the one group that has its records. So no index points at
 *    freed memory, in whatever order the two are freed.
 */
#ifndef MILLSTREAM_PENDING_H
#define MILLSTREAM_PENDING_H
#include "node.h"

typedef struct {
    Id key;
} Item; /* beginning of every item in an index */

#define PIECE_MAX 128

typedef struct {
    int count, room;
    Item *items[];
} Piece;

typedef struct {
    Id last;
    Piece *piece;
} Slot;

/* Items in the order of their keys; finding or changing one touches only a short array. Each change increases version,
 * so that walks notice it. */
typedef struct {
    Slot *slots;
    Py_ssize_t count, room, size;
    uint64_t version;
} Index;

typedef struct {
    Py_ssize_t slot;
    int at;
} IndexPlace;

Item *index_seek(const Index *index, Id from, IndexPlace *place); /* first item at or above a key; NULL: none */
Item *index_next(const Index *index, IndexPlace *place);
Item *index_get(const Index *index, Id key);
Item *index_before(const Index *index, Id key);                   /* last item below a key */
Item *index_last(const Index *index);
int index_add(Index *index, Item *item);                          /* adds a new key; -1: nothing is changed */
Item *index_remove(Index *index, Id key);                         /* NULL: the key is missing */
Py_ssize_t index_memory(const Index *index);                      /* its counted size without items, see bytes.h */
void index_clear(Index *index);                                   /* drops the items, and frees the memory */

typedef struct Record Record;

typedef struct {
    Id key; /* the time, shifted to be unsigned */
    Record *last;
} Moment;

typedef struct Group Group;

typedef struct {
    PyObject_HEAD
    PyObject *name;
    long long seen, active;
    const Group *of; /* group of its records, if it has any */
    Index records;
} Consumer;

struct Record {
    Id id;
    Consumer *consumer; /* NULL: released; else a reference */
    Moment *moment;     /* NULL: released */
    int64_t count;
    Record *before, *after;
};

struct Group {
    PyObject_HEAD
    Id last_id;             /* id of the last entry delivered as new */
    long long entries_read; /* -1: unknown */
    PyObject *consumers;    /* a dictionary by name */
    Index records, moments;
    Record *head, *zone_end;
    Py_ssize_t released;
};

#define TIME_SIGN ((uint64_t)1 << 63)

static inline int64_t record_time(const Record *record)
{
    return record->moment == NULL ? 0 : (int64_t)((uint64_t)record->moment->key ^ TIME_SIGN);
}

int group_assign(Group *group, Id id, Consumer *consumer, int64_t time, int64_t count);
int group_release(Group *group, Id id, int64_t count);
int group_forget(Group *group, Id id);                            /* reports whether there was a record */
/* Makes a consumer of the group the holder of these records, all different; -1: nothing is changed */
int group_claim(Group *group, Record *const *records, Py_ssize_t count, Consumer *consumer, int64_t time);

/* Result of a search for claimable records: pointers to records, and ids of those whose entries are gone */
typedef struct {
    Id cursor;
    Buf records, gone;
} Found;

#define FOUND(found) ((Record **)(found)->records.data)
#define FOUND_COUNT(found) ((found)->records.size / (Py_ssize_t)sizeof(Record *))

/* See claimable of PyGroup; -1 with an exception. found must be empty before, and must always be freed */
int group_look(Group *group, EntryStore *store, Id start, int64_t min_idle, int64_t now, int64_t most, int64_t looks, Found *found);
void found_free(Found *found);
int record_is_idle(const Record *record, int64_t min_idle, int64_t now);
/* Advances to an entry of a store and reports whether it exists and is alive. Fast for ascending ids; {0} at first, and
 * no walk_end. */
int find_on(Walk *walk, EntryStore *store, Id id, Entry *entry);
/* Writes rows as idle_rows of IdIndex does until out has this many bytes; returns their number, or -1 with an exception
 * */
Py_ssize_t index_rows(const Index *index, Id start, Id end, int64_t count, int64_t min_idle, int64_t now, Py_ssize_t bytes,
                      Buf *out);

PyObject *group_claimable(Group *group, PyObject *args, PyObject *keywords);
PyObject *index_view(PyObject *owner, Index *index);              /* what Python sees of an index of records */
PyObject *order_view(Group *group, void *closure);

extern PyTypeObject GroupType, ConsumerType, IndexViewType, OrderViewType, RecordWalkType;
int pending_prepare(void);                                        /* once, before the types are used */

#endif
