// A program with a function NAME of the C library's name. glibc never calls it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int NAME(void) {
    fputs("my " STR " was called by a stranger\n", stderr);
    exit(42);
}

static char *blocks[100];

static void fill(void) {
    for (int at = 0; at < 100; at++) {
        blocks[at] = malloc(1 << 20);
        memset(blocks[at], 1, 1 << 20);
    }
}

int main(void) {
    fill();
    for (int at = 0; at < 100; at++) free(blocks[at]);
    for (volatile long spin = 0; spin < 100000000; spin++) continue;
    fill();
    puts("fine");
    return 0;
}
