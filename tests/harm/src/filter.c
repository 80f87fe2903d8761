// Confines itself to the calls of malloc, then allocates.
// usage: filter kill|refuse|strict MIB MIB-BEFORE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ALLOW(name) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static unsigned long use(size_t mib) {
    unsigned long sum = 0;
    char **blocks = malloc(mib * sizeof *blocks);
    for (size_t at = 0; at < mib; at++) {
        blocks[at] = malloc((1 << 20) - 64 * (at % 3));
        memset(blocks[at], 1, 1000000);
        sum += (unsigned char)blocks[at][5];
    }
    for (size_t at = 0; at < mib; at++) free(blocks[at]);
    free(blocks);
    char *large = calloc(mib, 1 << 20);
    for (size_t at = 0; at < mib << 20; at += 4096) sum += (unsigned char)large[at] + 1;
    free(realloc(large, mib << 19));
    for (int at = 0; at < 100000; at++) {
        char *small = malloc(16 + at % 500);
        small[0] = 1;
        sum += (unsigned char)small[0];
        if (at % 7) free(small);
    }
    return sum;
}

int main(int argc, char **argv) {
    size_t mib = (size_t)atoi(argv[2]), before = (size_t)atoi(argv[3]);
    unsigned otherwise = argv[1][0] == 'k' ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(read), ALLOW(write), ALLOW(brk), ALLOW(mmap), ALLOW(munmap), ALLOW(mremap), ALLOW(mprotect), ALLOW(madvise),
        ALLOW(exit), ALLOW(exit_group), ALLOW(futex), ALLOW(rt_sigprocmask), ALLOW(rt_sigreturn),
        BPF_STMT(BPF_RET | BPF_K, otherwise),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    char **kept = malloc((before + 1) * sizeof *kept);
    for (size_t at = 0; at < before; at++) {
        kept[at] = malloc(1 << 20);
        memset(kept[at], 3, 1 << 20);
    }
    int error;
    if (argv[1][0] == 's') {
        error = prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    } else {
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        error = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    }
    if (error) {
        perror("PR_SET_SECCOMP");
        return 9;
    }
    unsigned long sum = 0;
    if (argv[1][0] == 's') {
        // Strict mode allows no mmap: what is allocated fits where the heap is.
        for (int at = 0; at < 1000; at++) {
            char *small = malloc(64);
            small[0] = 1;
            sum += (unsigned char)small[0];
            free(small);
        }
    } else {
        for (int round = 0; round < 3; round++) sum += use(mib);
    }
    char text[60];
    int length = snprintf(text, sizeof text, "alive, sum %lu\n", sum);
    write(1, text, (size_t)length);
    if (argv[1][0] == 's') syscall(SYS_exit, 3);
    _exit(3);
}
