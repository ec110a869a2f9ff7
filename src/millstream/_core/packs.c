/* PackReader: reads extents of packs, whose descriptors it has by the packs' numbers.
 *
 * It reads what the page cache of the system has, and waits for a disk only where it may. Parsed tables and single nodes
 * read lately are kept, those not used again go first (CLOCK). A thread may fetch bytes, which are pinned here for the
 * reader that missed them. Marked bytes are missed once more though they are there, so that a sequential reader is noticed.
 *
 * Invariants: held is the size of all parts in the ring, each of which is in one bucket; a part that others have, too, is
 * not dropped. No Python code runs here before an exception is raised. Only fetch and advise let other
 * threads run.
 */
#include "extent.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/uio.h>
#endif

#define BUCKETS 4096
#define CACHE ((Py_ssize_t)8 << 20)

typedef struct {
    uint32_t number;
    int descriptor;
    PyObject *name; /* of its file */
} Pack;

/* Bytes of a pack: pinned ones; those that a thread could not read, with a code; or, with neither, marked ones */
typedef struct {
    uint32_t pack;
    uint64_t offset;
    Py_ssize_t size;
    PyObject *bytes;
    int code; /* errno of what could not be read */
} Piece;

struct PackReader {
    PyObject_HEAD
    Pack *packs; /* by number, ascending */
    Py_ssize_t count, room;
    Piece *pins;
    Py_ssize_t pin_count, pin_room, mark_count;
    int nowait; /* whether the file system can read without waiting; -1: not known yet */
    Part **ring; /* parts that are kept */
    Py_ssize_t parts, ring_room, hand, held, cache;
    Part *buckets[BUCKETS];
    long long reads, bytes, blocking;
};

/* ---------------------------------------------------------------- what is kept */

static Part **bucket_of(PackReader *reader, uint32_t pack, uint64_t offset, int32_t node)
{
    uint64_t key = (offset ^ (uint64_t)pack << 40 ^ (uint64_t)(uint32_t)node << 20) * 0x9e3779b97f4a7c15u;
    return &reader->buckets[key >> 52];
}

Part *reader_find(PackReader *reader, uint32_t pack, uint64_t offset, int32_t node)
{
    for (Part *part = *bucket_of(reader, pack, offset, node); part != NULL; part = part->next)
        if (part->offset == offset && part->pack == pack && part->node == node) {
            part->is_recent = 1;
            part->owners++;
            return part;
        }
    return NULL;
}

static void drop_part(PackReader *reader, Py_ssize_t at)
{
    Part *part = reader->ring[at], **link = bucket_of(reader, part->pack, part->offset, part->node);
    while (*link != part)
        link = &(*link)->next;
    *link = part->next;
    reader->held -= (Py_ssize_t)part->size;
    reader->ring[at] = reader->ring[--reader->parts];
    part_release(part);
}

/* Let parts go until there is room for this many bytes, or all that are left are in use */
static void make_room(PackReader *reader, Py_ssize_t size)
{
    for (Py_ssize_t looks = 2 * reader->parts; looks > 0 && reader->held + size > reader->cache; looks--) {
        if (reader->hand >= reader->parts)
            reader->hand = 0;
        Part *part = reader->ring[reader->hand];
        if (part->owners == 1 && !part->is_recent) {
            drop_part(reader, reader->hand);
        } else {
            part->is_recent = 0;
            reader->hand++;
        }
    }
}

void reader_keep(PackReader *reader, Part *part, uint32_t pack, uint64_t offset, int32_t node)
{
    Py_ssize_t size = (Py_ssize_t)part->size;
    part->pack = pack, part->offset = offset, part->node = node;
    if (size > reader->cache / 4)
        return;
    make_room(reader, size);
    if (reader->held + size > reader->cache)
        return;
    if (reader->parts == reader->ring_room) {
        Py_ssize_t room = reader->ring_room ? 2 * reader->ring_room : 64;
        Part **ring = resize_counted(reader->ring, (size_t)reader->ring_room * sizeof *ring, (size_t)room * sizeof *ring);
        if (ring == NULL)
            return; /* it is used, and not kept */
        reader->ring = ring;
        reader->ring_room = room;
    }
    Part **bucket = bucket_of(reader, pack, offset, node);
    part->next = *bucket;
    *bucket = part;
    part->owners++;
    reader->ring[reader->parts++] = part;
    reader->held += size;
}

