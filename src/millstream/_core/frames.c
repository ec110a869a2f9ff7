/* Frames of a log file, made and read: doubles of py_encode_records and py_decode_run of millstream.persistence.frame,
 * which describes the layout.
 *
 * Invariants:
 *  - Reads stay within the size of the data. A length is used only after a head CRC that is right.
 *  - The result is one bytes object, of the size that was counted before. Other code does not have it before it is
 *    whole.
 *  - zlib lets other threads run during long reads. So payloads are in a tuple of our own, which no other code
 *    changes.
 */
#include "core.h"

#define FRAME 24
#define INDEX_MAX 0xffffffffLL
#define ZLIB_FROM 1024 /* bytes from which zlib's CRC (by processor instructions) is faster despite the call */

static PyObject *s_mark, *s_seed, *zlib_crc32;

int frames_prepare(void)
{
    s_mark = PyUnicode_InternFromString("mark");
    s_seed = PyUnicode_InternFromString("seed");
    PyObject *zlib = PyImport_ImportModule("zlib");
    if (zlib != NULL)
        zlib_crc32 = PyObject_GetAttrString(zlib, "crc32");
    Py_XDECREF(zlib);
    return s_mark == NULL || s_seed == NULL || zlib_crc32 == NULL ? -1 : 0;
}

static inline uint32_t get_u32(const unsigned char *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline char *put_u32(char *at, uint32_t number)
{
    for (int byte = 0; byte < 4; byte++)
        at[byte] = (char)(number >> 8 * byte);
    return at + 4;
}

/* CRC of a payload of any length; -1 with an exception */
static int crc_of_payload(const char *data, Py_ssize_t size, uint32_t start, uint32_t *crc)
{
    if (size < ZLIB_FROM) {
        *crc = crc32_of(data, size, start);
        return 0;
    }
    PyObject *view = PyMemoryView_FromMemory((char *)data, size, PyBUF_READ), *found = NULL;
    if (view != NULL)
        found = PyObject_CallFunction(zlib_crc32, "OI", view, (unsigned int)start);
    Py_XDECREF(view);
    if (found == NULL)
        return -1;
    *crc = (uint32_t)PyLong_AsUnsignedLongMask(found);
    Py_DECREF(found);
    return 0;
}

/* The mark and seed of a FileHeader */
static int get_header(PyObject *header, char *mark, uint32_t *seed)
{
    PyObject *four = PyObject_GetAttr(header, s_mark), *start = PyObject_GetAttr(header, s_seed);
    int failed = -1;
    unsigned long long number;
    if (four == NULL || start == NULL)
        goto end;
    if (!PyBytes_Check(four) || PyBytes_GET_SIZE(four) != 4) {
        PyErr_SetString(PyExc_TypeError, "a mark is four bytes");
        goto end;
    }
    number = PyLong_AsUnsignedLongLong(start);
    if (number > UINT32_MAX) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_OverflowError, "a seed is four bytes");
        goto end;
    }
    memcpy(mark, PyBytes_AS_STRING(four), 4);
    *seed = (uint32_t)number;
    failed = 0;
end:
    Py_XDECREF(four);
    Py_XDECREF(start);
    return failed;
}

/* Write the frame; return the end, or NULL with an exception */
static char *put_frame(char *at, const char *mark, uint32_t seed, PyObject *payload, uint32_t index, uint32_t unsynced)
{
    Py_ssize_t size = PyBytes_GET_SIZE(payload);
    char *head = put_bytes(at, mark, 4);
    put_u32(put_u32(put_u32(head, (uint32_t)size), index), unsynced);
    uint32_t crc = crc32_of(head, 12, seed), whole;
    if (crc_of_payload(PyBytes_AS_STRING(payload), size, crc, &whole) < 0)
        return NULL;
    put_u32(put_u32(head + 12, crc), whole);
    return put_bytes(at + FRAME, PyBytes_AS_STRING(payload), size);
}

