/* Memory that is written, read, forked, locked, mapped and unmapped in every way at once, each byte
 * of it checked. The program does not know the process that acts on it from outside. About 330 MiB.
 * usage: workload DIRECTORY
 * It ends on SIGTERM, or when its parent ends: "OK, CHECKS checks" and status 0. If a byte is not
 * the one that was written there, it ends at once: "CORRUPT: ..." and status 1. If the test itself
 * cannot go on: "FAILED: ..." and status 2. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, HUGE = 2 << 20, WORDS = PAGE / 8 };

static atomic_bool stop;
static atomic_ulong checks;
static char **arguments;

static void end(int status, const char *format, ...) {
    char text[300];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    /* One write, so that lines of several threads and processes do not mix. */
    if (write(STDOUT_FILENO, text, length) != length) status = 3;
    _exit(status);
}

static void corrupt(const char *who, const void *at, uint64_t found, uint64_t expected) {
    end(1, "CORRUPT: %s: process %d: %p holds %#lx, not %#lx\n", who, getpid(), at, found, expected);
}

static void failed(const char *what) { end(2, "FAILED: %s: %s\n", what, strerror(errno)); }

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

/* Each thread has its own. */
static _Thread_local uint64_t seed;
static uint64_t chance(uint64_t below) { return mix(++seed) % below; }

static void pause_for(long microseconds) {
    struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};
    nanosleep(&time, NULL);
}

/* Returns untouched anonymous memory, aligned to 2 MiB. */
static uint64_t *memory(size_t bytes) {
    char *p = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) failed("mmap");
    return (uint64_t *)(((uintptr_t)p + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
}

static void fill(uint64_t *page, uint64_t tag) {
    for (int i = 0; i < WORDS; i++) page[i] = tag ? mix(tag + i) : 0;
}

static void check(const char *who, const uint64_t *page, uint64_t tag) {
    for (int i = 0; i < WORDS; i++) {
        uint64_t expected = tag ? mix(tag + i) : 0;
        if (page[i] != expected) corrupt(who, page + i, page[i], expected);
    }
    atomic_fetch_add_explicit(&checks, 1, memory_order_relaxed);
}

/* Pages of changing patterns: each write follows a check of what was there. */
static void *patterns(void *unused) {
    enum { PAGES = 64 << 8 };
    static uint64_t tags[PAGES];
    uint64_t *area = memory((size_t)PAGES * PAGE);
    seed = 1;
    for (size_t p = 0; p < PAGES; p++) fill(area + p * WORDS, tags[p] = mix(p) | 1);
    while (!stop) {
        size_t p = chance(PAGES);
        check("patterns", area + p * WORDS, tags[p]);
        fill(area + p * WORDS, tags[p] = mix(seed) | 1);
        if (chance(64) == 0) pause_for(100);
    }
    for (size_t p = 0; p < PAGES; p++) check("patterns, at the end", area + p * WORDS, tags[p]);
    return unused;
}

/* Pages that turn to zeros and back: what a split may take away, and a write brings back. */
static void *flippers(void *unused) {
    enum { PAGES = 64 << 8 };
    static uint64_t tags[PAGES];
    uint64_t *area = memory((size_t)PAGES * PAGE);
    seed = 2;
    while (!stop) {
        size_t p = chance(PAGES);
        check("flippers", area + p * WORDS, tags[p]);
        if (tags[p]) {
            /* Back to zeros, from either end, by words or at once. */
            if (chance(2)) memset(area + p * WORDS, 0, PAGE);
            else for (int i = WORDS - 1; i >= 0; i--) ((volatile uint64_t *)area)[p * WORDS + i] = 0;
            tags[p] = 0;
        } else if (chance(4) != 0) {
            fill(area + p * WORDS, tags[p] = mix(seed) | 1);
        }
        if (chance(64) == 0) pause_for(100);
    }
    for (size_t p = 0; p < PAGES; p++) check("flippers, at the end", area + p * WORDS, tags[p]);
    return unused;
}

/* Counters without locks, one in a page: two threads add, nothing may be lost. */
enum { COUNTERS = 32 << 8 };
static atomic_ulong *counters;
static uint64_t added[2][COUNTERS];
static void *count(void *which) {
    uint64_t *own = added[(intptr_t)which];
    seed = 3 + (intptr_t)which;
    for (uint64_t n = 0; !stop; n++) {
        size_t c = chance(COUNTERS), by = 1 + chance(7);
        atomic_fetch_add(counters + c * WORDS, by);
        own[c] += by;
        if (n % 4096 == 0) pause_for(500);
    }
    return NULL;
}

/* Written to a file and read back past the page cache: the device reaches the pages themselves. */
static void *direct(void *directory) {
    enum { PAGES = 16 << 8, MOST = 64 };
    char path[4096];
    snprintf(path, sizeof path, "%s/direct", (char *)directory);
    int file = open(path, O_RDWR | O_CREAT | O_DIRECT, 0600);
    if (file < 0 && errno == EINVAL) {
        printf("no O_DIRECT on this file system\n");
        fflush(stdout);
        return NULL;
    }
    if (file < 0) failed(path);
    uint64_t *area = memory((size_t)PAGES * PAGE);
    seed = 5;
    while (!stop) {
        size_t pages = 1 + chance(MOST), from = chance(PAGES / 2 - MOST), to = PAGES / 2 + from;
        uint64_t tag = mix(seed) | 1;
        for (size_t p = 0; p < pages; p++) {
            fill(area + (from + p) * WORDS, tag + p * WORDS);
            fill(area + (to + p) * WORDS, 0);
        }
        ssize_t length = pages * PAGE;
        if (pwrite(file, area + from * WORDS, length, 0) != length) failed("pwrite");
        if (pread(file, area + to * WORDS, length, 0) != length) failed("pread");
        for (size_t p = 0; p < pages; p++) {
            check("written directly", area + (from + p) * WORDS, tag + p * WORDS);
            check("read directly", area + (to + p) * WORDS, tag + p * WORDS);
        }
        pause_for(1000);
    }
    close(file);
    return NULL;
}

/* Locked and unlocked again: locked pages are not to be split, and stay right all the same. */
static void *locks(void *unused) {
    enum { PAGES = 16 << 8 };
    uint64_t *area = memory((size_t)PAGES * PAGE);
    seed = 6;
    for (size_t p = 0; p < PAGES; p++) fill(area + p * WORDS, p % 3 ? p + 1 : 0);
    while (!stop) {
        size_t pages = 1 + chance(1500), p = chance(PAGES - pages);
        if (mlock(area + p * WORDS, pages * PAGE) != 0) failed("mlock");
        pause_for(chance(3000));
        for (size_t i = p; i < p + pages; i += 1 + chance(64)) check("locks", area + i * WORDS, i % 3 ? i + 1 : 0);
        if (munlock(area + p * WORDS, pages * PAGE) != 0) failed("munlock");
        pause_for(chance(3000));
    }
    return unused;
}

/* Snapshots: a child checks that memory is as it was at the fork, while the parent writes on. */
static void *snapshots(void *unused) {
    enum { PAGES = 24 << 8 };
    uint64_t *area = memory((size_t)PAGES * PAGE), round = 0;
    seed = 7;
    for (size_t p = 0; p < PAGES; p++) fill(area + p * WORDS, p % 4 ? p + 1 : 0);
    while (!stop) {
        pid_t child = fork();
        if (child < 0) failed("fork");
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (size_t p = 0; p < PAGES; p++) check("snapshots, child", area + p * WORDS, p % 4 ? p + 1 + round : 0);
            _exit(0);
        }
        uint64_t before = round;
        round = mix(seed++) >> 8;
        for (size_t p = 0; p < PAGES; p++) {
            check("snapshots, parent", area + p * WORDS, p % 4 ? p + 1 + before : 0);
            fill(area + p * WORDS, p % 4 ? p + 1 + round : 0);
        }
        int status;
        if (waitpid(child, &status, 0) != child) failed("waitpid");
        /* The child has said why. */
        if (status != 0) end(WIFEXITED(status) ? WEXITSTATUS(status) : 1, "snapshots: child ended with %#x\n", status);
        pause_for(100000);
    }
    return unused;
}

