/* Tools that the parts of the native core share: ids, growing buffers, varints, and the heads of RESP. */
#ifndef MILLSTREAM_BYTES_H
#define MILLSTREAM_BYTES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if PY_VERSION_HEX < 0x030c0000 /* Python 3.12 has these in Python.h, and another way to get an exception */
#include <structmember.h>
#define Py_T_INT T_INT
#define Py_T_LONGLONG T_LONGLONG
#define Py_T_OBJECT_EX T_OBJECT_EX
#define Py_T_PYSSIZET T_PYSSIZET
#define Py_READONLY READONLY
#endif

typedef unsigned __int128 Id; /* milliseconds << 64 | sequence */
#define ID_MAX (~(Id)0)
#define ID_MS(id) ((uint64_t)((id) >> 64))
#define ID_SEQ(id) ((uint64_t)(id))
#define ID_MAKE(ms, seq) ((Id)(uint64_t)(ms) << 64 | (uint64_t)(seq))

typedef struct {
    const char *data;
    Py_ssize_t size;
} View; /* bytes owned by other code */

typedef struct {
    char *data;
    Py_ssize_t size, room;
} Buf; /* owned bytes: {0} is an empty buffer, and growing moves it */

/* Largest size in bytes of one number, one head (mark, number, CR LF), one id and one varint */
#define NUMBER_ROOM 20
#define HEAD_ROOM 24
#define ID_ROOM 41
#define VARINT_ROOM 10

/* ---------------------------------------------------------------- bytes.c: buffers, ids */

int buf_grow(Buf *buf, Py_ssize_t more);            /* make room for this many more bytes; -1 with MemoryError */
void buf_free(Buf *buf);                            /* empty the buffer */
PyObject *buf_bytes(const Buf *buf);                /* return a copy as bytes */
PyObject *view_list(const View *words, Py_ssize_t count); /* return copies of the views, as a list of bytes */
PyObject *pack_words(PyObject *self, PyObject *words); /* see millstream.embedded.words */

/* Convert an int of any size to an id: 0 if it is one; -1 below and 1 above all ids, with the smallest or the largest
 * id. -2 with TypeError for any other type. */
int id_clamp(PyObject *number, Id *id);
int id_from_int(PyObject *number, Id *id);          /* -1 with an exception for any other type */
PyObject *id_to_int(Id id);
Id id_from_bytes(const char *packed);               /* 16 bytes, big-endian */
void id_to_bytes(Id id, char *packed);

/* ---------------------------------------------------------------- bytes.c: memory that streams keep */

/* Bytes that the streams of this process use: each memory block with the allocator's overhead. A single number for all
 * streams, so that a change costs one addition, and freeing a stream subtracts all of it at once. */
extern Py_ssize_t counted;

/* Python's allocator rounds small blocks up to 16; malloc puts a head of 16 before a larger one */
static inline Py_ssize_t block_size(size_t size)
{
    return (Py_ssize_t)(size <= 512 ? (size + 15) & ~(size_t)15 : size + 16);
}

static inline void *count_block(void *block, size_t size) /* for an allocation that may have failed */
{
    if (block != NULL)
        counted += block_size(size);
    return block;
}

static inline void free_counted(void *block, size_t size)
{
    if (block != NULL)
        counted -= block_size(size);
    PyMem_Free(block);
}

/* As PyMem_Realloc, for a block that was counted with another size */
static inline void *resize_counted(void *block, size_t before, size_t size)
{
    void *resized = PyMem_Realloc(block, size);
    if (resized != NULL)
        counted += block_size(size) - (block == NULL ? 0 : block_size(before));
    return resized;
}

PyObject *stream_memory(PyObject *self, PyObject *nothing); /* see millstream.engine.streams.memory */

/* ---------------------------------------------------------------- bytes.c: names of attributes, exceptions */

typedef struct {
    PyObject **place;
    const char *text;
} Name;

int intern_names(const Name *names, size_t count);  /* stores each name in its place; -1 with an exception */
PyObject *take_error(void);                         /* returns the current exception (a new reference) and clears it */

static inline int buf_reserve(Buf *buf, Py_ssize_t more)
{
    return buf->room - buf->size >= more ? 0 : buf_grow(buf, more);
}

static inline int buf_add(Buf *buf, const char *data, Py_ssize_t size)
{
    if (buf_reserve(buf, size) < 0)
        return -1;
    memcpy(buf->data + buf->size, data, size);
    buf->size += size;
    return 0;
}

/* ---------------------------------------------------------------- numbers as text, heads of RESP */

