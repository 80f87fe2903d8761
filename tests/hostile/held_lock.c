/* Holds its own mmap lock without end, as any user can: a test of the deadlines of megapage.
 *
 * In a new user namespace it mounts a FUSE file system with one file, which a child serves by the bare protocol of
 * /dev/fuse (fuse(4), linux/fuse.h). It maps a page of that file shared, writes to it, and starts its writeback, which the
 * child never answers. A thread writes to the page again: it waits within the fault (fuse_page_mkwrite in fs/fuse/file.c),
 * and holds the lock of the mapping or of all memory. Then the process maps anonymous memory over the page: that call waits
 * while it holds the mmap lock, or waits for it ahead of all later callers. On Linux 6.16 and later it also waits for the
 * writeback (fuse_vma_close). From then on every caller that takes the process's mmap lock waits until the child ends.
 *
 * Compile with -pthread.
 *
 * usage: held-lock [MIB] [DELAY_MS]
 *   MIB       anonymous memory to touch before, so that the process is large enough to be watched (default 0)
 *   DELAY_MS  time to wait before taking the lock (default 0)
 *
 * Prints "held PID" just before it takes the lock. Ends, and so releases the lock, when its standard input ends.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FILE_NODE = 2, PAGE = 4096 };

static void fail(const char *what) {
    fprintf(stderr, "held-lock: %s: %s\n", what, strerror(errno));
    exit(2);
}

static void write_text(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, text, strlen(text)) != (ssize_t)strlen(text)) fail(path);
    close(file);
}

static void answer(int device, unsigned long unique, int error, const void *body, size_t length) {
    struct { struct fuse_out_header header; char body[512]; } out = {0};
    out.header.len = sizeof out.header + length;
    out.header.error = error;
    out.header.unique = unique;
    if (length) memcpy(out.body, body, length);
    /* ENOENT: the process that made the request has gone meanwhile. */
    if (write(device, &out, out.header.len) < 0 && errno != ENOENT) fail("answer");
}

static struct fuse_attr attributes(unsigned long node) {
    struct fuse_attr attr = {.ino = node, .nlink = 1, .blksize = PAGE};
    attr.mode = node == FILE_NODE ? S_IFREG | 0644 : S_IFDIR | 0755;
    attr.size = node == FILE_NODE ? PAGE : 0;
    return attr;
}

/* Answers every request except writes. */
static void serve(int device) {
    static char buffer[(1 << 20) + PAGE];
    static const char zeros[PAGE];
    for (;;) {
        ssize_t got = read(device, buffer, sizeof buffer);
        if (got < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN)) continue;
        if (got < (ssize_t)sizeof(struct fuse_in_header)) _exit(0);
        struct fuse_in_header *in = (void *)buffer;
        switch (in->opcode) {
        case FUSE_INIT: {
            struct fuse_init_out out = {.major = 7, .minor = 31, .max_readahead = PAGE, .max_write = PAGE,
                                        .flags = FUSE_WRITEBACK_CACHE, .max_background = 4,
                                        .congestion_threshold = 4, .time_gran = 1};
            answer(device, in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_LOOKUP: {
            struct fuse_entry_out out = {.nodeid = FILE_NODE, .entry_valid = 1000, .attr_valid = 1000};
            out.attr = attributes(FILE_NODE);
            answer(device, in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_GETATTR: {
            struct fuse_attr_out out = {.attr_valid = 1000, .attr = attributes(in->nodeid)};
            answer(device, in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_OPEN:
        case FUSE_OPENDIR: {
            struct fuse_open_out out = {.fh = 1, .open_flags = FOPEN_KEEP_CACHE};
            answer(device, in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_READ: {
            struct { struct fuse_out_header header; char body[PAGE]; } out;
            out.header = (struct fuse_out_header){.len = sizeof out, .unique = in->unique};
            memcpy(out.body, zeros, PAGE);
            if (write(device, &out, sizeof out) < 0) fail("read");
            break;
        }
        case FUSE_WRITE:
        case FUSE_FORGET:
        case FUSE_BATCH_FORGET:
            break;
        default:
            answer(device, in->unique, -ENOSYS, NULL, 0);
        }
    }
}

/* Writes to a page that is being written back. */
static void *write_again(void *page) {
    *(volatile char *)page = 2;
    return NULL;
}

int main(int count, char **arguments) {
    unsigned long mib = count > 1 ? strtoul(arguments[1], NULL, 10) : 0;
    unsigned delay = count > 2 ? strtoul(arguments[2], NULL, 10) : 0;
    char text[128];
    unsigned uid = getuid(), gid = getgid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS)) fail("unshare");
    write_text("/proc/self/setgroups", "deny");
    snprintf(text, sizeof text, "0 %u 1", uid);
    write_text("/proc/self/uid_map", text);
    snprintf(text, sizeof text, "0 %u 1", gid);
    write_text("/proc/self/gid_map", text);
    /* /dev/fuse must stay visible in the new namespace. */
    int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device < 0) fail("/dev/fuse");
    snprintf(text, sizeof text, "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
    if (mount("held-lock", "/mnt", "fuse", MS_NOSUID | MS_NODEV, text)) fail("mount");
    pid_t server = fork();
    if (server < 0) fail("fork");
    if (server == 0) {
        prctl(PR_SET_NAME, "held-lock-fuse");
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(device);
    }
    close(device);
    char *large = mmap(NULL, (mib << 20) + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (large == MAP_FAILED) fail("mmap");
    memset(large, 1, (mib << 20) + PAGE);
    /* The watcher must not share our memory. It ends the server, and so the wait, when the input ends. */
    pid_t watcher = fork();
    if (watcher < 0) fail("fork");
    if (watcher == 0) {
        prctl(PR_SET_NAME, "held-lock-end");
        munmap(large, (mib << 20) + PAGE);
        char byte;
        while (read(0, &byte, 1) > 0) {
        }
        kill(server, SIGKILL);
        kill(getppid(), SIGKILL);
        _exit(0);
    }
    int file = open("/mnt/file", O_RDWR | O_CLOEXEC);
    if (file < 0) fail("/mnt/file");
    char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) fail("mmap of the file");
    page[0] = 1;
    pthread_t writer;
    if (sync_file_range(file, 0, PAGE, SYNC_FILE_RANGE_WRITE)) fail("sync_file_range");
    if ((errno = pthread_create(&writer, NULL, write_again, page))) fail("pthread_create");
    usleep(200000);
    printf("held %d\n", getpid());
    fflush(stdout);
    usleep(delay * 1000);
    mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    /* Not reached before the server has ended. */
    for (;;) pause();
}
