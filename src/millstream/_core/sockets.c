/* One turn of the server with its clients' sockets: reads all that are ready, sends to all that have replies.
 *
 * Invariants:
 *  - No call waits for a socket.
 *  - A reply is given to the kernel at most once; the call reports how much of it the kernel took.
 *  - Memory that ends for one client does not harm another. All memory is there before the first socket is touched,
 *    except for read data and for numbers. If there is none for those, the call reports it for that one socket.
 */
#include "core.h"

#ifdef __linux__
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define TURN_MAX 256
#define READ_MAX (64 * 1024)

static char room[READ_MAX]; /* guarded by the interpreter's lock, which nothing here releases */

/* What has come: bytes, the errno of what failed, None for nothing; never NULL, as small numbers are there already */
static PyObject *received(int fd)
{
    ssize_t size = recv(fd, room, sizeof room, MSG_DONTWAIT);
    PyObject *data = size < 0 ? NULL : PyBytes_FromStringAndSize(room, size);
    if (data != NULL)
        return data;
    PyErr_Clear();
    if (size >= 0)
        return PyLong_FromLong(ENOMEM); /* what came is lost */
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
        Py_RETURN_NONE;
    return PyLong_FromLong(errno);
}

PyObject *read_ready(PyObject *Py_UNUSED(self), PyObject *poll)
{
    struct epoll_event events[TURN_MAX];
    int fd = PyObject_AsFileDescriptor(poll);
    if (fd < 0)
        return NULL;
    int count = epoll_wait(fd, events, TURN_MAX, 0);
    if (count < 0 && errno != EINTR)
        return PyErr_SetFromErrno(PyExc_OSError);
    PyObject *found = PyList_New(count < 0 ? 0 : count);
    for (int at = 0; found != NULL && at < count; at++) {
        PyObject *number = PyLong_FromLong(events[at].data.fd), *what = PyLong_FromLong((long)events[at].events);
        PyObject *event = number == NULL || what == NULL ? NULL : PyTuple_Pack(3, number, Py_None, what);
        Py_XDECREF(number);
        Py_XDECREF(what);
        if (event == NULL)
            Py_CLEAR(found);
        else
            PyList_SET_ITEM(found, at, event);
    }
    PyObject *each = found == NULL ? NULL : PyObject_GetIter(found);
    for (int at = 0; each != NULL && at < count; at++)
        if (events[at].events & EPOLLIN) { /* in place of None, which is never freed; nobody else has the tuple yet */
            Py_DECREF(Py_None);
            PyTuple_SET_ITEM(PyList_GET_ITEM(found, at), 1, received(events[at].data.fd));
        }
    Py_XDECREF(found);
    return each;
}

PyObject *send_each(PyObject *Py_UNUSED(self), PyObject *replies)
{
    if (!PyList_Check(replies))
        return PyErr_Format(PyExc_TypeError, "a list of descriptors and bytes");
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(replies); at++) {
        PyObject *each = PyList_GET_ITEM(replies, at), *data;
        if (!PyTuple_Check(each) || PyTuple_GET_SIZE(each) < 2 || !PyBytes_Check(data = PyTuple_GET_ITEM(each, 1)))
            return PyErr_Format(PyExc_TypeError, "a list of descriptors and bytes");
        long fd = PyLong_AsLong(PyTuple_GET_ITEM(each, 0));
        if (fd == -1 && PyErr_Occurred())
            return NULL;
        ssize_t size = fd < 0 ? 0 : send((int)fd, PyBytes_AS_STRING(data), (size_t)PyBytes_GET_SIZE(data),
                                         MSG_DONTWAIT | MSG_NOSIGNAL);
        if (size < 0)
            size = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -errno;
        PyObject *number = PyLong_FromSsize_t(size);
        if (number == NULL)
            PyErr_Clear();
        PyList_SetItem(replies, at, number == NULL ? Py_NewRef(Py_None) : number);
    }
    Py_RETURN_NONE;
}
#endif