/* ---------------------------------------------------------------- reading */

static int descriptor_of(PackReader *reader, uint32_t number, Py_ssize_t *place)
{
    Py_ssize_t low = 0, high = reader->count;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if (reader->packs[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    *place = low;
    return low < reader->count && reader->packs[low].number == number ? reader->packs[low].descriptor : -1;
}

/* Without waiting for a disk: EAGAIN, or EOPNOTSUPP where a file system cannot tell */
static ssize_t read_cached(int descriptor, char *to, size_t size, uint64_t offset)
{
#if defined(__linux__) && defined(RWF_NOWAIT)
    struct iovec part = {to, size};
    return preadv2(descriptor, &part, 1, (off_t)offset, RWF_NOWAIT);
#else
    (void)descriptor, (void)to, (void)size, (void)offset;
    errno = EOPNOTSUPP;
    return -1;
#endif
}

static int has_part(const Piece *piece, uint32_t pack, uint64_t offset, Py_ssize_t size)
{
    return piece->pack == pack && piece->offset <= offset
           && offset + (uint64_t)size <= piece->offset + (uint64_t)piece->size;
}

static int is_mark(const Piece *pin) { return pin->bytes == NULL && pin->code == 0; }

static int is_marked(const PackReader *reader, uint32_t pack, uint64_t offset, Py_ssize_t size)
{
    for (const Piece *pin = reader->pins, *end = pin + reader->pin_count; pin < end; pin++)
        if (is_mark(pin) && has_part(pin, pack, offset, size))
            return 1;
    return 0;
}

/* 1 with pinned bytes; 0: there are none; -1 with errno if a thread could not read some of them */
static int read_pinned(const PackReader *reader, uint32_t pack, uint64_t offset, char *to, Py_ssize_t size)
{
    int code = 0;
    for (const Piece *pin = reader->pins, *end = pin + reader->pin_count; pin < end; pin++) {
        if (pin->bytes != NULL && has_part(pin, pack, offset, size)) {
            memcpy(to, PyBytes_AS_STRING(pin->bytes) + (offset - pin->offset), (size_t)size);
            return 1;
        }
        if (pin->code && pin->pack == pack && offset < pin->offset + (uint64_t)pin->size
            && pin->offset < offset + (uint64_t)size)
            code = pin->code;
    }
    errno = code;
    return code ? -1 : 0;
}

int reader_read(PackReader *reader, uint32_t pack, uint64_t offset, char *to, Py_ssize_t size, int may_wait)
{
    Py_ssize_t place, done = 0;
    int descriptor = descriptor_of(reader, pack, &place), waits = 0;
    int found;
    if (descriptor < 0) {
        errno = ENOENT;
        return -1;
    }
    if (!may_wait && reader->mark_count && is_marked(reader, pack, offset, size))
        return 0;
    reader->reads++;
    while (done < size) {
        uint64_t from = offset + (uint64_t)done;
        ssize_t some = waits ? pread(descriptor, to + done, (size_t)(size - done), (off_t)from)
                             : read_cached(descriptor, to + done, (size_t)(size - done), from);
        if (some > 0) {
            done += some;
            reader->nowait = waits ? reader->nowait : 1;
        } else if (some == 0) {
            errno = 0;
            return -1;
        } else if (errno == EINTR) {
            continue;
        } else if (!waits && (errno == EAGAIN || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL)) {
            reader->nowait = errno == EAGAIN ? 1 : 0;
            if ((found = read_pinned(reader, pack, offset, to, size)) < 0)
                return -1;
            if (found)
                break;
            if (!may_wait)
                return 0;
            reader->blocking++;
            waits = 1;
        } else {
            return -1;
        }
    }
    reader->bytes += size;
    return 1;
}

/* ---------------------------------------------------------------- the type */

static PyObject *reader_add(PackReader *reader, PyObject *args)
{
    unsigned int number;
    int descriptor;
    PyObject *name;
    Py_ssize_t place;
    if (!PyArg_ParseTuple(args, "IiU", &number, &descriptor, &name))
        return NULL;
    if (descriptor_of(reader, number, &place) >= 0)
        return PyErr_Format(PyExc_ValueError, "pack %u is there already", number);
    if (reader->count == reader->room) {
        Py_ssize_t room = reader->room ? 2 * reader->room : 16;
        Pack *packs = resize_counted(reader->packs, (size_t)reader->room * sizeof *packs, (size_t)room * sizeof *packs);
        if (packs == NULL)
            return PyErr_NoMemory();
        reader->packs = packs;
        reader->room = room;
    }
    memmove(reader->packs + place + 1, reader->packs + place, (size_t)(reader->count - place) * sizeof(Pack));
    reader->packs[place] = (Pack){number, descriptor, Py_NewRef(name)};
    reader->count++;
    Py_RETURN_NONE;
}

static void drop_pin(PackReader *reader, Py_ssize_t at)
{
    PyObject *bytes = reader->pins[at].bytes;
    reader->mark_count -= is_mark(reader->pins + at);
    reader->pins[at] = reader->pins[--reader->pin_count];
    Py_XDECREF(bytes);
}

static PyObject *reader_drop(PackReader *reader, PyObject *args)
{
    unsigned int number;
    Py_ssize_t place;
    if (!PyArg_ParseTuple(args, "I", &number))
        return NULL;
    int descriptor = descriptor_of(reader, number, &place);
    if (descriptor < 0)
        return PyErr_Format(PyExc_ValueError, "pack %u is not there", number);
    PyObject *name = reader->packs[place].name;
    reader->count--;
    memmove(reader->packs + place, reader->packs + place + 1, (size_t)(reader->count - place) * sizeof(Pack));
    for (Py_ssize_t at = reader->parts - 1; at >= 0; at--)
        if (reader->ring[at]->pack == number)
            drop_part(reader, at);
    for (Py_ssize_t at = reader->pin_count - 1; at >= 0; at--)
        if (reader->pins[at].pack == number)
            drop_pin(reader, at);
    close(descriptor);
    Py_DECREF(name);
    Py_RETURN_NONE;
}

static PyObject *reader_bytes(PackReader *reader, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"pack", "offset", "length", "may_wait", NULL};
    unsigned int pack;
    unsigned long long offset;
    Py_ssize_t size;
    int may_wait = 1;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "IKn|$p", names, &pack, &offset, &size, &may_wait))
        return NULL;
    if (size < 0 || size > FRAME_MAX || offset > INT64_MAX - FRAME_MAX)
        return PyErr_Format(PyExc_ValueError, "a part of another size");
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, size);
    if (bytes == NULL)
        return NULL;
    int found = reader_read(reader, pack, offset, PyBytes_AS_STRING(bytes), size, may_wait), code = errno;
    if (found == 1)
        return bytes;
    Py_DECREF(bytes); /* which may change errno */
    if (found == 0)
        return cold_raise_miss(Py_BuildValue("[(IKn)]", pack, offset, size), NULL), NULL;
    if (code == 0)
        return PyBytes_FromStringAndSize(NULL, 0);
    errno = code;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *reader_pin(PackReader *reader, PyObject *args)
{
    unsigned int pack;
    unsigned long long offset;
    Py_ssize_t size;
    PyObject *what;
    if (!PyArg_ParseTuple(args, "IKnO", &pack, &offset, &size, &what))
        return NULL;
    PyObject *bytes = PyBytes_Check(what) ? what : NULL;
    long code = bytes == NULL ? PyLong_AsLong(what) : 0;
    if (code == -1 && PyErr_Occurred())
        return NULL;
    if (size < 0 || size > FRAME_MAX || offset > INT64_MAX - FRAME_MAX || (bytes != NULL && PyBytes_GET_SIZE(bytes) != size))
        return PyErr_Format(PyExc_ValueError, "a part of another size");
    if (reader->pin_count == reader->pin_room) {
        Py_ssize_t room = reader->pin_room ? 2 * reader->pin_room : 16;
        Piece *grown = resize_counted(reader->pins, (size_t)reader->pin_room * sizeof *grown, (size_t)room * sizeof *grown);
        if (grown == NULL)
            return PyErr_NoMemory();
        reader->pins = grown;
        reader->pin_room = room;
    }
    Piece *pin = reader->pins + reader->pin_count++;
    *pin = (Piece){pack, offset, size, Py_XNewRef(bytes), (int)code};
    reader->mark_count += is_mark(pin);
    Py_RETURN_NONE;
}