/* Mappings that come and go, some moved in between. */
static void *mappings(void *which) {
    seed = 8 + (intptr_t)which;
    while (!stop) {
        size_t pages = (1 + chance(8)) * 512, step = 1 + chance(16);
        uint64_t *area = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (area == MAP_FAILED) failed("mmap");
        uint64_t tag = mix(seed) | 1;
        for (size_t p = 0; p < pages; p += step) fill(area + p * WORDS, tag + p);
        pause_for(chance(20000));
        if (chance(3) == 0) {
            uint64_t *moved = mremap(area, pages * PAGE, pages * PAGE * 2, MREMAP_MAYMOVE);
            if (moved == MAP_FAILED) failed("mremap");
            munmap(moved + pages * WORDS, pages * PAGE);
            area = moved;
        }
        for (size_t p = 0; p < pages; p++) check("mappings", area + p * WORDS, p % step ? 0 : tag + p);
        /* In two parts: a huge page across the seam must be split. */
        size_t seam = 1 + chance(pages - 1);
        munmap(area + seam * WORDS, (pages - seam) * PAGE);
        check("mappings, what is left", area, tag);
        munmap(area, seam * PAGE);
    }
    return NULL;
}

/* Sends memory to swap, where there is any, and reads it back. */
static void *swapper(void *unused) {
    enum { PAGES = 32 << 8 };
    uint64_t *area = memory((size_t)PAGES * PAGE);
    seed = 10;
    for (size_t p = 0; p < PAGES; p++) fill(area + p * WORDS, p % 5 ? p + 1 : 0);
    while (!stop) {
        size_t pages = 1 + chance(1024), from = chance(PAGES - pages);
        /* EINVAL, EAGAIN: not now; what counts is the content. */
        (void)madvise(area + from * WORDS, pages * PAGE, MADV_PAGEOUT);
        pause_for(chance(5000));
        for (size_t n = 0; n < 64; n++) {
            size_t p = chance(PAGES);
            check("swapped", area + p * WORDS, p % 5 ? p + 1 : 0);
        }
    }
    return unused;
}

