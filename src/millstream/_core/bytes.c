/* Buffers that grow, numbers as text, words as a command, and ids as Python's integers.
 *
 * Invariants: size <= room; room bytes are allocated at data, which is NULL only where room is 0.
 */
#include "bytes.h"

Py_ssize_t counted;

PyObject *stream_memory(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(nothing))
{
    return PyLong_FromSsize_t(counted);
}

int buf_grow(Buf *buf, Py_ssize_t more)
{
    if (more > PY_SSIZE_T_MAX / 2 - buf->size) {
        PyErr_NoMemory();
        return -1;
    }
    Py_ssize_t room = buf->room ? buf->room : 64;
    while (room < buf->size + more)
        room *= 2;
    char *data = PyMem_Realloc(buf->data, (size_t)room);
    if (data == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    buf->data = data;
    buf->room = room;
    return 0;
}

void buf_free(Buf *buf)
{
    PyMem_Free(buf->data);
    *buf = (Buf){0};
}

PyObject *buf_bytes(const Buf *buf)
{
    return PyBytes_FromStringAndSize(buf->data, buf->size);
}

PyObject *view_list(const View *words, Py_ssize_t count)
{
    PyObject *list = PyList_New(count);
    for (Py_ssize_t at = 0; list != NULL && at < count; at++) {
        PyObject *word = PyBytes_FromStringAndSize(words[at].data, words[at].size);
        if (word == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, at, word);
    }
    return list;
}

char *put_number(char *at, uint64_t number)
{
    static const char pairs[] = "00010203040506070809101112131415161718192021222324252627282930313233343536373839"
                                "40414243444546474849505152535455565758596061626364656667686970717273747576777879"
                                "8081828384858687888990919293949596979899";
    int size = 1;
    for (uint64_t limit = 10; size < NUMBER_ROOM && number >= limit; limit *= 10)
        size++;
    char *first = at + size;
    for (; number >= 10; number /= 100)
        memcpy(first -= 2, pairs + 2 * (number % 100), 2);
    if (first > at)
        *at = (char)('0' + number);
    return at + size;
}

/* An argument as it is sent: ASCII text, bytes, or a number from 0 on; 0 for any other type. `text` receives a number's
 * digits */
static int get_word(PyObject *word, char *text, View *view)
{
    if (PyUnicode_CheckExact(word) && PyUnicode_IS_COMPACT_ASCII(word)) {
        *view = (View){(const char *)PyUnicode_1BYTE_DATA(word), PyUnicode_GET_LENGTH(word)};
    } else if (PyBytes_CheckExact(word)) {
        *view = (View){PyBytes_AS_STRING(word), PyBytes_GET_SIZE(word)};
    } else {
        int overflow = 0;
        long long number = PyLong_CheckExact(word) ? PyLong_AsLongLongAndOverflow(word, &overflow) : -1;
        if (number < 0)
            return 0;
        *view = (View){text, put_number(text, (uint64_t)number) - text};
    }
    return 1;
}

PyObject *pack_words(PyObject *Py_UNUSED(self), PyObject *words)
{
    Buf out = {0};
    PyObject *packed = NULL;
    char text[NUMBER_ROOM];
    View word;
    Py_ssize_t count = PyTuple_CheckExact(words) ? PyTuple_GET_SIZE(words) : 0, at = 0;
    if (buf_reserve(&out, 512) == 0 && buf_head(&out, '*', (uint64_t)count) == 0)
        while (at < count && get_word(PyTuple_GET_ITEM(words, at), text, &word)
               && buf_bulk(&out, word.data, word.size) == 0)
            at++;
    if (!PyErr_Occurred()) {
        if (at == count && count > 0) {
            packed = buf_bytes(&out);
        } else {
            PyObject *module = PyImport_ImportModule("hiredis");
            packed = module == NULL ? NULL : PyObject_CallMethod(module, "pack_command", "(O)", words);
            Py_XDECREF(module);
        }
    }
    buf_free(&out);
    return packed;
}

int id_clamp(PyObject *number, Id *id)
{
    if (!PyLong_Check(number)) {
        PyErr_Format(PyExc_TypeError, "an id is an int, not %.100s", Py_TYPE(number)->tp_name);
        return -2;
    }
    int overflow = 0;
    long long small = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (overflow == 0) {
        *id = small < 0 ? 0 : (Id)small;
        return small < 0 ? -1 : 0;
    }
    *id = overflow < 0 ? 0 : ID_MAX;
    if (overflow < 0)
        return -1;
    if (_PyLong_NumBits(number) > 128)
        return 1;
    unsigned char packed[16];
#if PY_VERSION_HEX >= 0x030D0000
    if (_PyLong_AsByteArray((PyLongObject *)number, packed, 16, 0, 0, 1) < 0)
        return -2;
#else
    if (_PyLong_AsByteArray((PyLongObject *)number, packed, 16, 0, 0) < 0)
        return -2;
#endif
    *id = id_from_bytes((const char *)packed);
    return 0;
}

int id_from_int(PyObject *number, Id *id)
{
    int side = id_clamp(number, id);
    if (side == 0)
        return 0;
    if (side > -2)
        PyErr_SetString(PyExc_OverflowError, "an id has 128 bits");
    return -1;
}

PyObject *id_to_int(Id id)
{
    if (ID_MS(id) == 0)
        return PyLong_FromUnsignedLongLong(ID_SEQ(id));
    char packed[16];
    id_to_bytes(id, packed);
    return _PyLong_FromByteArray((const unsigned char *)packed, 16, 0, 0);
}

Id id_from_bytes(const char *packed)
{
    Id id = 0;
    for (int at = 0; at < 16; at++)
        id = id << 8 | (unsigned char)packed[at];
    return id;
}

void id_to_bytes(Id id, char *packed)
{
    for (int at = 15; at >= 0; at--, id >>= 8)
        packed[at] = (char)(unsigned char)id;
}

int intern_names(const Name *names, size_t count)
{
    for (size_t at = 0; at < count; at++)
        if ((*names[at].place = PyUnicode_InternFromString(names[at].text)) == NULL)
            return -1;
    return 0;
}

PyObject *take_error(void)
{
#if PY_VERSION_HEX >= 0x030c0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
#endif
}
