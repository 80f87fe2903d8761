// Threads that allocate, open files and map memory: what preloaded libraries take over.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void *work(void *own) {
    for (int at = 0; at < 60; at++) {
        char *block = malloc(1 << 20);
        memset(block, 1, 1 << 20);
        if (at % 3) free(block);
        FILE *file = fopen("/etc/passwd", "r");
        if (file) fclose(file);
        void *mapped = mmap(NULL, 1 << 18, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(mapped, 1, 1 << 18);
        munmap(mapped, 1 << 18);
    }
    return own;
}

int main(void) {
    pthread_t threads[3];
    for (int at = 0; at < 3; at++) pthread_create(&threads[at], NULL, work, NULL);
    for (int at = 0; at < 3; at++) pthread_join(threads[at], NULL);
    puts("done");
    return 4;
}
