/* A program with its own malloc: the library must not get between it and its callers, the C library included. */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

/* A bump allocator with a header that holds the size; nothing is ever reused. */
static char *arena;
static size_t used;
static unsigned long calls;
#define ARENA ((size_t)1 << 30)

void *malloc(size_t size) {
    if (arena == NULL) {
        arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (arena == MAP_FAILED) return NULL;
    }
    size_t whole = (size + 47) & ~(size_t)15; /* a header of 16, and no block of 0 */
    if (size > ARENA || used + whole > ARENA) {
        errno = ENOMEM;
        return NULL;
    }
    char *p = arena + used;
    used += whole;
    calls++;
    *(size_t *)p = size;
    return p + 16;
}

void free(void *p) {
    /* A block of another allocator here means that two of them share this program. */
    if (p != NULL && ((char *)p < arena || (char *)p >= arena + used)) abort();
}

void *calloc(size_t n, size_t size) {
    size_t whole;
    if (__builtin_mul_overflow(n, size, &whole)) return NULL;
    return malloc(whole); /* fresh pages are zero */
}

void *realloc(void *old, size_t size) {
    void *p = malloc(size);
    if (p != NULL && old != NULL) {
        free(old);
        size_t had = *(size_t *)((char *)old - 16);
        memcpy(p, old, had < size ? had : size);
    }
    return p;
}

static int is_ours(const void *p) { return (const char *)p >= arena && (const char *)p < arena + used; }

int main(void) {
    char *text = strdup("the C library calls the program's malloc");
    CHECK(is_ours(text));
    free(text);
    for (int i = 1; i < 100000; i++) {
        char *p = malloc((size_t)(i % 4000));
        memset(p, i, (size_t)(i % 4000));
        CHECK(is_ours(p));
        free(p);
    }
    char *stream = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&stream, &length);
    for (int i = 0; i < 10000; i++) fprintf(out, "%d,", i);
    fclose(out);
    CHECK(is_ours(stream) && length == 48890);
    free(stream);
    CHECK(calls > 100000);
    puts("own-malloc: ok");
    return 0;
}
