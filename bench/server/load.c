/* A load generator for what redis-benchmark cannot send: commands that differ, in an order, at a pace.

   load PORT CLIENTS PIPELINE RATE TOTAL SECONDS FILE

   FILE holds commands in RESP. Each client has a block of its own, the i-th of CLIENTS equal parts, and sends it in
   order, over and over, until TOTAL commands were sent by all. RATE 0: each client sends PIPELINE commands and waits for
   their replies. A RATE: the k-th command is due k/RATE seconds after the start, at client k % CLIENTS, whether or not
   earlier ones were answered, and its time counts from when it was due. After SECONDS nothing more is waited for.

   It says "ready" when all clients are connected, begins when a line comes in, says one line of JSON when the last reply
   is there, and ends when its input does: so whoever started it can look at the server's clock at both ends.

   Invariants: need is how many RESP values the current reply still lacks, 1 between replies; skip is how many bytes of
   a bulk string are still to come, and no line is parsed while it is above 0; done <= sent <= quota of each client. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    int fd, wants_out;
    long first, end, at;          /* its block of commands, and where it is */
    long quota, sent, done;
    long need, skip, batch_left;  /* batch_left: replies of the batch that are not there yet */
    size_t out, out_end;          /* bytes of the file that are to be written */
    double since;                 /* when the batch was sent */
    int kept;                     /* bytes of an unfinished line */
    char line[128];
} Client;

static char *text;
static size_t *starts; /* of each command, and one more for the end */
static long commands, clients, pipeline, total, replies, errors;
static double rate, began, *times;
static char first_error[128];
static Client *all;
static int queue;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void fail(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void *room(size_t count, size_t each) {
    void *found = calloc(count ? count : 1, each);
    if (!found) fail("memory");
    return found;
}

/* The number behind a type byte, and the place behind its line. */
static long number(const char *p, const char **behind) {
    char *end;
    long value = strtol(p + 1, &end, 10);
    *behind = end + 2;
    return value;
}

/* Read the file so often that every client has a batch, and find where commands begin. */
static void load_file(const char *path) {
    struct stat facts;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &facts)) fail(path);
    size_t size = (size_t)facts.st_size, got = 0;
    char *once = room(size + 1, 1);
    while (got < size) {
        ssize_t n = read(fd, once + got, size - got);
        if (n <= 0) fail(path);
        got += (size_t)n;
    }
    close(fd);
    long count = 0;
    for (const char *p = once; p < once + size; count++)
        for (long words = number(p, &p); words > 0; words--) {
            long length = number(p, &p);
            p += length + 2;
        }
    long copies = (clients * pipeline + count - 1) / count;
    commands = count * copies;
    text = copies == 1 ? once : room(size * (size_t)copies, 1);
    for (long i = 0; i < copies && copies > 1; i++) memcpy(text + (size_t)i * size, once, size);
    starts = room((size_t)commands + 1, sizeof *starts);
    const char *p = text;
    for (long i = 0; i < commands; i++) {
        starts[i] = (size_t)(p - text);
        for (long words = number(p, &p); words > 0; words--) {
            long length = number(p, &p);
            p += length + 2;
        }
    }
    starts[commands] = size * (size_t)copies;
}

static void connect_all(int port) {
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (long i = 0; i < clients; i++) {
        Client *c = &all[i];
        int on = 1;
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&where, sizeof where)) fail("connect");
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        c->first = c->at = i * commands / clients;
        c->end = (i + 1) * commands / clients;
        c->quota = total / clients + (i < total % clients);
        c->need = 1;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(queue, EPOLL_CTL_ADD, c->fd, &event)) fail("epoll_ctl");
    }
}

static void write_out(Client *c) {
    while (c->out < c->out_end) {
        ssize_t n = write(c->fd, text + c->out, c->out_end - c->out);
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) fail("write");
        c->out += (size_t)n;
    }
    int wants = c->out < c->out_end;
    if (wants != c->wants_out) {
        struct epoll_event event = {.events = EPOLLIN | (wants ? EPOLLOUT : 0u), .data.ptr = c};
        if (epoll_ctl(queue, EPOLL_CTL_MOD, c->fd, &event)) fail("epoll_ctl");
        c->wants_out = wants;
    }
}

