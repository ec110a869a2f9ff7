/* The cold part of a stream's entries: nodes whose bytes are in a pack, and the ways to read them.
 *
 * A pack's bytes are not trusted: each size is compared before it is used, each checksum is compared, and a node's bytes
 * have been walked through (extent.c) before the other parts of the core see them. So those parts work on a cold node as
 * on a hot one.
 */
#ifndef MILLSTREAM_EXTENT_H
#define MILLSTREAM_EXTENT_H
#include "node.h"

#define FRAME_HEAD 24     /* bytes of a frame before its payload */
#define EXTENT_HEAD 9     /* bytes of a payload before its table: form, size and CRC of the table */
#define TABLE (-1)        /* in place of a node's number: the table of the extent */
#define FRAME_MAX 0x7fffffff /* bytes of a frame; a row's positions fit */

/* ---------------------------------------------------------------- extent.c: what is read of an extent */

/* Bytes of a pack that are kept, by several owners; memory that is counted */
typedef struct Part {
    struct Part *next; /* in the reader's bucket */
    uint64_t offset;    /* of the extent's frame */
    uint32_t pack;
    int32_t node;       /* TABLE or the number of the node whose bytes follow */
    uint32_t owners;
    int is_recent;
    size_t size;        /* bytes, with this head */
} Part;

typedef struct {
    Node node;       /* its facts; data is NULL */
    Py_ssize_t at;   /* of its bytes, in the frame */
    uint32_t crc;
    uint32_t base;   /* ordinal of its first entry in the extent */
} Row;

typedef struct {
    Part part;
    uint32_t count, stored; /* nodes, entries */
    Row rows[];
} Table;

Part *part_new(size_t size);                      /* with one owner; NULL with an exception */
void part_release(Part *part);                   /* NULL is none */
static inline char *part_bytes(Part *part) { return (char *)(part + 1); }
/* Size of the table from the first bytes of a payload; -1 with what is wrong */
Py_ssize_t table_size(const char *head, const char **wrong);
/* The table, of this size, of a payload of that size that begins with data; NULL with what is wrong, or with an exception
 * where that is NULL */
Table *table_read(const char *data, Py_ssize_t size, Py_ssize_t payload, const char **wrong);
/* NULL, or what is wrong about the bytes of a node with these facts */
const char *node_wrong(const Node *facts, const char *data, uint32_t crc);

/* ---------------------------------------------------------------- packs.c: who reads */

typedef struct PackReader PackReader;
extern PyTypeObject PackReaderType;

/* 1 with the bytes; 0: a disk would be waited for; -1 with errno, 0 at the end of the file */
int reader_read(PackReader *reader, uint32_t pack, uint64_t offset, char *to, Py_ssize_t size, int may_wait);
Part *reader_find(PackReader *reader, uint32_t pack, uint64_t offset, int32_t node); /* a new owner's; NULL */
void reader_keep(PackReader *reader, Part *part, uint32_t pack, uint64_t offset, int32_t node);

/* ---------------------------------------------------------------- holes.c: what was deleted of an extent since it was written */

typedef struct Holes Holes; /* NULL: none */

int holes_have(const Holes *holes, uint32_t ordinal);
int holes_gone(const Holes *holes, uint32_t node);
uint32_t holes_between(const Holes *holes, uint32_t start, uint32_t stop); /* entries with ordinals in [start, stop) */
uint32_t holes_nodes(const Holes *holes);           /* nodes that are gone */
int holes_copy(const Holes *holes, Holes **twin);   /* counted by itself; -1 with an exception */
void holes_free(Holes *holes);
Py_ssize_t holes_memory(const Holes *holes);        /* counted size, see bytes.h */

/* Sets at work are bits in a buffer that ends with a byte that is not 0. Each returns -1 with an exception. */
int marks_add(Buf *marks, uint32_t number);
int marks_read(Buf *marks, PyObject *packed, uint32_t limit);   /* unpack_bits of cold.py, of numbers below the limit */
PyObject *marks_pack(const Buf *marks);             /* pack_bits of cold.py */
int holes_marks(const Holes *holes, Buf *dead, Buf *gone); /* into two empty buffers */
int holes_make(const Buf *dead, const Buf *gone, Holes **made);

/* ---------------------------------------------------------------- cold_errors.c */

PyObject *cold_class(const char *name);             /* a new reference; NULL with an exception */
int refuse_cold(const char *what);                  /* ValueError; always -1 */
/* Takes the reference of the ranges, which may be NULL; what a reader in order wants next may be NULL, too; always -1 */
int cold_raise_miss(PyObject *ranges, PyObject *ahead);
PyObject *cold_take_miss(void);                     /* the ranges of a miss that was raised; NULL with any other exception */
int cold_clear_damage(void);                        /* 1 if damage was raised, which is cleared; 0 with any other exception */

/* ---------------------------------------------------------------- cold.c: extents, and walks through them */

typedef struct {
    Id first, last;             /* stored ids of the nodes that are left */
    Id first_live, last_live;   /* 0 without one */
    uint64_t offset;            /* of the frame in its pack */
    uint32_t pack, length;      /* bytes of the frame */
    uint32_t nodes, stored;     /* of the frame */
    uint32_t live;              /* without what died */
    Holes *holes;               /* NULL: none */
} Extent;

/* extents[head] to extents[head + count - 1], oldest first; live, nodes (those that are left), bytes (of frames) and holes
 * are their sums */
struct Cold {
    Extent *extents;
    Py_ssize_t head, count, room;
    Py_ssize_t live, nodes, bytes, holes; /* holes: their counted size */
};

