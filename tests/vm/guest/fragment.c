// Leaves no free block of 2 MiB, and none that compaction could make: takes nearly all memory in
// base pages, pins one page of each block in pipes, frees the others, and takes the blocks that are
// left whole. Says `ready PINNED TAKEN`, and stays until its standard input ends.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096UL
#define HUGE_PAGE (2UL << 20)
// Pages in a pipe: as many as root can request without changing a setting.
#define PIPE_PAGES 256
#define MOST_BLOCKS 65536
// Blocks that are left, and refusals in a row after which there are none.
#define MOST_LEFT 512
#define LAST_TRIES 8

static long meminfo(const char *format) {
    FILE *file = fopen("/proc/meminfo", "r");
    char line[200];
    long kib = 0;
    while (fgets(line, sizeof line, file)) sscanf(line, format, &kib);
    fclose(file);
    return kib;
}

static uint64_t entry(int pagemap, void *address) {
    uint64_t read = 0;
    if (pread(pagemap, &read, 8, (uintptr_t)address / PAGE * 8) != 8) return 0;
    return read >> 63 ? read & ((1UL << 55) - 1) : 0;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

int main(void) {
    static char seen[MOST_BLOCKS];
    long least = 0, pinned = 0, taken = 0;
    int pagemap = open("/proc/self/pagemap", O_RDONLY), ends[2] = {-1, -1};
    FILE *file = fopen("/proc/sys/vm/min_free_kbytes", "r");
    if (pagemap < 0 || !file || fscanf(file, "%ld", &least) != 1) fail("fragment");
    struct rlimit files = {4096, 4096};
    setrlimit(RLIMIT_NOFILE, &files);
    size_t size = (size_t)meminfo("MemTotal: %ld") << 10;
    char *all = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED || madvise(all, size, MADV_NOHUGEPAGE)) fail("mmap");
    size_t used = 0;
    for (; used + (1 << 20) <= size && meminfo("MemFree: %ld") > least + least / 2 + 8192; used += 1 << 20)
        for (size_t at = used; at < used + (1 << 20); at += PAGE) all[at] = 1;
    for (size_t at = 0; at < used; at += PAGE) {
        uint64_t block = entry(pagemap, all + at) / 512;
        if (!block || block >= MOST_BLOCKS || seen[block]) continue;
        seen[block] = 1;
        if (pinned % PIPE_PAGES == 0 && (pipe(ends) || fcntl(ends[1], F_SETPIPE_SZ, PIPE_PAGES * PAGE) < 0)) fail("pipe");
        struct iovec page = {all + at, PAGE};
        if (vmsplice(ends[1], &page, 1, SPLICE_F_NONBLOCK) != (ssize_t)PAGE) fail("vmsplice");
        pinned++;
    }
    munmap(all, size);
    for (int left = 0, refused = 0; left < MOST_LEFT && refused < LAST_TRIES; left++) {
        char *place = mmap(NULL, 2 * HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        char *block = (char *)(((uintptr_t)place + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
        if (place == MAP_FAILED || madvise(block, HUGE_PAGE, MADV_HUGEPAGE)) fail("madvise");
        block[0] = 1;
        // Only a huge page brings the second base page with it.
        if (entry(pagemap, block + PAGE)) {
            taken++;
            refused = 0;
        } else {
            munmap(place, 2 * HUGE_PAGE);
            refused++;
        }
    }
    printf("ready %ld %ld\n", pinned, taken);
    fflush(stdout);
    while (getchar() != EOF) {}
    return 0;
}