/* A process that lives for a moment: then it ends, dies, or becomes another program. */
static void mortal(uint64_t number) {
    enum { PAGES = 12 << 8 };
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    seed = mix(number);
    uint64_t *area = memory((size_t)PAGES * PAGE);
    for (size_t p = 0; p < PAGES; p++) fill(area + p * WORDS, p % 2 ? number + p : 0);
    for (uint64_t left = 5 + chance(60); left > 0; left--) {
        for (size_t n = 0; n < 200; n++) {
            size_t p = chance(PAGES);
            check("mortal", area + p * WORDS, p % 2 ? number + p : 0);
        }
        pause_for(2000);
    }
    char text[32];
    switch (chance(3)) {
    case 0: _exit(0);
    case 1: kill(getpid(), SIGKILL); break;
    default:
        snprintf(text, sizeof text, "%lu", number + 1000000);
        execl("/proc/self/exe", arguments[0], "--mortal", text, NULL);
        failed("exec");
    }
}

static void *fill_tracker(void *unused) {
    uint64_t number = 1;
    pid_t children[2] = {0, 0};
    while (!stop) {
        for (int i = 0; i < 2; i++) {
            int status = 0;
            if (children[i] == 0) {
                if ((children[i] = fork()) < 0) failed("fork");
                if (children[i] == 0) {
                    char text[32];
                    snprintf(text, sizeof text, "%lu", number * 10);
                    execl("/proc/self/exe", arguments[0], "--mortal", text, NULL);
                    failed("exec");
                }
                number++;
            } else if (waitpid(children[i], &status, WNOHANG) == children[i]) {
                children[i] = 0;
                int fine = status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
                if (!fine) end(WIFEXITED(status) ? WEXITSTATUS(status) : 1, "fill_tracker: child ended with %#x\n", status);
            }
        }
        pause_for(5000);
    }
    for (int i = 0; i < 2; i++) {
        if (children[i] == 0) continue;
        kill(children[i], SIGKILL);
        waitpid(children[i], NULL, 0);
    }
    return unused;
}

/* A thread that tells its number. */
struct start {
    void *(*run)(void *);
    void *argument;
    _Atomic pid_t *identifier;
};
static _Atomic pid_t identifiers[32];
static void *run(void *start) {
    struct start *own = start;
    *own->identifier = gettid();
    return own->run(own->argument);
}

int main(int argc, char **argv) {
    arguments = argv;
    if (argc == 3 && strcmp(argv[1], "--mortal") == 0) mortal(strtoul(argv[2], NULL, 10));
    if (argc != 2) return 2;
    /* The process that started us may be killed. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* The acting process is to come first: it is the one under test. */
    if (nice(15) == -1) failed("nice");
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    counters = (atomic_ulong *)memory((size_t)COUNTERS * PAGE);
    struct { void *(*run)(void *); void *argument; } work[] = {
        {patterns, NULL}, {flippers, NULL}, {count, (void *)0}, {count, (void *)1}, {direct, argv[1]},
        {locks, NULL}, {snapshots, NULL}, {mappings, (void *)0}, {mappings, (void *)1}, {swapper, NULL},
        {fill_tracker, NULL},
    };
    enum { THREADS = sizeof work / sizeof *work };
    pthread_t threads[THREADS];
    struct start starts[THREADS];
    for (int t = 0; t < THREADS; t++)
        if (starts[t] = (struct start){work[t].run, work[t].argument, identifiers + t},
            pthread_create(threads + t, NULL, run, starts + t) != 0)
            failed("pthread_create");
    printf("started\n");
    fflush(stdout);
    int number;
    sigwait(&signals, &number);
    stop = 1;
    /* The rest is to be done soon, even on a busy machine. Each thread has its own priority. */
    for (int t = 0; t < THREADS; t++) setpriority(PRIO_PROCESS, identifiers[t], 0);
    for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
    for (size_t c = 0; c < COUNTERS; c++) {
        uint64_t expected = added[0][c] + added[1][c], found = counters[c * WORDS];
        if (found != expected) corrupt("counters", counters + c * WORDS, found, expected);
    }
    end(0, "OK, %lu checks\n", atomic_load(&checks) + COUNTERS);
}
