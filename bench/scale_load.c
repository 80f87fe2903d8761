/* Memory, mappings and idle processes for bench/scale.py.
 *
 * usage: scale_load memory BYTES        touches memory under the machine's THP setting
 *        scale_load mappings COUNT      touches mappings of 64 KiB each, which the kernel cannot
 *                                       merge (their permissions alternate)
 *        scale_load idle FILE BYTES     maps and reads shared memory (FILE is a descriptor)
 *        scale_load loop BYTES SECONDS  touches BYTES on base pages, then maps and unmaps 4 KiB in
 *                                       a loop; from half time on it also fills a new mapping of
 *                                       BYTES / 4
 *
 * Prints "ready"; `loop` prints its times as JSON instead, at its end. Then waits for the end of
 * standard input.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 64 << 10, AT_ONCE = 1 << 20, MOST_TIMES = 1 << 22 };

static void check(int done, const char *what) {
    if (!done) {
        perror(what);
        exit(2);
    }
}

static void *map(size_t size, int file) {
    int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *start = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, file, 0);
    check(start != MAP_FAILED, "mmap");
    return start;
}

static void touch(volatile char *start, size_t size) {
    for (size_t at = 0; at < size; at += 4096) start[at] = 1;
}

static char *map_on_base_pages(size_t size) {
    char *start = map(size, -1);
    madvise(start, size, MADV_NOHUGEPAGE);
    return start;
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

/* Returns the number of times that this thread has slept. */
static long sleeps(void) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

static int ascending(const void *one, const void *other) {
    uint32_t left = *(const uint32_t *)one, right = *(const uint32_t *)other;
    return (left > right) - (left < right);
}

/* Times pairs of mmap and munmap. A pair counts as a wait for the mmap lock if the thread slept in
 * it (a voluntary context switch); preemption does not count. From half time on, fills a new
 * mapping of `more` bytes. */
static void loop(size_t more, double seconds) {
    uint32_t *times = map(MOST_TIMES * sizeof *times, -1);
    touch((char *)times, MOST_TIMES * sizeof *times);
    uint64_t begin = now(), half = (uint64_t)(seconds * 5e8), end = begin + 2 * half, longest = 0;
    char *new_memory = NULL;
    size_t filled = 0;
    long count = 0, waits = 0, slept = sleeps();
    while (now() < end && count < MOST_TIMES) {
        struct timespec pause = {0, 20000};
        nanosleep(&pause, NULL);
        if (filled < more && now() > begin + half) {
            if (!new_memory) new_memory = map_on_base_pages(more);
            size_t piece = more - filled < AT_ONCE ? more - filled : AT_ONCE;
            touch(new_memory + filled, piece);
            filled += piece;
        }
        slept = sleeps();
        uint64_t start = now();
        check(munmap(map(4096, -1), 4096) == 0, "munmap");
        uint64_t took = now() - start;
        times[count++] = took > UINT32_MAX ? UINT32_MAX : took;
        if (sleeps() > slept) {
            waits++;
            longest = took > longest ? took : longest;
        }
    }
    qsort(times, count, sizeof *times, ascending);
    printf("{\"pid\": %d, \"pairs\": %ld, \"filled_bytes\": %zu, \"p999_ms\": %.4f, \"longest_ms\": %.4f, \"waits\": %ld, "
           "\"longest_wait_ms\": %.4f}\n",
           getpid(), count, filled, times[count ? count * 999 / 1000 : 0] / 1e6, times[count ? count - 1 : 0] / 1e6, waits,
           longest / 1e6);
}

int main(int count, char **arguments) {
    check(count >= 3, "usage: scale_load memory|mappings|idle|loop NUMBER [NUMBER]");
    const char *what = arguments[1];
    size_t number = strtoull(arguments[2], NULL, 10);
    /* The daemon's `processes.include` selects the load by this name. */
    prctl(PR_SET_NAME, "scale_load");
    prctl(PR_SET_PDEATHSIG, 9);
    if (strcmp(what, "memory") == 0) {
        touch(map(number, -1), number);
    } else if (strcmp(what, "mappings") == 0) {
        char *start = map(number * PIECE, -1);
        for (size_t at = 0; at < number; at++) {
            touch(start + at * PIECE, PIECE);
            if (at % 2) check(mprotect(start + at * PIECE, PIECE, PROT_READ) == 0, "mprotect");
        }
    } else if (strcmp(what, "idle") == 0) {
        size_t size = strtoull(arguments[3], NULL, 10);
        volatile char *start = map(size, number);
        for (size_t at = 0; at < size; at += 4096) (void)start[at];
    } else if (strcmp(what, "loop") == 0) {
        touch(map_on_base_pages(number), number);
        loop(number / 4, strtod(arguments[3], NULL));
    }
    if (strcmp(what, "loop") != 0) puts("ready");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {}
    return 0;
}
