/* Tools that the readers of dumps share: bytes that come from a client, read from front to end.
 *
 * Invariant: at <= end, and reads stay between them; every size is compared with the bytes left before it is used.
 */
#ifndef MILLSTREAM_DUMPS_H
#define MILLSTREAM_DUMPS_H
#include "node.h"
#include "pending.h"

typedef struct {
    const char *at, *end;
} Source;

#define OLDEST (-(INT64_C(1) << 62)) /* same value as in plain.py */
#define LEFT(source) ((uint64_t)((source)->end - (source)->at))

typedef struct {
    View *words;
    char (*texts)[NUMBER_ROOM + 1]; /* memory for strings that were stored as numbers, allocated on demand */
    Py_ssize_t room;
} Words;

int malformed(const char *what);                                       /* plain.c: -1, with MalformedError */
int words_reserve(Words *words, uint64_t count, int texts);
void words_free(Words *words);
/* A position in bytes as a source; -1 with an exception */
int source_at(PyObject *data, PyObject *at, Source *source);

/* plain.c: doubles of bulk.py */
PyObject *pack_entries(PyObject *self, PyObject *store);
PyObject *pack_records(PyObject *self, PyObject *args);
PyObject *read_entries(PyObject *self, PyObject *args);
PyObject *read_records(PyObject *self, PyObject *args);

/* rdb.c: doubles of rdb/bulk.py */
PyObject *crc64(PyObject *self, PyObject *args);
PyObject *decompress(PyObject *self, PyObject *args);
PyObject *read_listpacks(PyObject *self, PyObject *nodes);
PyObject *read_pending(PyObject *self, PyObject *args);
PyObject *assign_pending(PyObject *self, PyObject *args);

#endif
