/* A program that gains from huge pages: it reads at random from MIB of memory on base pages, and reports its speed.
 *
 * usage: honest MIB
 *
 * Prints the reads of each second, in millions, until standard input ends.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int count, char **arguments) {
    size_t bytes = (count > 1 ? strtoul(arguments[1], NULL, 10) : 256) << 20, words = bytes / 8;
    uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    memset(memory, 1, bytes);
    uint64_t state = 1, sum = 0;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, 0) == 0) {
        double start = now();
        uint64_t reads = 0;
        while (now() - start < 1) {
            for (int each = 0; each < 100000; each++) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                sum += memory[((state >> 33) * words) >> 31];
            }
            reads += 100000;
        }
        printf("%.3f\n", reads / 1e6 / (now() - start));
        fflush(stdout);
    }
    return sum == 42;
}
