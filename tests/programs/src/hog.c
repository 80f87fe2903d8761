/* Takes 2 MiB hugetlb pages until the pool has none free, says how many, and keeps them until it is killed.
 * usage: hog all | hog PAGES */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
    long most = argc > 1 && strcmp(argv[1], "all") != 0 ? atol(argv[1]) : 1 << 20;
    long pages = 0;
    while (pages < most) {
        char *p = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | (21 << 26 /* MAP_HUGE_2MB */), -1, 0);
        if (p == MAP_FAILED) break;
        *p = 1;
        pages++;
    }
    printf("%ld\n", pages);
    fflush(stdout);
    alarm(120); /* the process that started it may be gone */
    pause();
}
