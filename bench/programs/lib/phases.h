/* The bench's protocol (protocol.py) for C and C++. */
#ifndef PHASES_H
#define PHASES_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Returns true if the driver says to go on. */
static int phases_send(const char *text, const char *answer) {
    const char *out_name = getenv("BENCH_PHASES"), *go_name = getenv("BENCH_GO");
    char line[64];
    if (!out_name || !go_name) {
        if (answer) printf("%s\n", answer);
        return 0;
    }
    FILE *out = fopen(out_name, "w");
    if (!out) exit(2);
    if (answer) fprintf(out, "answer %s\n", answer);
    fprintf(out, "phase %s\n", text);
    fclose(out);
    FILE *go = fopen(go_name, "r");
    if (!go || !fgets(line, sizeof line, go)) exit(2);
    fclose(go);
    return line[0] == 'g';
}

/* The set-up is done; what follows is measured. */
static void phase_steady(void) { phases_send("steady", NULL); }

/* Returns true if the program should repeat the measured work, with the same answer. */
static inline int phase_again(void) {
    return getenv("BENCH_BLOCKS") && phases_send("block", NULL);
}

/* The measured work is done, and what it made is still there. */
static void phase_end(uint64_t answer) {
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)answer);
    phases_send("end", text);
}

/* Returns the bytes that the program should take in the class large; 0 in the class small. */
static uint64_t size_wanted(void) {
    const char *size = getenv("BENCH_SIZE");
    return size ? strtoull(size, NULL, 10) : 0;
}

/* splitmix64 */
static inline uint64_t next_number(uint64_t *state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
#endif
