/* Runs all of 8 MiB of code, and compares constants: prints `ready PID SUM`, then a sum for each line that it reads.
 * The sum is of the code's bytes, so that a wrong page shows. */
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#define CODE (8u << 20)

#ifdef __aarch64__
#define REST "4084" /* the rest of 4096 bytes after `ret` and the number */
#else
#define REST "4087"
#endif

__asm__(".text\n.balign 4096\n.globl body\n.type body, @function\nbody:\n"
        ".set at, 0\n.rept 2048\nret\n.quad at * 0x9e3779b1\n.fill " REST ", 1, 0xc3\n.set at, at + 1\n.endr\n");
extern const unsigned char body[];

static uint64_t sum(void) {
    uint64_t total = 0;
    for (size_t at = 0; at < CODE; at += 4096) {
        ((void (*)(void))(body + at))();
        for (size_t byte = 0; byte < 4096; byte += 8)
            total = total * 31 + *(const uint64_t *)(body + at + byte);
    }
    return total;
}

int main(void) {
    char line[64];
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("ready %d %llu\n", getpid(), (unsigned long long)sum());
    while (fgets(line, sizeof line, stdin))
        printf("ok %llu\n", (unsigned long long)sum());
    return 0;
}
