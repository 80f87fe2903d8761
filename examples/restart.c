/* A table that survives a restart: the first run builds it, the next one finds it.
 *
 * cc restart.c $(pkg-config --cflags --libs megapage) -o restart
 * ./restart [DIRECTORY]     where the pool is to be; without it, on a mounted hugetlbfs
 */

#include <megapage.h>

#include <stdio.h>
#include <stdlib.h>

#define NUMBERS 1000000u

static void check(int answer, const char *what) {
    if (answer < 0) {
        fprintf(stderr, "restart: %s: %s (errno %d)\n", what, megapage_message(), -answer);
        exit(2);
    }
}

/* How many divisors each number has. */
static void build(uint32_t *divisors) {
    for (uint32_t one = 1; one < NUMBERS; one++)
        for (uint32_t multiple = one; multiple < NUMBERS; multiple += one)
            divisors[multiple]++;
}

int main(int argc, char **argv) {
    megapage_pool pool;
    if (argc > 1)
        check(megapage_pool_open_in(argv[1], "example-c", MEGAPAGE_2M, &pool), "opening the pool");
    else
        check(megapage_pool_open("example-c", MEGAPAGE_2M, &pool), "opening the pool");

    megapage_options options;
    check(megapage_options_init(&options, 8u << 20), "the options");
    options.unlink = MEGAPAGE_UNLINK_NEVER; /* what is there is reused */
    megapage_heap heap;
    check(megapage_heap_open(pool, "divisors", &options, &heap, NULL), "opening the heap");

    const uint64_t tag = megapage_tag("divisors/1");
    megapage_handle root;
    check(megapage_heap_root(heap, &root), "the root");
    const int found = root.serial != 0;
    void *address;
    if (!found) {
        check(megapage_heap_allocate(heap, NUMBERS * sizeof(uint32_t), 0, MEGAPAGE_ZEROED, tag, &root), "allocating");
        check(megapage_heap_block(heap, root, tag, &address, NULL), "the table");
        build(address);
        /* Only what is whole becomes the root: a kill before this leaves nothing to be found. */
        check(megapage_heap_set_root(heap, root), "storing the root");
    }
    uint64_t length;
    check(megapage_heap_block(heap, root, tag, &address, &length), "the table");
    const uint32_t *divisors = address;
    printf("%s %llu bytes: 720720 has %u divisors\n", found ? "found" : "built", (unsigned long long)length,
           (unsigned)divisors[720720]);
    check(megapage_heap_close(heap), "closing the heap");
    check(megapage_pool_close(pool), "closing the pool");
    return 0;
}
