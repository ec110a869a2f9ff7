/* Makes one system call on a directory's files fail in the process it is preloaded into: the Nth of a kind.

   Variables: CALLFAULTS_DIR, the directory; CALLFAULTS_TRACE, a file that gets one line for each call on it;
   CALLFAULTS_WHO, "server", "child" for the process that makes snapshots, "taking" for the one that makes them of a
   primary's copy, or "diverged" for the one that writes what nobody else has; CALLFAULTS_CALL, open, write, fsync,
   rename, unlink, link, ftruncate, pread or preadv; CALLFAULTS_AT, its number from 1; CALLFAULTS_TIMES, how many fail in a row;
   CALLFAULTS_HOW, an errno, 0 for half of a write or preadv, negative for an errno that is reported though the call was done,
   10000 to end the process by SIGKILL in place of the call; CALLFAULTS_ONCE, a file that the first process to fail a
   call makes, after which none does; CALLFAULTS_THEN, a kind whose next call fails too once the fault has happened. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN, WRITE, FSYNC, RENAME, UNLINK, FTRUNCATE, PREAD, PREADV, LINK, KINDS };
static const char *NAMES[] = {"open", "write", "fsync", "rename", "unlink", "ftruncate", "pread", "preadv", "link"};

#define MOST 65536
static unsigned char ours[MOST]; /* descriptors of the directory and its files */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static const char *directory, *who = "server";
static int trace = -1, counts[KINDS], wanted = -1, then = -1, is_armed, at, times, how;

#define REAL(name) ({ static __typeof__(&name) found; if (!found) found = dlsym(RTLD_NEXT, #name); found; })

__attribute__((constructor)) static void begin(void) {
    char line[4096] = {0};
    int fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY);
    long size = fd < 0 ? 0 : syscall(SYS_read, fd, line, sizeof line - 1);
    if (fd >= 0) syscall(SYS_close, fd);
    if (size > 0 && memmem(line, size, "millstream.node.log.compaction", 30)) who = "child";
    if (size > 0 && memmem(line, size, "millstream.node.log.taking", 26)) who = "taking";
    if (size > 0 && memmem(line, size, "millstream.maintenance.log.diverged", 35)) who = "diverged";
    directory = getenv("CALLFAULTS_DIR");
    for (int given = 3; directory && given < 64; given++) { /* files that the parent hands on, named or not */
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", given);
        ours[given] = readlink(link, line, sizeof line) >= (long)strlen(directory) && !strncmp(line, directory, strlen(directory));
    }
    const char *path = getenv("CALLFAULTS_TRACE"), *process = getenv("CALLFAULTS_WHO"), *call = getenv("CALLFAULTS_CALL");
    const char *next = getenv("CALLFAULTS_THEN");
    if (path) trace = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (!process || strcmp(process, who) || !call) return;
    for (int kind = 0; kind < KINDS; kind++) {
        if (!strcmp(call, NAMES[kind])) wanted = kind;
        if (next && !strcmp(next, NAMES[kind])) then = kind;
    }
    at = atoi(getenv("CALLFAULTS_AT"));
    times = atoi(getenv("CALLFAULTS_TIMES"));
    how = atoi(getenv("CALLFAULTS_HOW"));
}

