/* calloc is always zero, also where the memory behind it was dirty, given back, and taken again.
 * Four threads dirty, free and calloc blocks of all sizes; pauses let an allocator purge in between. */
#include "check.h"
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define SLOTS 600

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static size_t any_size(uint64_t *random) {
    switch (next(random) % 8) {
    case 0: return 1 + next(random) % (3u << 20); /* around and above a huge page */
    case 1:
    case 2: return 1 + next(random) % (256u << 10);
    default: return 1 + next(random) % 4096;
    }
}

static int all_zero(const unsigned char *p, size_t size) {
    /* The first byte is zero, and each byte equals the one before it. */
    return size == 0 || (p[0] == 0 && memcmp(p, p + 1, size - 1) == 0);
}

static void *work(void *argument) {
    uint64_t random = 0x9e3779b97f4a7c15u * (1 + (uintptr_t)argument);
    static __thread struct { unsigned char *p; size_t size; } slots[SLOTS];
    uint64_t zeroed = 0;
    for (int round = 0; round < 30000; round++) {
        int slot = (int)(next(&random) % SLOTS);
        if (slots[slot].p != NULL) {
            memset(slots[slot].p, 0xdb, slots[slot].size);
            free(slots[slot].p);
            slots[slot].p = NULL;
        } else {
            size_t size = any_size(&random);
            unsigned char *p;
            if (next(&random) % 4 == 0) {
                p = malloc(size);
                CHECK(p != NULL);
            } else {
                p = calloc(1, size);
                CHECK(p != NULL);
                CHECK(all_zero(p, size));
                zeroed += size;
            }
            memset(p, 0xdb, size);
            slots[slot].p = p;
            slots[slot].size = size;
        }
        if (round % 10000 == 9999) {
            /* Everything goes; the allocator has time to give it back; what comes next is recycled. */
            for (int i = 0; i < SLOTS; i++) {
                free(slots[i].p);
                slots[i].p = NULL;
            }
            usleep(300 * 1000);
        }
    }
    for (int i = 0; i < SLOTS; i++) free(slots[i].p);
    CHECK(zeroed > 0);
    return NULL;
}

int main(void) {
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    puts("calloc-zero: ok");
    return 0;
}
