/* Fills memory in steps, verifies it, and can fork or wait on the way.
 * usage: fill MEGABYTES [fork] [wait] [late]
 *   fork          fork when the memory is full; parent and child both rewrite all of it
 *                 (looked up at run time unless built with -DWITH_FORK, so that no launcher sees it coming)
 *   wait          after each eighth, and before the fork, print "at N" and wait for a line on standard input
 *   late          also after the fork, before either side writes */
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK ((size_t)1 << 20)

static uint64_t *blocks[1 << 16];
static size_t count;

static void write_all(uint64_t key) {
    for (size_t b = 0; b < count; b++) {
        for (size_t i = 0; i < BLOCK / 8; i += 64) blocks[b][i] = key ^ (b << 20 | i);
    }
}

static void verify_all(uint64_t key) {
    for (size_t b = 0; b < count; b++) {
        for (size_t i = 0; i < BLOCK / 8; i += 64) CHECK(blocks[b][i] == (key ^ (b << 20 | i)));
    }
}

static void pause_at(const char *where) {
    char answer[8];
    printf("at %s\n", where);
    fflush(stdout);
    CHECK(fgets(answer, sizeof answer, stdin) != NULL);
}

#ifdef WITH_FORK
static pid_t call_fork(void) { return fork(); }
#else
static pid_t call_fork(void) {
    /* The name is put together here so that it does not stand in the file. */
    char name[] = "gork";
    name[0] = 'f';
    pid_t (*function)(void);
    *(void **)&function = dlsym(RTLD_DEFAULT, name);
    CHECK(function != NULL);
    return function();
}
#endif

int main(int argc, char **argv) {
    size_t megabytes = argc > 1 ? (size_t)atol(argv[1]) : 64;
    int forks = 0, waits = 0, late = 0;
    for (int i = 2; i < argc; i++) {
        forks |= strcmp(argv[i], "fork") == 0;
        waits |= strcmp(argv[i], "wait") == 0;
        late |= strcmp(argv[i], "late") == 0;
    }
    CHECK(megabytes <= sizeof blocks / sizeof *blocks);
    for (size_t eighth = 1; eighth <= 8; eighth++) {
        while (count < megabytes * eighth / 8) {
            blocks[count] = malloc(BLOCK);
            CHECK(blocks[count] != NULL);
            count++;
        }
        write_all(eighth);
        verify_all(eighth);
        if (waits) pause_at((const char *[]){"", "1", "2", "3", "4", "5", "6", "7", "8"}[eighth]);
    }
    if (forks) {
        if (waits) pause_at("fork");
        write_all(100);
        int pipes[2], go[2];
        char start = 0;
        CHECK(pipe(pipes) == 0 && pipe(go) == 0);
        pid_t pid = call_fork();
        CHECK(pid >= 0 || errno == ENOMEM);
        if (pid < 0) {
            puts("fill: fork refused with ENOMEM");
            return 3;
        }
        if (pid == 0) {
            alarm(60);
            CHECK(read(go[0], &start, 1) == 1);
            verify_all(100);
            write_all(200);
            verify_all(200);
            /* A system call into the heap must not fail either. */
            CHECK(write(pipes[1], blocks[count / 2], 4096) == 4096);
            CHECK(read(pipes[0], blocks[count / 3], 4096) == 4096);
            _exit(0);
        }
        if (late) pause_at("forked");
        CHECK(write(go[1], &start, 1) == 1);
        write_all(300);
        verify_all(300);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid);
        if (status != 0) {
            fprintf(stderr, "fill: the child ended with wait status %#x\n", status);
            return 1;
        }
        verify_all(300); /* the child's writes are not ours */
    }
    for (size_t b = 0; b < count; b++) free(blocks[b]);
    printf("fill: ok\n");
    return 0;
}
