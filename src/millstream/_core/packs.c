/* PackReader: reads extents of packs, whose descriptors it has by the packs' numbers.
 *
 * It reads what the page cache of the system has, and waits for a disk only where it may. Parsed tables and single nodes
 * read lately are kept, those not used again go first (CLOCK).
 *
 * Invariants: held is the size of all parts in the ring, each of which is in one bucket; a part that others have, too, is
 * not dropped. No Python code runs here before an exception is raised.
 */
#include "extent.h"
#include <errno.h>
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

struct PackReader {
    PyObject_HEAD
    Pack *packs; /* by number, ascending */
    Py_ssize_t count, room;
    Part **ring; /* parts that are kept */
    Py_ssize_t parts, ring_room, hand, held, cache;
    Part *buckets[BUCKETS];
    long long reads, bytes, misses, blocking;
};

/* ---------------------------------------------------------------- what is kept */

static Part **bucket_of(PackReader *reader, uint32_t pack, uint64_t offset, int32_t node)
{
    uint64_t key = (offset ^ (uint64_t)pack << 40 ^ (uint64_t)(uint32_t)node << 20) * 0x9e3779b97f4a7c15u;
    return &reader->buckets[key >> 52];
}

static Part *find_part(PackReader *reader, uint32_t pack, uint64_t offset, int32_t node)
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

Part *reader_find(PackReader *reader, uint32_t pack, uint64_t offset, int32_t node)
{
    return find_part(reader, pack, offset, node);
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

int reader_read(PackReader *reader, uint32_t pack, uint64_t offset, char *to, Py_ssize_t size, int may_wait)
{
    Py_ssize_t place, done = 0;
    int descriptor = descriptor_of(reader, pack, &place), waits = 0;
    if (descriptor < 0) {
        errno = ENOENT;
        return -1;
    }
    reader->reads++;
    while (done < size) {
        uint64_t from = offset + (uint64_t)done;
        ssize_t some = waits ? pread(descriptor, to + done, (size_t)(size - done), (off_t)from)
                             : read_cached(descriptor, to + done, (size_t)(size - done), from);
        if (some > 0) {
            done += some;
        } else if (some == 0) {
            errno = 0;
            return -1;
        } else if (errno == EINTR) {
            continue;
        } else if (!waits && (errno == EAGAIN || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL)) {
            if (!may_wait) {
                reader->misses++;
                return 0;
            }
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
        return cold_raise_miss(Py_BuildValue("[(IKn)]", pack, offset, size)), NULL;
    if (code == 0)
        return PyBytes_FromStringAndSize(NULL, 0);
    errno = code;
    return PyErr_SetFromErrno(PyExc_OSError);
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
    if (reader != NULL)
        reader->cache = cache;
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
    free_counted(reader->ring, (size_t)reader->ring_room * sizeof *reader->ring);
    free_counted(reader->packs, (size_t)reader->room * sizeof *reader->packs);
    Py_TYPE(reader)->tp_free((PyObject *)reader);
}

static PyMethodDef methods[] = {
    {"add", (PyCFunction)reader_add, METH_VARARGS, NULL},
    {"drop", (PyCFunction)reader_drop, METH_VARARGS, NULL},
    {"read", (PyCFunction)(void (*)(void))reader_bytes, METH_VARARGS | METH_KEYWORDS, NULL},
    {"name", (PyCFunction)reader_name, METH_VARARGS, NULL},
    {NULL},
};

static PyMemberDef members[] = {
    {"held", Py_T_PYSSIZET, offsetof(PackReader, held), Py_READONLY, NULL},
    {"reads", Py_T_LONGLONG, offsetof(PackReader, reads), Py_READONLY, NULL},
    {"read_bytes", Py_T_LONGLONG, offsetof(PackReader, bytes), Py_READONLY, NULL},
    {"misses", Py_T_LONGLONG, offsetof(PackReader, misses), Py_READONLY, NULL},
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
