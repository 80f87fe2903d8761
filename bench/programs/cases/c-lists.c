// program: C, hash chains of small malloc'd nodes that come and go
// class: C
// version: gcc -dumpfullversion
// random: yes
// expect: 11130740281352124555
#include "phases.h"
#include <string.h>

struct node {
    struct node *next;
    uint64_t key;
    char text[];
};

enum { BUCKETS = 1 << 20, COUNT = 3000000 };
static struct node *table[BUCKETS];

static void add(uint64_t key) {
    struct node *fresh = malloc(sizeof *fresh + 8 + key % 40);
    if (!fresh) exit(2);
    fresh->key = key;
    strcpy(fresh->text, "text");
    fresh->next = table[key % BUCKETS];
    table[key % BUCKETS] = fresh;
}

int main(void) {
    uint64_t state = 1, total = 0;
    for (int i = 0; i < COUNT; i++) add(next_number(&state));
    phase_steady();
    for (int i = 0; i < 4000000; i++) {
        uint64_t key = next_number(&state);
        struct node **at = &table[key % BUCKETS];
        while (*at && (*at)->next) at = &(*at)->next;
        if (*at) {
            struct node *old = *at;
            total += old->key + (uint64_t)old->text[1];
            *at = NULL;
            free(old);
        }
        add(key);
    }
    phase_end(total);
}
