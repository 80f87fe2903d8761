// Threads that allocate, keep and free blocks of many sizes, and hand some to the next one.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 400, KEPT = 40 };

static unsigned long work(unsigned seed) {
    char *kept[KEPT] = {0};
    unsigned long sum = 0;
    for (int round = 0; round < ROUNDS; round++) {
        seed = seed * 1103515245 + 12345;
        unsigned at = (seed >> 8) % KEPT;
        size_t size = 16 + (seed >> 16) % (round % 20 ? 2000 : 60000);
        free(kept[at]);
        kept[at] = malloc(size);
        memset(kept[at], (int)(seed & 127), size);
        sum += (unsigned char)kept[at][size - 1];
    }
    for (int at = 0; at < KEPT; at++) free(kept[at]);
    return sum;
}

static void *start(void *seed) { return (void *)work((unsigned)(size_t)seed); }

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 4;
    unsigned long sum = 0;
    for (int begun = 0; begun < count; begun += 50) {
        int some = count - begun < 50 ? count - begun : 50;
        pthread_t threads[50];
        for (int at = 0; at < some; at++)
            if (pthread_create(&threads[at], NULL, start, (void *)(size_t)(begun + at))) return 9;
        for (int at = 0; at < some; at++) {
            void *own;
            pthread_join(threads[at], &own);
            sum += (unsigned long)own;
        }
    }
    printf("sum %lu\n", sum);
    return 0;
}
