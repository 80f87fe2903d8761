/* Holds memory and checks it: each word is computed from its place and its generation. Prints `ok WORDS`, or `bad ...` with
 * status 1.
 *
 *   holder [--mib N] [--block BYTES] [--mmap] [--advise] [--threads N] [--forks N] [--smaps FILE] [--linger MS]
 *          [--interactive] [--busy | --touch] [--rounds N]
 *
 * Blocks come from malloc, or with --mmap from one mapping (--advise: with MADV_HUGEPAGE). The threads divide the memory
 * among them. Each of --forks children checks the memory that it inherited, rewrites its copy and checks that. --smaps copies
 * /proc/self/smaps, without malloc: to FILE.before when all memory is present, and to FILE after the process stood still for
 * --linger, so that a sampler sees it. --interactive prints `ready PID` and obeys lines: check, write (a new generation), half
 * (frees every second block), quit. Meanwhile --busy rewrites and checks all the time, and --touch reads a word of each base
 * page every 20 ms.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct share {
    uint64_t **blocks;
    size_t count, words, number;
    uint64_t generation;
};

static size_t mib = 32, block = 64 << 10, threads = 1, forks = 0, linger = 0, rounds = 1;
static int use_mmap, advise, interactive, busy, touch;
static const char *smaps;
static atomic_ulong checked, wrong;
static atomic_int stop;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static uint64_t word(const struct share *share, size_t at, size_t index) {
    uint64_t value = share->generation * 0x9e3779b97f4a7c15u + (share->number << 56) + (at << 28) + index;
    value ^= value >> 29;
    value *= 0xbf58476d1ce4e5b9u;
    return value ^ value >> 32;
}

static void fill(struct share *share) {
    for (size_t at = 0; at < share->count; at++)
        for (size_t index = 0; share->blocks[at] && index < share->words; index++)
            share->blocks[at][index] = word(share, at, index);
}

static size_t check(const struct share *share) {
    size_t bad = 0, good = 0;
    for (size_t at = 0; at < share->count; at++)
        for (size_t index = 0; share->blocks[at] && index < share->words; index++) {
            if (share->blocks[at][index] == word(share, at, index)) {
                good++;
            } else if (bad++ == 0) {
                printf("bad: share %zu block %zu word %zu at %p is %llx\n", share->number, at, index,
                       (void *)&share->blocks[at][index], (unsigned long long)share->blocks[at][index]);
            }
        }
    checked += good;
    wrong += bad;
    return bad;
}

static void take(struct share *share, size_t number) {
    size_t bytes = (mib << 20) / threads;
    share->number = number;
    share->generation = 1;
    share->count = bytes / block;
    share->words = block / 8;
    share->blocks = calloc(share->count, sizeof *share->blocks);
    char *whole = NULL;
    if (use_mmap) {
        size_t huge = 2u << 20;
        char *raw = mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (raw == MAP_FAILED) {
            puts("no memory");
            exit(3);
        }
        whole = (char *)(((uintptr_t)raw + huge - 1) & ~(uintptr_t)(huge - 1));
        if (advise)
            madvise(whole, bytes, MADV_HUGEPAGE);
    }
    for (size_t at = 0; at < share->count; at++) {
        share->blocks[at] = whole ? (uint64_t *)(whole + at * block) : malloc(block);
        if (!share->blocks[at]) {
            puts("no memory");
            exit(3);
        }
    }
    fill(share);
}

static void *work(void *given) {
    struct share *share = given;
    for (size_t round = 0; round < rounds; round++) {
        check(share);
        share->generation++;
        fill(share);
    }
    check(share);
    return NULL;
}

static void *keep_busy(void *given) {
    struct share *share = given;
    while (!stop) {
        pthread_mutex_lock(&turn);
        check(share);
        share->generation++;
        fill(share);
        pthread_mutex_unlock(&turn);
        usleep(1000);
    }
    return NULL;
}

static void *keep_touching(void *given) {
    struct share *share = given;
    volatile uint64_t seen = 0;
    while (!stop) {
        pthread_mutex_lock(&turn);
        for (size_t at = 0; at < share->count; at++)
            for (size_t index = 0; share->blocks[at] && index < share->words; index += 512)
                seen += share->blocks[at][index];
        pthread_mutex_unlock(&turn);
        usleep(20000);
    }
    return NULL;
}

static void copy_smaps(const char *ending) {
    static char buffer[1 << 16], path[4096];
    snprintf(path, sizeof path, "%s%s", smaps, ending);
    int from = open("/proc/self/smaps", O_RDONLY), to = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ssize_t got;
    while (from >= 0 && to >= 0 && (got = read(from, buffer, sizeof buffer)) > 0)
        if (write(to, buffer, got) != got)
            _exit(4);
    close(from);
    close(to);
}

static void obey(struct share *shares) {
    char line[64];
    printf("ready %d\n", getpid());
    while (fgets(line, sizeof line, stdin)) {
        pthread_mutex_lock(&turn);
        size_t bad = 0;
        for (size_t at = 0; at < threads; at++) {
            if (!strcmp(line, "check\n"))
                bad += check(&shares[at]);
            if (!strcmp(line, "write\n")) {
                shares[at].generation++;
                fill(&shares[at]);
            }
            for (size_t index = 0; !strcmp(line, "half\n") && index < shares[at].count; index += 2) {
                if (!use_mmap)
                    free(shares[at].blocks[index]);
                shares[at].blocks[index] = NULL;
            }
        }
        pthread_mutex_unlock(&turn);
        printf(bad || wrong ? "bad %zu %lu\n" : "ok %zu %lu\n", bad, (unsigned long)checked);
        if (!strcmp(line, "quit\n"))
            break;
    }
}

static size_t number(char *text) {
    return text ? strtoul(text, NULL, 10) : 0;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int at = 1; at < argc; at++) {
        char *next = argv[at + 1];
        if (!strcmp(argv[at], "--mmap")) use_mmap = 1;
        else if (!strcmp(argv[at], "--advise")) advise = 1;
        else if (!strcmp(argv[at], "--interactive")) interactive = 1;
        else if (!strcmp(argv[at], "--busy")) busy = 1;
        else if (!strcmp(argv[at], "--touch")) touch = 1;
        else if (!strcmp(argv[at], "--mib")) mib = number(next), at++;
        else if (!strcmp(argv[at], "--block")) block = number(next), at++;
        else if (!strcmp(argv[at], "--threads")) threads = number(next), at++;
        else if (!strcmp(argv[at], "--forks")) forks = number(next), at++;
        else if (!strcmp(argv[at], "--linger")) linger = number(next), at++;
        else if (!strcmp(argv[at], "--rounds")) rounds = number(next), at++;
        else if (!strcmp(argv[at], "--smaps")) smaps = next, at++;
        else { fprintf(stderr, "holder: what is %s?\n", argv[at]); return 2; }
    }
    struct share *shares = calloc(threads, sizeof *shares);
    pthread_t *running = calloc(threads, sizeof *running);
    for (size_t at = 0; at < threads; at++)
        take(&shares[at], at);
    for (size_t at = 0; at < threads && threads > 1; at++)
        pthread_create(&running[at], NULL, work, &shares[at]);
    for (size_t at = 0; at < threads && threads > 1; at++)
        pthread_join(running[at], NULL);
    if (threads == 1)
        check(&shares[0]);
    for (size_t child = 0; child < forks; child++) {
        pid_t born = fork();
        if (born < 0) {
            perror("holder: fork");
            return 5;
        }
        if (born == 0) {
            for (size_t at = 0; at < threads; at++)
                work(&shares[at]);
            fflush(stdout);
            _exit(wrong ? 1 : 0);
        }
        shares[0].generation++;
        fill(&shares[0]);
        int status;
        waitpid(born, &status, 0);
        if (status) {
            printf("bad: child %zu ended with status %x\n", child, status);
            return 1;
        }
        for (size_t at = 0; at < threads; at++)
            check(&shares[at]);
    }
    if (smaps)
        copy_smaps(".before");
    usleep(linger * 1000);
    if (smaps)
        copy_smaps("");
    if (interactive) {
        pthread_t worker;
        if (busy || touch)
            pthread_create(&worker, NULL, busy ? keep_busy : keep_touching, &shares[0]);
        obey(shares);
        stop = 1;
        if (busy || touch)
            pthread_join(worker, NULL);
    }
    for (size_t at = 0; at < threads; at++)
        check(&shares[at]);
    if (!wrong)
        printf("ok %lu\n", (unsigned long)checked);
    return wrong ? 1 : 0;
}