char *put_number(char *at, uint64_t number);        /* bytes.c: decimal; the place behind it */

static inline char *put_bytes(char *at, const char *data, Py_ssize_t size)
{
    memcpy(at, data, size);
    return at + size;
}

static inline char *put_id(char *at, Id id)
{
    at = put_number(at, ID_MS(id));
    *at++ = '-';
    return put_number(at, ID_SEQ(id));
}

/* Numbers and heads of MessagePack, the smallest that fit; at most nine and five bytes */
static inline char *put_integer(char *at, int bytes, uint64_t number)
{
    while (bytes--)
        *at++ = (char)(unsigned char)(number >> (8 * bytes));
    return at;
}

static inline char *put_unsigned(char *at, uint64_t number)
{
    if (number < 128)
        return put_integer(at, 1, number);
    int power = number < 1 << 8 ? 0 : number < 1 << 16 ? 1 : number < 1LL << 32 ? 2 : 3;
    *at++ = (char)(0xcc + power);
    return put_integer(at, 1 << power, number);
}

static inline char *put_array(char *at, uint64_t size)
{
    if (size < 16)
        return put_integer(at, 1, 0x90 | size);
    *at++ = (char)(size < 1 << 16 ? 0xdc : 0xdd);
    return put_integer(at, size < 1 << 16 ? 2 : 4, size);
}

/* "*3", "$5", ":7" with the line end */
static inline char *put_head(char *at, char mark, uint64_t number)
{
    *at++ = mark;
    if (number < 10)
        *at++ = (char)('0' + number);
    else
        at = put_number(at, number);
    *at++ = '\r';
    *at++ = '\n';
    return at;
}

/* A bulk string, which needs HEAD_ROOM, its size and two bytes; most are short, so they are copied without a call */
static inline char *put_bulk(char *at, const char *data, Py_ssize_t size)
{
    at = put_head(at, '$', (uint64_t)size);
    if (size > 16) {
        memcpy(at, data, (size_t)size);
    } else if (size >= 8) {
        memcpy(at, data, 8);
        memcpy(at + size - 8, data + size - 8, 8);
    } else if (size >= 4) {
        memcpy(at, data, 4);
        memcpy(at + size - 4, data + size - 4, 4);
    } else {
        for (Py_ssize_t byte = 0; byte < size; byte++)
            at[byte] = data[byte];
    }
    at += size;
    *at++ = '\r';
    *at++ = '\n';
    return at;
}

/* An id as a bulk string, which needs HEAD_ROOM + ID_ROOM + 2 bytes */
static inline char *put_id_bulk(char *at, Id id)
{
    char *text = at + 5, *end = put_id(text, id); /* behind "$17\r\n", the usual length */
    if (end - text < 10) {
        memmove(text - 1, text, (size_t)(end - text));
        text--, end--;
    }
    put_head(at, '$', (uint64_t)(end - text));
    return put_bytes(end, "\r\n", 2);
}

static inline int buf_head(Buf *buf, char mark, uint64_t number)
{
    if (buf_reserve(buf, HEAD_ROOM) < 0)
        return -1;
    buf->size = put_head(buf->data + buf->size, mark, number) - buf->data;
    return 0;
}

static inline int buf_bulk(Buf *buf, const char *data, Py_ssize_t size)
{
    if (buf_reserve(buf, HEAD_ROOM + size + 2) < 0)
        return -1;
    buf->size = put_bulk(buf->data + buf->size, data, size) - buf->data;
    return 0;
}

static inline int buf_id_bulk(Buf *buf, Id id)
{
    if (buf_reserve(buf, HEAD_ROOM + ID_ROOM + 2) < 0)
        return -1;
    buf->size = put_id_bulk(buf->data + buf->size, id) - buf->data;
    return 0;
}

/* ---------------------------------------------------------------- varints: seven bits a byte, the lowest first */

static inline char *put_varint(char *at, uint64_t number)
{
    while (number >= 0x80) {
        *at++ = (char)(number | 0x80);
        number >>= 7;
    }
    *at++ = (char)number;
    return at;
}

static inline uint64_t get_varint(const char **at)
{
    const unsigned char *p = (const unsigned char *)*at;
    uint64_t number = *p & 0x7f;
    int shift = 7;
    while (*p++ & 0x80) {
        number |= (uint64_t)(*p & 0x7f) << shift;
        shift += 7;
    }
    *at = (const char *)p;
    return number;
}

static inline Py_ssize_t varint_size(uint64_t number)
{
    Py_ssize_t size = 1;
    while (number >>= 7)
        size++;
    return size;
}

#endif
