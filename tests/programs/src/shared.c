// shared KIND MIB PROCESSES [busy] [misplaced] [sparse]: processes that share memory, and check
// each byte of it.
//
// KIND is anonymous, memfd, sysv, or the path of a file to make (on a tmpfs). The first process
// maps MIB of it at an address that agrees with the offset modulo 2 MiB (with `misplaced` 4 KiB
// beyond), and forks the others. Only process P mod PROCESSES writes page P; with `sparse` one page
// of 16 is used. With `busy` each process goes on: it checks its pages and writes them again.
//
// Prints "ready ADDRESS PID..." and obeys its input. "check" stops the writers, and checks every
// page through the first process's mapping; it answers "ok ROUNDS", or "bad ERRORS" with the errors
// of all processes. At the end of the input all processes end.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#define HUGE ((size_t)2 << 20)
#define PAGE ((size_t)4096)
#define WORDS (PAGE / 8)

struct status {
    volatile int pause;
    volatile uint64_t errors, rounds;
    volatile int paused[64], filled[64];
};

static uint64_t value(uint64_t page, uint64_t generation, uint64_t word)
{
    return (page * WORDS + word) * 0x9e3779b97f4a7c15u + generation;
}

static uint64_t *page_at(char *memory, size_t page)
{
    return (uint64_t *)(memory + page * PAGE);
}

// Word 0 is the page's number, word 1 its generation; the others are computed from both.
static void fill(char *memory, size_t page, uint64_t generation)
{
    uint64_t *words = page_at(memory, page);
    words[0] = page, words[1] = generation;
    for (uint64_t word = 2; word < WORDS; word++) words[word] = value(page, generation, word);
}

static int is_whole(char *memory, size_t page)
{
    uint64_t *words = page_at(memory, page);
    if (words[0] != page) return 0;
    for (uint64_t word = 2; word < WORDS; word++)
        if (words[word] != value(page, words[1], word)) return 0;
    return 1;
}

static void work(char *memory, size_t pages, size_t step, int me, int processes, int busy, struct status *status)
{
    for (size_t page = 0; page < pages; page += step)
        if ((int)(page / step % processes) == me) fill(memory, page, 1);
    status->filled[me] = 1;
    uint64_t generation = 1;
    size_t at = 0;
    for (;;) {
        status->paused[me] = 1;
        while (status->pause || !busy) {
            usleep(1000);
            if (getppid() == 1) _exit(1);
        }
        status->paused[me] = 0;
        // Goes on where it stopped, so that every page is of the last generation or of this one.
        for (; at < pages && !status->pause; at += step) {
            if ((int)(at / step % processes) != me) continue;
            if (!is_whole(memory, at) || page_at(memory, at)[1] != generation)
                __sync_fetch_and_add(&status->errors, 1);
            fill(memory, at, generation + 1);
        }
        if (at < pages) continue;
        at = 0, generation++;
        __sync_fetch_and_add(&status->rounds, 1);
    }
}

static void fail(const char *what)
{
    perror(what);
    exit(9);
}

int main(int count, char **arguments)
{
    if (count < 4) return 2;
    const char *kind = arguments[1];
    size_t size = (size_t)atol(arguments[2]) << 20, pages = size / PAGE, step = 1;
    int processes = atoi(arguments[3]), busy = 0, misplaced = 0;
    for (int i = 4; i < count; i++) {
        busy |= !strcmp(arguments[i], "busy");
        misplaced |= !strcmp(arguments[i], "misplaced");
        if (!strcmp(arguments[i], "sparse")) step = 16;
    }
    if (processes < 1 || processes > 64 || !size) return 2;
    struct status *status = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *space = mmap(0, size + 2 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (status == MAP_FAILED || space == MAP_FAILED) fail("mmap");
    char *place = (char *)(((uintptr_t)space + HUGE - 1) / HUGE * HUGE) + (misplaced ? PAGE : 0), *memory;
    if (!strcmp(kind, "sysv")) {
        int id = shmget(IPC_PRIVATE, size, IPC_CREAT | 0600);
        if (id < 0) fail("shmget");
        memory = shmat(id, place, SHM_REMAP);
        shmctl(id, IPC_RMID, 0);
    } else if (!strcmp(kind, "anonymous")) {
        memory = mmap(place, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    } else {
        int file = strcmp(kind, "memfd") ? open(kind, O_RDWR | O_CREAT, 0600) : memfd_create("shared", 0);
        if (file < 0 || ftruncate(file, size)) fail(kind);
        memory = mmap(place, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
        // From here on only the mapping keeps a memfd.
        close(file);
    }
    if (memory == (char *)-1) fail("map");
    pid_t pids[64];
    for (int i = 0; i < processes; i++) {
        pids[i] = fork();
        if (pids[i] < 0) fail("fork");
        if (!pids[i]) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            work(memory, pages, step, i, processes, busy, status);
        }
    }
    for (int i = 0; i < processes; i++)
        while (!status->filled[i]) usleep(1000);
    printf("ready %lx %d", (unsigned long)memory, getpid());
    for (int i = 0; i < processes; i++) printf(" %d", pids[i]);
    puts("");
    fflush(stdout);
    char line[64];
    int dead[64] = {0};
    while (fgets(line, sizeof line, stdin)) {
        if (strncmp(line, "check", 5)) continue;
        status->pause = 1;
        int torn[64] = {0};
        for (int i = 0; i < processes; i++)
            // A killed process does not answer.
            while (!dead[i] && !status->paused[i] && !(dead[i] = waitpid(pids[i], 0, WNOHANG) != 0)) usleep(1000);
        uint64_t errors = status->errors;
        for (size_t page = 0; page < pages; page++) {
            if (page % step == 0) {
                int owner = page / step % processes;
                // A killed process may have left one page half written.
                if (!is_whole(memory, page) && !(dead[owner] && !torn[owner]++)) errors++;
                continue;
            }
            uint64_t *words = page_at(memory, page);
            for (uint64_t word = 0; word < WORDS; word++) errors += words[word] != 0;
        }
        if (errors) printf("bad %lu\n", (unsigned long)errors);
        else printf("ok %lu\n", (unsigned long)status->rounds);
        fflush(stdout);
        status->pause = 0;
    }
    for (int i = 0; i < processes; i++) kill(pids[i], SIGKILL), waitpid(pids[i], 0, 0);
    return 0;
}