#define EXTENT(cold, index) ((cold)->extents[(cold)->head + (index)])
#define EXTENT_LEFT(extent) ((extent)->nodes - holes_nodes((extent)->holes))

/* A place among the cold nodes, and what was read for it */
struct ColdWalk {
    Py_ssize_t extent;
    int32_t node;
    Table *table; /* of the extent; NULL: it is to be read */
    char *run, *copy;
    Py_ssize_t run_at, run_size, run_room, copy_room;
    Part *single;
    Node shown;
};

#define AHEAD_MAX ((Py_ssize_t)8 << 20) /* bytes of the extents that a miss names as next */
#define AHEAD_COUNT 64                  /* number of these */
#define ASKED_MAX ((Py_ssize_t)1 << 20) /* bytes that one miss asks for, apart from the last range */

static inline Node *last_node(EntryStore *store) { return store->count ? STORE_NODE(store, store->count - 1) : NULL; }

static inline int is_cold(const EntryStore *store) { return store->cold != NULL && store->cold->count > 0; }

static inline Id cold_last(const EntryStore *store) { return EXTENT(store->cold, store->cold->count - 1).last; }

static inline int is_cold_id(const EntryStore *store, Id id) { return is_cold(store) && id <= cold_last(store); }

Py_ssize_t cold_index(const Cold *cold, Id id);     /* of the last extent that begins at or below an id; -1 */
int cold_begin(Walk *walk);                         /* before the first cold node of its range; -1 with an exception */
int cold_next(Walk *walk);                          /* 1: the next one is walk->node; 0; -1 with an exception */
void cold_end(Walk *walk);
Id cold_first_live(const Cold *cold);               /* 0 if there is none */
Id cold_last_live(const Cold *cold);
void cold_be_quiet(int quiet);                      /* 1: a miss or damage is a LookupError, until 0 */
int cold_runs_no_python(const EntryStore *store);   /* whether its packs are read by this code alone */
Table *cold_table(EntryStore *store, const Extent *extent); /* an owner's; NULL with an exception */
int cold_load(EntryStore *store, const Extent *extent, const Row *row, uint32_t node, ColdWalk *at); /* into at->shown */
Py_ssize_t row_live(const Extent *extent, const Row *row);
int cold_reserve(EntryStore *store, Py_ssize_t more); /* room for more extents; -1 with an exception */
void cold_drop(EntryStore *store, Py_ssize_t index, Py_ssize_t count);
int cold_copy(const EntryStore *store, EntryStore *twin);
void cold_free(EntryStore *store);
Py_ssize_t cold_memory(const EntryStore *store);    /* counted size, see bytes.h */
int cold_prepare(void);                             /* once, before the functions are used; -1 with an exception */

/* ---------------------------------------------------------------- cold_records.c: plain values, and what applies a plan */

#define ENDS 64 /* bytes of four ids */

void extent_put_ends(const Extent *extent, char *ends);

/* A set of entries and one of nodes of an extent, see holes.c */
typedef struct {
    Buf dead, gone;
} Marks;

void marks_free(Marks *marks);
int with_holes(const Extent *extent, const Marks *more, Extent *twin); /* the same with more holes, its own; -1 with an exception */

/* Methods and properties of a store */
PyObject *cold_add(EntryStore *store, PyObject *args), *cold_move(EntryStore *store, PyObject *args),
    *cold_record(EntryStore *store, PyObject *arguments), *cold_extents(EntryStore *store, PyObject *args),
    *cold_pack_sizes(EntryStore *store, PyObject *nothing), *cold_punch(EntryStore *store, PyObject *places),
    *cold_cut(EntryStore *store, PyObject *args), *cold_put_warm(EntryStore *store, PyObject *args);
enum { EXTENTS, COLD_LIVE, FRAMES, HOLES }; /* which figure */
PyObject *cold_figure(EntryStore *store, void *which), *cold_get_last(EntryStore *store, void *closure),
    *cold_get_reads(EntryStore *store, void *closure);
int cold_set_reads(EntryStore *store, PyObject *reads, void *closure);

/* ---------------------------------------------------------------- cold_plans.c */

PyObject *cold_want_range(EntryStore *store, PyObject *args, PyObject *keywords),
    *cold_weight(EntryStore *store, PyObject *args), *cold_plan_delete(EntryStore *store, PyObject *args),
    *cold_plan_cut(EntryStore *store, PyObject *number), *cold_plan_warm(EntryStore *store, PyObject *nothing);

/* ---------------------------------------------------------------- store.c, trims.c */

int store_reserve(EntryStore *store, Py_ssize_t more); /* room for more nodes; -1 with MemoryError */
void store_seal(EntryStore *store, Node *node);      /* give back unused memory; a small stream has no blocks of its own */
void store_push(EntryStore *store, Node *node);      /* append it; there is room */
void store_drop(EntryStore *store, Py_ssize_t index);
int store_let_go(EntryStore *store, Py_ssize_t index); /* the same, but a cold part needs a hot node behind it; -1 */
int store_put_first(EntryStore *store, Node *node);  /* takes the node; -1 with an exception, and then it does not */
void store_cut(EntryStore *store, Id bound, int all, int keep); /* removes hot entries below a bound, or all */

/* Value of a keyword argument of a vectorcall, or the default; -1 with an exception */
int store_flag(PyObject *const *args, Py_ssize_t positional, PyObject *names, const char *name, int missing);
int store_positional(Py_ssize_t got, Py_ssize_t wanted);

PyObject *store_remove_below(EntryStore *store, PyObject *const *args, Py_ssize_t count, PyObject *names),
    *store_drop_emptied(EntryStore *store, PyObject *number), *store_reach(EntryStore *store, PyObject *number);

#endif