static PyObject *reader_unpin(PackReader *reader, PyObject *args)
{
    unsigned int pack;
    unsigned long long offset;
    Py_ssize_t size;
    int marks = 0;
    if (!PyArg_ParseTuple(args, "IKn|p", &pack, &offset, &size, &marks))
        return NULL;
    for (Py_ssize_t at = reader->pin_count - 1; at >= 0; at--) {
        const Piece *pin = reader->pins + at;
        if (pin->pack == pack && pin->offset == offset && pin->size == size && is_mark(pin) == marks) {
            drop_pin(reader, at);
            break;
        }
    }
    Py_RETURN_NONE;
}

static PyObject *reader_fetch(PackReader *reader, PyObject *args)
{
    unsigned int pack;
    unsigned long long offset;
    Py_ssize_t size, place, done = 0;
    if (!PyArg_ParseTuple(args, "IKn", &pack, &offset, &size))
        return NULL;
    if (size < 0 || size > FRAME_MAX || offset > INT64_MAX - FRAME_MAX)
        return PyErr_Format(PyExc_ValueError, "a part of another size");
    int descriptor = descriptor_of(reader, pack, &place), code = 0;
    errno = ENOENT;
    if (descriptor >= 0)
        descriptor = fcntl(descriptor, F_DUPFD_CLOEXEC, 0); /* the pack may be dropped meanwhile */
    if (descriptor < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, size);
    char *to = bytes == NULL ? NULL : PyBytes_AS_STRING(bytes);
    Py_BEGIN_ALLOW_THREADS
    while (to != NULL && done < size) {
        ssize_t some = pread(descriptor, to + done, (size_t)(size - done), (off_t)(offset + (uint64_t)done));
        if (some < 0 && errno == EINTR)
            continue;
        if (some <= 0) {
            code = some < 0 ? errno : 0;
            break;
        }
        done += some;
    }
    close(descriptor);
    Py_END_ALLOW_THREADS
    if (code != 0) {
        Py_DECREF(bytes);
        errno = code;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    reader->reads++;
    reader->bytes += done;
    if (bytes != NULL && done < size)
        _PyBytes_Resize(&bytes, done);
    return bytes;
}

static PyObject *reader_advise(PackReader *reader, PyObject *args)
{
    unsigned int pack;
    unsigned long long offset;
    Py_ssize_t size, place;
    int is_needed;
    if (!PyArg_ParseTuple(args, "IKnp", &pack, &offset, &size, &is_needed))
        return NULL;
    int descriptor = descriptor_of(reader, pack, &place);
#ifdef POSIX_FADV_WILLNEED
    if (descriptor >= 0)
        descriptor = fcntl(descriptor, F_DUPFD_CLOEXEC, 0); /* as in fetch; without one it is only slower */
    if (descriptor < 0)
        Py_RETURN_NONE;
    Py_BEGIN_ALLOW_THREADS
    posix_fadvise(descriptor, (off_t)offset, (off_t)size, is_needed ? POSIX_FADV_WILLNEED : POSIX_FADV_DONTNEED);
    close(descriptor);
    Py_END_ALLOW_THREADS
#else
    (void)descriptor;
#endif
    Py_RETURN_NONE;
}

static PyObject *reader_limit(PackReader *reader, PyObject *number)
{
    Py_ssize_t cache = PyLong_AsSsize_t(number);
    if (cache == -1 && PyErr_Occurred())
        return NULL;
    reader->cache = cache;
    make_room(reader, 0);
    make_room(reader, 0); /* the first round only forgets that they were used */
    Py_RETURN_NONE;
}

static PyObject *reader_name(PackReader *reader, PyObject *args)
{
    unsigned int number;
    Py_ssize_t place;
    if (!PyArg_ParseTuple(args, "I", &number))
        return NULL;
    if (descriptor_of(reader, number, &place) < 0)
        return PyUnicode_FromFormat("pack %u", number);
    return Py_NewRef(reader->packs[place].name);
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"cache", NULL};
    Py_ssize_t cache = CACHE;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|n", names, &cache))
        return NULL;
    PackReader *reader = (PackReader *)type->tp_alloc(type, 0);
    if (reader != NULL) {
        reader->cache = cache;
        reader->nowait = -1;
    }
    return (PyObject *)reader;
}

