/* A program with bloat, for the tests of the daemon: bloat SPARSE DENSE MIB of memory.

   Holds SPARSE MiB of huge pages, in which one base page in eight is used, and prints "sparse". At
   each line of its input it fills another tenth of DENSE MiB, on base pages, and prints "part".
   Then it checks every byte that it has written, prints "filled" and ends. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int count, char **word) {
    size_t mib = 1 << 20, huge = 2 << 20;
    if (count < 3) return 2;
    size_t sparse = strtoul(word[1], 0, 10) * mib, dense = strtoul(word[2], 0, 10) * mib;
    char *first = mmap(0, sparse + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *second = mmap(0, dense, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (first == MAP_FAILED || second == MAP_FAILED) return 3;
    if (madvise(second, dense, MADV_NOHUGEPAGE)) return 4;
    first = (char *)(((size_t)first + huge - 1) / huge * huge);
    /* MADV_COLLAPSE: huge at any setting of the machine. */
    for (size_t at = 0; at < sparse; at += huge) {
        first[at] = 1;
        for (int try = 0; madvise(first + at, huge, 25); try++) {
            if (try == 1000) return 5;
            usleep(1000);
        }
    }
    for (size_t at = 0; at < sparse; at += 8 * 4096) first[at] = 1;
    puts("sparse");
    fflush(stdout);
    for (int part = 0; part < 10; part++) {
        char line[16];
        if (!fgets(line, sizeof line, stdin)) return 6;
        for (size_t at = part * (dense / 10); at < (part + 1) * (dense / 10); at += 4096) second[at] = 2;
        puts("part");
        fflush(stdout);
    }
    for (size_t at = 0; at < sparse; at += 4096)
        if (first[at] != (at % (8 * 4096) == 0)) return 7;
    for (size_t at = 0; at < dense / 10 * 10; at += 4096)
        if (second[at] != 2) return 8;
    puts("filled");
    return 0;
}
