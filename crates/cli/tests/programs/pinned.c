// 8 MiB on base pages, one page of which a pipe holds: its region cannot be collapsed.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

int main(void) {
    const size_t huge = 2 << 20, len = 8 << 20;
    char *all = mmap(0, len + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return 1;
    char *memory = (char *)(((uintptr_t)all + huge - 1) & ~(huge - 1));
    madvise(all, len + huge, MADV_NOHUGEPAGE);
    memset(memory, 7, len);
    madvise(all, len + huge, MADV_HUGEPAGE);
    int ends[2];
    struct iovec page = {memory + huge + 4096 * 9, 4096};
    if (pipe(ends) || vmsplice(ends[1], &page, 1, 0) != 4096) return 1;
    puts("ready");
    fflush(stdout);
    getchar();
    for (size_t at = 0; at < len; at++) {
        if (memory[at] != 7) return 1;
    }
    return 3;
}
