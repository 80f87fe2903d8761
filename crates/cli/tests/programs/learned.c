/* What a run can find out about a program:
 * "block MIB EVERY" allocates one block and writes to one page of EVERY, or of what EVERY says in the environment;
 * "freed MIB EVERY" frees it, too;
 * "heap MIB" allocates small blocks;
 * "maps MIB" maps arenas of 1 MiB and fills them;
 * "map MIB" maps all at once and fills it;
 * "crash MIB" aborts where CRASH is set;
 * "again PROGRAM ARGUMENTS" executes another program in its place.
 * With HOLD in the environment it says "ready" and waits for the end of its input. Exits with 3. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int count, char **words) {
    size_t mib = (size_t)1 << 20, size = count > 2 ? (size_t)atol(words[2]) * mib : 0;
    if (!strcmp(words[1], "block") || !strcmp(words[1], "freed")) {
        char *every = getenv("EVERY");
        size_t step = (size_t)atol(every ? every : words[3]) * 4096;
        volatile char *block = malloc(size);
        if (!block) return 9;
        for (size_t at = 0; at < size; at += step) block[at + 5] = 1;
        if (words[1][0] == 'f') free((void *)block);
    } else if (!strcmp(words[1], "heap")) {
        for (size_t at = 0; at < size; at += 1024) memset(malloc(1000), 1, 1000);
    } else if (!strcmp(words[1], "maps")) {
        for (size_t at = 0; at < size; at += mib)
            memset(mmap(0, mib, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, mib);
    } else if (!strcmp(words[1], "map")) {
        memset(mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, size);
    } else if (!strcmp(words[1], "again")) {
        execv(words[2], words + 2);
        return 8;
    } else if (!strcmp(words[1], "crash")) {
        memset(malloc(size), 1, size);
        if (getenv("CRASH")) abort();
    }
    if (getenv("HOLD")) {
        char byte;
        write(1, "ready\n", 6);
        while (read(0, &byte, 1) > 0) {}
    }
    return 3;
}