static void reader_dealloc(PackReader *reader)
{
    while (reader->parts)
        drop_part(reader, reader->parts - 1);
    for (Py_ssize_t at = 0; at < reader->count; at++) {
        close(reader->packs[at].descriptor);
        Py_DECREF(reader->packs[at].name);
    }
    while (reader->pin_count)
        drop_pin(reader, reader->pin_count - 1);
    free_counted(reader->pins, (size_t)reader->pin_room * sizeof *reader->pins);
    free_counted(reader->ring, (size_t)reader->ring_room * sizeof *reader->ring);
    free_counted(reader->packs, (size_t)reader->room * sizeof *reader->packs);
    Py_TYPE(reader)->tp_free((PyObject *)reader);
}

static PyMethodDef methods[] = {
    {"add", (PyCFunction)reader_add, METH_VARARGS, NULL},
    {"drop", (PyCFunction)reader_drop, METH_VARARGS, NULL},
    {"read", (PyCFunction)(void (*)(void))reader_bytes, METH_VARARGS | METH_KEYWORDS, NULL},
    {"name", (PyCFunction)reader_name, METH_VARARGS, NULL},
    {"fetch", (PyCFunction)reader_fetch, METH_VARARGS, NULL},
    {"pin", (PyCFunction)reader_pin, METH_VARARGS, NULL},
    {"unpin", (PyCFunction)reader_unpin, METH_VARARGS, NULL},
    {"advise", (PyCFunction)reader_advise, METH_VARARGS, NULL},
    {"limit", (PyCFunction)reader_limit, METH_O, NULL},
    {NULL},
};

static PyMemberDef members[] = {
    {"nowait", Py_T_INT, offsetof(PackReader, nowait), Py_READONLY, NULL},
    {"held", Py_T_PYSSIZET, offsetof(PackReader, held), Py_READONLY, NULL},
    {"reads", Py_T_LONGLONG, offsetof(PackReader, reads), Py_READONLY, NULL},
    {"read_bytes", Py_T_LONGLONG, offsetof(PackReader, bytes), Py_READONLY, NULL},
    {"blocking", Py_T_LONGLONG, offsetof(PackReader, blocking), Py_READONLY, NULL},
    {NULL},
};

PyTypeObject PackReaderType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "millstream._native.PackReader",
    .tp_doc = "Reader of packs; see millstream.engine.streams.cold.",
    .tp_basicsize = sizeof(PackReader),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = reader_new,
    .tp_dealloc = (destructor)reader_dealloc,
    .tp_methods = methods,
    .tp_members = members,
};
