// Locks its memory as daemons do, then allocates.
// usage: lock FLAGS MIB (flags: 1 current, 2 future)
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// MiB of locked memory; -1 where /proc is not there.
static long locked(void) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[200];
    long kib = -1024;
    while (file && fgets(line, sizeof line, file)) sscanf(line, "VmLck: %ld", &kib);
    if (file) fclose(file);
    return kib / 1024;
}

static void *work(void *own) {
    for (int at = 0; at < 1000; at++) {
        void *block = malloc((size_t)(100 + at));
        memset(block, 1, 100);
        free(block);
    }
    return own;
}

int main(int argc, char **argv) {
    int flags = atoi(argv[1]);
    long mib = atol(argv[2]);
    printf("mlockall: %s\n", mlockall(flags) ? strerror(errno) : "locked");
    long before = locked();
    char **blocks = calloc((size_t)mib * 4, sizeof *blocks);
    for (long at = 0; at < mib * 4; at++) {
        blocks[at] = malloc(256 << 10);
        if (!blocks[at]) {
            printf("malloc: %s\n", strerror(errno));
            return 1;
        }
        memset(blocks[at], 1, 256 << 10);
    }
    printf("new memory is %slocked\n", locked() >= before + mib ? "" : "not ");
    pthread_t threads[4];
    int made = 0;
    for (int at = 0; at < 4; at++)
        if (!pthread_create(&threads[made], NULL, work, NULL)) made++;
    for (int at = 0; at < made; at++) pthread_join(threads[at], NULL);
    printf("%d threads\n", made);
    for (long at = 0; at < mib * 4; at++) free(blocks[at]);
    return 2;
}