/* Whether no other process has failed a call. */
static int is_first(void) {
    const char *once = getenv("CALLFAULTS_ONCE");
    int fd = once ? syscall(SYS_openat, AT_FDCWD, once, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (fd >= 0) syscall(SYS_close, fd);
    return !once || fd >= 0;
}

/* Whether this call is the one to fail. */
static int due(int kind, const char *what) {
    char line[512];
    pthread_mutex_lock(&gate);
    int number = ++counts[kind], hit = kind == wanted && number >= at && number < at + times && is_first();
    if (is_armed && kind == then) hit = 1, is_armed = 0;
    else if (hit) is_armed = 1;
    if (trace >= 0) {
        int size = snprintf(line, sizeof line, "%s %s %d %s%s\n", who, NAMES[kind], number, what, hit ? " FAILS" : "");
        syscall(SYS_write, trace, line, size);
    }
    if (hit && how == 10000) kill(getpid(), SIGKILL);
    pthread_mutex_unlock(&gate);
    return hit;
}

static int is_ours(int fd) { return fd >= 0 && fd < MOST && ours[fd]; }

static int is_inside(int at_fd, const char *path) {
    if (!directory || !path) return 0;
    size_t size = strlen(directory);
    if (path[0] == '/') return !strncmp(path, directory, size) && (!path[size] || path[size] == '/');
    return is_ours(at_fd);
}

static int failed(int code) { errno = code < 0 ? -code : code; return -1; }

#define OPENED(call)                                                                                                   \
    do {                                                                                                               \
        int inside = is_inside(at_fd, path), fd;                                                                       \
        if (inside && due(OPEN, path)) return failed(how);                                                             \
        fd = call;                                                                                                     \
        if (fd >= 0 && fd < MOST) ours[fd] = inside;                                                                   \
        return fd;                                                                                                     \
    } while (0)

#define MODE(flags) ({ va_list rest; va_start(rest, flags); int m = va_arg(rest, int); va_end(rest); m; })

int open(const char *path, int flags, ...) { int at_fd = AT_FDCWD, mode = MODE(flags); OPENED(REAL(open)(path, flags, mode)); }
int open64(const char *path, int flags, ...) { int at_fd = AT_FDCWD, mode = MODE(flags); OPENED(REAL(open64)(path, flags, mode)); }
int openat(int at_fd, const char *path, int flags, ...) { int mode = MODE(flags); OPENED(REAL(openat)(at_fd, path, flags, mode)); }
int openat64(int at_fd, const char *path, int flags, ...) { int mode = MODE(flags); OPENED(REAL(openat64)(at_fd, path, flags, mode)); }

int close(int fd) { if (fd >= 0 && fd < MOST) ours[fd] = 0; return REAL(close)(fd); }

static int copied(int old, int new, int done) { if (done >= 0 && new < MOST) ours[new] = is_ours(old); return done; }
int dup2(int old, int new) { return copied(old, new, REAL(dup2)(old, new)); }
int dup3(int old, int new, int flags) { return copied(old, new, REAL(dup3)(old, new, flags)); }

#define WRITTEN(call)                                                                                                  \
    do {                                                                                                               \
        if (is_ours(fd) && due(WRITE, "-")) {                                                                          \
            if (how) return failed(how);                                                                               \
            if (size > 1) size /= 2;                                                                                   \
        }                                                                                                              \
        return call;                                                                                                   \
    } while (0)

ssize_t write(int fd, const void *data, size_t size) { WRITTEN(REAL(write)(fd, data, size)); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t to) { WRITTEN(REAL(pwrite)(fd, data, size, to)); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t to) { WRITTEN(REAL(pwrite64)(fd, data, size, to)); }

#define DONE(kind, inside, what, call)                                                                                 \
    do {                                                                                                               \
        if ((inside) && due(kind, what)) {                                                                             \
            if (how < 0) (void)call;                                                                                   \
            return failed(how);                                                                                        \
        }                                                                                                              \
        return call;                                                                                                   \
    } while (0)

ssize_t pread(int fd, void *to, size_t size, off_t from) { DONE(PREAD, is_ours(fd), "-", REAL(pread)(fd, to, size, from)); }
ssize_t pread64(int fd, void *to, size_t size, off64_t from) { DONE(PREAD, is_ours(fd), "-", REAL(pread64)(fd, to, size, from)); }

#define SCATTERED(name)                                                                                                \
    do {                                                                                                               \
        struct iovec half = *parts;                                                                                    \
        if (is_ours(fd) && due(PREADV, "-")) {                                                                         \
            if (how) return failed(how);                                                                               \
            if (half.iov_len > 1) half.iov_len /= 2;                                                                   \
            return REAL(name)(fd, &half, 1, from, flags);                                                              \
        }                                                                                                              \
        return REAL(name)(fd, parts, count, from, flags);                                                              \
    } while (0)

ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t from, int flags) { SCATTERED(preadv2); }
ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off64_t from, int flags) { SCATTERED(preadv64v2); }
int fsync(int fd) { DONE(FSYNC, is_ours(fd), "-", REAL(fsync)(fd)); }
int fdatasync(int fd) { DONE(FSYNC, is_ours(fd), "-", REAL(fdatasync)(fd)); }
int ftruncate(int fd, off_t size) { DONE(FTRUNCATE, is_ours(fd), "-", REAL(ftruncate)(fd, size)); }
int ftruncate64(int fd, off64_t size) { DONE(FTRUNCATE, is_ours(fd), "-", REAL(ftruncate64)(fd, size)); }
int rename(const char *old, const char *new) { DONE(RENAME, is_inside(AT_FDCWD, new), new, REAL(rename)(old, new)); }
int renameat(int a, const char *old, int b, const char *new) { DONE(RENAME, is_inside(b, new), new, REAL(renameat)(a, old, b, new)); }
int unlink(const char *path) { DONE(UNLINK, is_inside(AT_FDCWD, path), path, REAL(unlink)(path)); }
int unlinkat(int fd, const char *path, int flags) { DONE(UNLINK, is_inside(fd, path), path, REAL(unlinkat)(fd, path, flags)); }
int link(const char *old, const char *new) { DONE(LINK, is_inside(AT_FDCWD, new), new, REAL(link)(old, new)); }
int linkat(int a, const char *old, int b, const char *new, int flags) { DONE(LINK, is_inside(b, new), new, REAL(linkat)(a, old, b, new, flags)); }