/* Send up to so many of the client's next commands: those that lie together in the file. */
static long send_some(Client *c, long most) {
    if (c->at == c->end) c->at = c->first;
    long count = c->end - c->at;
    if (count > most) count = most;
    if (count > c->quota - c->sent) count = c->quota - c->sent;
    if (count <= 0) return 0;
    c->out = starts[c->at];
    c->at += count;
    c->out_end = starts[c->at];
    c->sent += count;
    write_out(c);
    return count;
}

static void send_batch(Client *c) {
    c->since = now();
    c->batch_left = send_some(c, pipeline);
}

/* Send what is due by now; with a full socket it waits, and its time goes on. */
static void send_due(Client *c, long index, double at) {
    long due = (long)((at - began) * rate);
    while (c->out == c->out_end && c->sent < c->quota && c->sent * clients + index <= due) send_some(c, 1);
}

static void replied(Client *c, double at) {
    double since = rate > 0 ? began + (double)(c->done * clients + (c - all)) / rate : c->since;
    times[replies++] = at - since;
    c->done++;
    c->need = 1;
    if (rate == 0 && --c->batch_left == 0) send_batch(c);
}

static void value_ended(Client *c, double at) {
    if (--c->need == 0) replied(c, at);
}

static void parse_line(Client *c, double at) {
    long count = strtol(c->line + 1, NULL, 10);
    switch (c->line[0]) {
    case '$':
        if (count >= 0) {
            c->skip = count + 2;
            return;
        }
        break;
    case '*':
        if (count > 0) c->need += count;
        break;
    case '-':
        if (!errors++) memcpy(first_error, c->line, sizeof first_error);
        break;
    default:
        break;
    }
    value_ended(c, at);
}

static void parse(Client *c, const char *p, const char *end, double at) {
    while (p < end) {
        if (c->skip) {
            long take = end - p < c->skip ? end - p : c->skip;
            p += take;
            c->skip -= take;
            if (!c->skip) value_ended(c, at);
            continue;
        }
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        const char *to = stop ? stop : end;
        for (; p < to; p++)
            if (c->kept < (int)sizeof c->line - 1) c->line[c->kept++] = *p;
        if (!stop) return;
        p = stop + 1;
        c->line[c->kept] = 0;
        if (c->kept && c->line[c->kept - 1] == '\r') c->line[c->kept - 1] = 0;
        c->kept = 0;
        parse_line(c, at);
    }
}

static void receive(Client *c) {
    static char buffer[1 << 18];
    ssize_t n = read(c->fd, buffer, sizeof buffer);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) fail("the server closed a connection");
    parse(c, buffer, buffer + n, now());
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double at_part(double part) {
    if (!replies) return 0;
    long index = (long)((double)replies * part);
    return times[index < replies ? index : replies - 1] * 1e6;
}

static void run(double seconds) {
    struct epoll_event events[512];
    began = now();
    for (long i = 0; rate == 0 && i < clients; i++) send_batch(&all[i]);
    while (replies < total && now() < began + seconds) {
        int count = epoll_wait(queue, events, 512, rate > 0 ? 0 : 100);
        for (int i = 0; i < count; i++) {
            Client *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) write_out(c);
            if (events[i].events & ~(uint32_t)EPOLLOUT) receive(c);
        }
        if (rate > 0) {
            double at = now();
            for (long i = 0; i < clients; i++) send_due(&all[i], i, at);
            if (!count) usleep(50); /* a spinning generator would take the server's processor */
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 8) {
        fprintf(stderr, "usage: load PORT CLIENTS PIPELINE RATE TOTAL SECONDS FILE\n");
        return 2;
    }
    clients = atol(argv[2]);
    pipeline = atol(argv[3]);
    rate = atof(argv[4]);
    total = atol(argv[5]);
    load_file(argv[7]);
    all = room((size_t)clients, sizeof *all);
    times = room((size_t)total, sizeof *times);
    queue = epoll_create1(0);
    connect_all(atoi(argv[1]));
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF) return 0;
    run(atof(argv[6]));
    double took = now() - began;
    qsort(times, (size_t)replies, sizeof *times, by_size);
    for (char *p = first_error; *p; p++)
        if (*p == '"' || *p == '\\') *p = '\'';
    printf("{\"replies\": %ld, \"seconds\": %.6f, \"errors\": %ld, \"first_error\": \"%s\", \"p50\": %.1f, "
           "\"p99\": %.1f, \"p999\": %.1f, \"max\": %.1f}\n",
           replies, took, errors, first_error, at_part(0.5), at_part(0.99), at_part(0.999), at_part(1));
    fflush(stdout);
    while (getchar() != EOF) {
    }
    return 0;
}
