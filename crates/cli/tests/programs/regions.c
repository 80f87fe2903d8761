/* A program whose memory is laid out region by region, for the tests of the policies:
   regions MODE COUNTxPRESENT[hHOT]...

   Maps regions of 2 MiB, aligned, one after the other. Writes to the first PRESENT base pages of
   each. Reads HOT of these, scattered, again and again: in MODE "rest" 500 times a second; in
   "work" every 50 ms, with 10 ms of arithmetic after it; in "walk" all of them, in a random order
   without a pause. COUNTxH is huge from the start. Prints the address of the first region. At a
   number on standard input it fills that region, and prints "filled". At "-" and a number it gives
   one page of that region back and touches it again, which splits a huge page, and prints "split".
   Ends with its standard input. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 512, MOST = 64 };
static const size_t HUGE = 2 << 20;

static char *base;
static volatile char *hot[MOST * PAGES];
static size_t hots;
static volatile uint64_t sink;

static void fill(size_t region, size_t pages) {
    for (size_t page = 0; page < pages; page++) base[region * HUGE + page * PAGE] = 1;
}

/* Waits so many milliseconds for a line, and obeys it. Ends the program at the end of its input. */
static void listen_for(int milliseconds) {
    struct pollfd in = {.fd = 0, .events = POLLIN};
    if (poll(&in, 1, milliseconds) < 1) return;
    char line[16];
    ssize_t length = read(0, line, sizeof line - 1);
    if (length <= 0) _exit(0);
    line[length] = 0;
    int splits = line[0] == '-';
    size_t region = strtoul(line + splits, 0, 10);
    if (splits && madvise(base + region * HUGE, PAGE, MADV_DONTNEED)) _exit(6);
    fill(region, PAGES);
    puts(splits ? "split" : "filled");
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int count, char **word) {
    if (count < 3) return 2;
    setlinebuf(stdout);
    /* No other mapping may lie in the space around the regions, or grow into it. */
    char *all = mmap(0, (MOST + 2) * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return 3;
    base = (char *)(((size_t)all + HUGE) / HUGE * HUGE);
    size_t regions = 0, first = 0;
    for (int at = 2; at < count; at++) regions += strtoul(word[at], 0, 10);
    if (regions > MOST || mprotect(base, regions * HUGE, PROT_READ | PROT_WRITE)) return 4;
    for (int at = 2; at < count; at++) {
        char *rest;
        size_t many = strtoul(word[at], &rest, 10);
        int huge = rest[1] == 'H';
        size_t present = huge ? PAGES : strtoul(rest + 1, &rest, 10), warm = *rest == 'h' ? strtoul(rest + 1, 0, 10) : 0;
        if (huge) present = PAGES, warm = 0;
        for (size_t region = first; region < first + many; region++) {
            fill(region, present);
            /* MADV_COLLAPSE: huge at any setting of the machine. */
            for (int try = 0; huge && madvise(base + region * HUGE, HUGE, 25); try++) {
                if (try == 1000) return 5;
                usleep(1000);
            }
            for (size_t page = 0; page < present; page++)
                if (page * 325 % PAGES < warm) hot[hots++] = base + region * HUGE + page * PAGE;
        }
        first += many;
    }
    printf("%llx\n", (unsigned long long)(size_t)base);
    uint64_t state = 88172645463325252u;
    if (!strcmp(word[1], "walk")) {
        /* Reads a power of two of pages, which are all hot. Each page has another cache line, or
           few sets of the caches would hold them all. No read waits for another, so that only
           translation slows them. */
        int bits = 63 - __builtin_clzll(hots);
        for (;;) {
            uint64_t sum = 0;
            for (int step = 0; step < 1 << 16; step++) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                uint64_t page = state >> (64 - bits);
                sum += ((volatile char *)base)[page * PAGE + page * 64 % PAGE];
            }
            sink += sum;
            listen_for(0);
        }
    }
    for (;;) {
        for (size_t at = 0; at < hots; at++) sink += *hot[at];
        int works = !strcmp(word[1], "work");
        for (double until = works ? now() + 0.01 : 0; now() < until;)
            for (int step = 0; step < 10000; step++) sink = sink * 3 + 1;
        listen_for(works ? 40 : 2);
    }
}
