/* Preloaded into a process: reads of files that fail. Python sets `read_fault` and `read_wait_fault` by ctypes.
 *
 * 0: the call is done; -1: it reads half of what is wanted, and 1 byte at least; else the errno of a call that is not done.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

int read_fault, read_wait_fault; /* of preadv2; of pread */

ssize_t preadv64v2(int descriptor, const struct iovec *parts, int count, off64_t offset, int flags)
{
    static ssize_t (*real)(int, const struct iovec *, int, off64_t, int);
    if (real == NULL)
        real = (ssize_t (*)(int, const struct iovec *, int, off64_t, int))dlsym(RTLD_NEXT, "preadv64v2");
    if (read_fault > 0) {
        errno = read_fault;
        return -1;
    }
    struct iovec part = *parts;
    if (read_fault < 0)
        part.iov_len = (part.iov_len + 1) / 2;
    return real(descriptor, &part, count, offset, flags);
}

ssize_t pread64(int descriptor, void *to, size_t size, off64_t offset)
{
    static ssize_t (*real)(int, void *, size_t, off64_t);
    if (real == NULL)
        real = (ssize_t (*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
    if (read_wait_fault > 0) {
        errno = read_wait_fault;
        return -1;
    }
    return real(descriptor, to, read_wait_fault < 0 ? (size + 1) / 2 : size, offset);
}
