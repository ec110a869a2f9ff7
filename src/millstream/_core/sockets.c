/* What one turn of the server does with its clients' sockets: read all that are ready, send to all that are answered.
 *
 * Invariants: no call waits for a socket. A reply is given to the kernel at most once: what it did not take is told.
 */
#include "core.h"

#ifdef __linux__
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define TURN_MAX 256
#define READ_MAX (64 * 1024)

static char room[READ_MAX]; /* guarded by the interpreter's lock, which nothing here releases */

/* What has come: bytes, the errno of what failed, None for nothing */
static PyObject *received(int fd)
{
    ssize_t size = recv(fd, room, sizeof room, MSG_DONTWAIT);
    if (size >= 0)
        return PyBytes_FromStringAndSize(room, size);
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
        Py_RETURN_NONE;
    return PyLong_FromLong(errno);
}

PyObject *read_ready(PyObject *self, PyObject *poll)
{
    struct epoll_event events[TURN_MAX];
    int fd = PyObject_AsFileDescriptor(poll);
    if (fd < 0)
        return NULL;
    int count = epoll_wait(fd, events, TURN_MAX, 0);
    if (count < 0 && errno != EINTR)
        return PyErr_SetFromErrno(PyExc_OSError);
    PyObject *found = PyList_New(0);
    for (int at = 0; found != NULL && at < count; at++) {
        int one = events[at].data.fd;
        PyObject *data = events[at].events & EPOLLIN ? received(one) : Py_NewRef(Py_None);
        PyObject *event = data == NULL ? NULL : Py_BuildValue("(iNI)", one, data, (unsigned int)events[at].events);
        if (event == NULL || PyList_Append(found, event) < 0)
            Py_CLEAR(found);
        Py_XDECREF(event);
    }
    return found;
}

PyObject *send_each(PyObject *self, PyObject *replies)
{
    if (!PyList_Check(replies))
        return PyErr_Format(PyExc_TypeError, "a list of descriptors and bytes");
    Py_ssize_t count = PyList_GET_SIZE(replies);
    PyObject *sent = PyList_New(count);
    for (Py_ssize_t at = 0; sent != NULL && at < count; at++) {
        int fd;
        PyObject *data;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(replies, at), "iS", &fd, &data)) {
            Py_CLEAR(sent);
            break;
        }
        ssize_t size = fd < 0 ? 0 : send(fd, PyBytes_AS_STRING(data), (size_t)PyBytes_GET_SIZE(data),
                                         MSG_DONTWAIT | MSG_NOSIGNAL);
        if (size < 0)
            size = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -errno;
        PyObject *number = PyLong_FromSsize_t(size);
        if (number == NULL)
            Py_CLEAR(sent);
        else
            PyList_SET_ITEM(sent, at, number);
    }
    return sent;
}
#endif
