/* Processes with as many mappings as the kernel allows: a test of the bounds of megapage's daemon.
 *
 * Maps single pages of one memory file so that no two mappings can merge, and forks. Each process shows some 80 MiB of
 * resident memory, all of it the same few pages.
 *
 * usage: many-mappings PROCESSES MAPPINGS
 *
 * Prints "ready" when all have started; they end when standard input ends.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 1024, RESIDENT = 20000 };

static void fail(const char *what) {
    fprintf(stderr, "many-mappings: %s: %s\n", what, strerror(errno));
    exit(2);
}

int main(int count, char **arguments) {
    unsigned long processes = count > 1 ? strtoul(arguments[1], NULL, 10) : 1;
    unsigned long mappings = count > 2 ? strtoul(arguments[2], NULL, 10) : 65000;
    int file = memfd_create("many-mappings", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, PAGES * PAGE)) fail("memfd_create");
    for (unsigned long each = 0; each < mappings; each++) {
        /* Neighbours map places that do not follow each other, so that the kernel keeps them apart. */
        off_t place = each * 7 % PAGES * PAGE;
        volatile char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, place);
        if (page == MAP_FAILED) fail("mmap");
        page[0] = 1;
    }
    pid_t parent = getpid();
    for (unsigned long each = 1; each < processes; each++) {
        pid_t child = fork();
        if (child < 0) fail("fork");
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) _exit(0);
            /* A fork does not copy the page tables of shared memory: enough of it is touched to be looked at. */
            FILE *maps = fopen("/proc/self/maps", "r");
            char line[512];
            for (int touched = 0; maps && touched < RESIDENT && fgets(line, sizeof line, maps);) {
                if (!strstr(line, "many-mappings (deleted)")) continue;
                *(volatile char *)strtoul(line, NULL, 16) = 1;
                touched++;
            }
            for (;;) pause();
        }
    }
    /* All children have touched theirs a moment later. */
    printf("ready\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    return 0;
}
