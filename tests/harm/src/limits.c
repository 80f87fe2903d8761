// Allocates so many MiB by malloc, and 32 MiB by mmap: usage: limits MIB.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int main(int argc, char **argv) {
    int count = 0, most = atoi(argv[1]);
    for (; count < most; count++) {
        char *block = malloc(1 << 20);
        if (!block) break;
        memset(block, 1, 1 << 20);
    }
    void *mapped = mmap(NULL, 32 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("%d MiB by malloc, mmap %s\n", count, mapped == MAP_FAILED ? "refused" : "done");
    return count < most || mapped == MAP_FAILED;
}