/* Size of the frames of all payloads in bytes; -1 with an exception */
static Py_ssize_t frames_size(PyObject *payloads, long long index, long long durable)
{
    Py_ssize_t count = PyTuple_GET_SIZE(payloads), total = 0;
    if (index < 0 || index + count - 1 > INDEX_MAX || index + 1 < durable || index + count - durable > INDEX_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a record's number does not fit into a frame");
        return -1;
    }
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *payload = PyTuple_GET_ITEM(payloads, at);
        if (!PyBytes_Check(payload)) {
            PyErr_SetString(PyExc_TypeError, "a payload is bytes");
            return -1;
        }
        if (PyBytes_GET_SIZE(payload) > INDEX_MAX || total > PY_SSIZE_T_MAX - FRAME - PyBytes_GET_SIZE(payload)) {
            PyErr_SetString(PyExc_OverflowError, "a payload does not fit into a frame");
            return -1;
        }
        total += FRAME + PyBytes_GET_SIZE(payload);
    }
    return total;
}

PyObject *encode_records(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *header, *given, *payloads, *made = NULL, *result = NULL;
    long long index, durable;
    char mark[4], *at;
    uint32_t seed;
    if (!PyArg_ParseTuple(args, "OOLL", &header, &given, &index, &durable) || get_header(header, mark, &seed) < 0)
        return NULL;
    if ((payloads = PySequence_Tuple(given)) == NULL)
        return NULL;
    Py_ssize_t size = frames_size(payloads, index, durable);
    if (size < 0 || (made = PyBytes_FromStringAndSize(NULL, size)) == NULL)
        goto end;
    at = PyBytes_AS_STRING(made);
    for (Py_ssize_t number = 0; number < PyTuple_GET_SIZE(payloads); number++, index++) {
        at = put_frame(at, mark, seed, PyTuple_GET_ITEM(payloads, number), (uint32_t)index,
                       (uint32_t)(index + 1 - durable));
        if (at == NULL)
            goto end;
    }
    result = Py_BuildValue("[O]", made);
end:
    Py_XDECREF(made);
    Py_DECREF(payloads);
    return result;
}

/* Size of the frame at `at` if it is whole and the next one; 0 if not; -1 with an exception */
static Py_ssize_t whole_frame(const char *at, Py_ssize_t left, const char *mark, uint32_t seed, long long number)
{
    const unsigned char *head = (const unsigned char *)at;
    if (left < FRAME || memcmp(at, mark, 4) != 0 || get_u32(head + 8) != number)
        return 0;
    Py_ssize_t length = get_u32(head + 4);
    uint32_t crc = get_u32(head + 16);
    if (length > left - FRAME || crc32_of(at + 4, 12, seed) != crc)
        return 0;
    if (crc_of_payload(at + FRAME, length, crc, &crc) < 0)
        return -1;
    return crc == get_u32(head + 20) ? FRAME + length : 0;
}

PyObject *decode_run(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *header, *payloads;
    Py_buffer data;
    long long number;
    char mark[4];
    uint32_t seed;
    if (!PyArg_ParseTuple(args, "Oy*L", &header, &data, &number))
        return NULL;
    if (get_header(header, mark, &seed) < 0 || (payloads = PyList_New(0)) == NULL) {
        PyBuffer_Release(&data);
        return NULL;
    }
    Py_ssize_t at = 0, size;
    int sealed = 0;
    while ((size = whole_frame((char *)data.buf + at, data.len - at, mark, seed, number)) > 0) {
        const char *frame = (char *)data.buf + at;
        sealed = get_u32((const unsigned char *)frame + 12) == 0;
        if (!sealed) {
            PyObject *payload = PyBytes_FromStringAndSize(frame + FRAME, size - FRAME);
            int failed = payload == NULL || PyList_Append(payloads, payload) < 0;
            Py_XDECREF(payload);
            if (failed) {
                size = -1;
                break;
            }
            number++;
        }
        at += size;
    }
    PyBuffer_Release(&data);
    if (size < 0) {
        Py_DECREF(payloads);
        return NULL;
    }
    return Py_BuildValue("NnO", payloads, at, sealed ? Py_True : Py_False);
}
