/* The parts of the native core that others of its parts call.
 *
 * The core is one extension, millstream._native. Each of its types is a double of a class of the engine, which is its
 * specification; millstream/core.py chooses between the two.
 *
 * Invariants, here and in every file of this folder:
 *  - A function that can fail reports it: -1 or NULL with a Python exception set. The object that it was to change is
 *    then as before.
 *  - Input from outside (words, packed blocks) is checked against its size before it is read. The bytes of a node were
 *    written by this code, and are not checked again.
 *  - put_... writes without asking for room: the caller has reserved it. buf_... asks.
 *  - No Python code runs while a node or a buffer is half changed. No function here releases the interpreter's lock.
 */
#ifndef MILLSTREAM_CORE_H
#define MILLSTREAM_CORE_H

#include "bytes.h"

/* ---------------------------------------------------------------- entries.c: a stream's entries */

typedef struct EntryStore EntryStore;
extern PyTypeObject EntryStoreType;

int store_needs_node(EntryStore *store, int64_t added, int64_t max_bytes, int64_t max_entries);
/* words: field, value, field, value ...; an id at or above all stored; -1 with an exception, and nothing is changed */
int store_append(EntryStore *store, Id id, const View *words, Py_ssize_t count, int fresh);
/* Append live entries with ids in [start, end] in wire form to out until it has this many bytes, and their ids to ids,
 * which may be NULL. Returns their number; count < 0 means all; -1 with an exception, and out is unchanged. */
Py_ssize_t store_reply(EntryStore *store, Id start, Id end, Py_ssize_t count, int backwards, Py_ssize_t bytes, Buf *out,
                       Buf *ids);
Id store_first_live(EntryStore *store);             /* 0 if there is none */
Id store_last_live(EntryStore *store);              /* 0 if there is none */
Py_ssize_t store_length(EntryStore *store);         /* live entries */

/* ---------------------------------------------------------------- run.c, runner.c: runs of plain commands */

extern PyTypeObject RunnerType;
int runner_prepare(PyObject *module);               /* once, before the type is used; -1 with an exception */
PyObject *queue_plain(PyObject *self, PyObject *const *args, Py_ssize_t nargs); /* see millstream.node.queued */

/* ---------------------------------------------------------------- crc.c, frames.c, replay.c: the log */

PyObject *encode_records(PyObject *self, PyObject *args);
PyObject *decode_run(PyObject *self, PyObject *args);
PyObject *apply_plain(PyObject *self, PyObject *args);
PyObject *tell_plain(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
uint32_t crc32_of(const char *data, Py_ssize_t size, uint32_t crc); /* as zlib's */
void crc_prepare(void);                             /* once, before it is used */
int frames_prepare(void);                           /* once, before the functions are used; -1 with an exception */
int replay_prepare(void);

/* ---------------------------------------------------------------- sockets.c, on Linux */

PyObject *read_ready(PyObject *self, PyObject *poll); /* [(descriptor, result, events)] of an epoll */
PyObject *send_each(PyObject *self, PyObject *replies); /* [(descriptor, bytes)] becomes [bytes sent, or -errno] */

#endif
