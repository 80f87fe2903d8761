/* Tests every entry point of malloc(3) and its neighbours: results, alignment, errno, and blocks that must not change. */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

/* Keeps the compiler from reasoning about the sizes and from removing calls in pairs. */
static volatile size_t huge = SIZE_MAX - 4096;
static volatile size_t half = (size_t)1 << 33; /* its square is 0 modulo 2^64 */
static int somewhere;
static void *volatile kept;

static int aligned(const void *p, size_t to) { return ((uintptr_t)p & (to - 1)) == 0; }

static void basics(void) {
    errno = 77;
    for (size_t size = 0; size < 70000; size = size * 5 / 4 + 1) {
        char *p = malloc(size);
        CHECK(p != NULL);
        CHECK(aligned(p, size >= 16 ? 16 : 8));
        CHECK(malloc_usable_size(p) >= size);
        memset(p, 0xa5, malloc_usable_size(p)); /* every byte that malloc_usable_size reports is usable */
        kept = p;
        free(p);
    }
    free(NULL);
    CHECK(malloc_usable_size(NULL) == 0);
    CHECK(errno == 77); /* success leaves errno alone, and so does free */

    char *big[8];
    for (int i = 0; i < 8; i++) {
        big[i] = malloc((size_t)(9 + i) << 20);
        CHECK(big[i] != NULL);
        big[i][0] = big[i][((size_t)(9 + i) << 20) - 1] = (char)i;
    }
    for (int i = 0; i < 8; i++) {
        CHECK(big[i][0] == i && big[i][((size_t)(9 + i) << 20) - 1] == i);
        errno = 78;
        free(big[i]);
        CHECK(errno == 78); /* giving memory back to the kernel keeps errno too */
    }
}

static void too_much(void) {
    errno = 0;
    kept = malloc(huge);
    CHECK(kept == NULL && errno == ENOMEM);
    errno = 0;
    kept = malloc(PTRDIFF_MAX);
    CHECK(kept == NULL && errno == ENOMEM);
    errno = 0;
    kept = calloc(huge / 2, 4);
    CHECK(kept == NULL && errno == ENOMEM);
    errno = 0;
    kept = calloc(half, half);
    CHECK(kept == NULL && errno == ENOMEM);

    char *p = malloc(100);
    memset(p, 7, 100);
    errno = 0;
    kept = realloc(p, huge);
    CHECK(kept == NULL && errno == ENOMEM);
    for (int i = 0; i < 100; i++) CHECK(p[i] == 7); /* a failed realloc leaves the block */
    errno = 0;
    kept = reallocarray(p, half, half);
    CHECK(kept == NULL && errno == ENOMEM);
    for (int i = 0; i < 100; i++) CHECK(p[i] == 7);
    free(p);

    void *untouched = &somewhere;
    CHECK(posix_memalign(&untouched, 64, huge) == ENOMEM);
    errno = 0;
    kept = aligned_alloc(64, huge);
    CHECK(kept == NULL && errno == ENOMEM);
    errno = 0;
    kept = memalign(4096, huge);
    CHECK(kept == NULL && errno == ENOMEM);
    errno = 0;
    kept = pvalloc(huge);
    CHECK(kept == NULL && errno == ENOMEM);
    errno = 0;
    kept = valloc(huge);
    CHECK(kept == NULL && errno == ENOMEM);
}

static void resizing(void) {
    char *p = realloc(NULL, 10);
    CHECK(p != NULL);
    memcpy(p, "123456789", 10);
    for (size_t size = 10; size < (40u << 20); size *= 3) {
        p = realloc(p, size);
        CHECK(p != NULL && memcmp(p, "123456789", 10) == 0);
        p[size - 1] = 0;
    }
    for (size_t size = 40u << 20; size >= 10; size /= 3) {
        p = realloc(p, size);
        CHECK(p != NULL && memcmp(p, "123456789", 10) == 0);
    }
    p = reallocarray(p, 1000, 1000);
    CHECK(p != NULL && malloc_usable_size(p) >= 1000000 && memcmp(p, "123456789", 10) == 0);
    /* glibc: realloc to 0 frees and returns NULL; C17 leaves it to the library. Either way there is no leak
       and no crash. */
    void *zero = realloc(p, 0);
    free(zero);

    /* A block keeps its content wherever its size crosses a boundary of the allocator. */
    for (size_t from = 1; from < (3u << 20); from = from * 2 + 1) {
        for (size_t to = 1; to < (3u << 20); to = to * 4 + 3) {
            unsigned char *block = malloc(from);
            for (size_t i = 0; i < from; i += 61) block[i] = (unsigned char)(i * 7 + 1);
            block = realloc(block, to);
            CHECK(block != NULL);
            for (size_t i = 0; i < from && i < to; i += 61) CHECK(block[i] == (unsigned char)(i * 7 + 1));
            free(block);
        }
    }
}

static void alignment(void) {
    for (size_t to = sizeof(void *); to <= (4u << 20); to *= 2) {
        for (size_t size = 1; size < (5u << 20); size = size * 37 + 11) {
            void *p = NULL;
            errno = 80;
            CHECK(posix_memalign(&p, to, size) == 0 && aligned(p, to));
            CHECK(errno == 80);
            memset(p, 1, size);
            /* realloc of an aligned block keeps the content, and free takes it. */
            p = realloc(p, size * 2);
            CHECK(p != NULL && ((char *)p)[size - 1] == 1);
            free(p);
            p = aligned_alloc(to, (size + to - 1) & ~(to - 1));
            CHECK(p != NULL && aligned(p, to));
            CHECK(malloc_usable_size(p) >= size);
            free(p);
            p = memalign(to, size);
            CHECK(p != NULL && aligned(p, to));
            memset(p, 2, size);
            free(p);
        }
    }
    void *p = &somewhere;
    CHECK(posix_memalign(&p, 3, 8) == EINVAL && p == &somewhere); /* no power of two */
    CHECK(posix_memalign(&p, 4, 8) == EINVAL && p == &somewhere); /* less than a pointer */
    CHECK(posix_memalign(&p, 0, 8) == EINVAL && p == &somewhere);
    CHECK(posix_memalign(&p, 24, 8) == EINVAL && p == &somewhere);
    CHECK(posix_memalign(&p, 64, 0) == 0);
    free(p);

    long page = sysconf(_SC_PAGESIZE);
    p = valloc(1);
    CHECK(p != NULL && aligned(p, (size_t)page));
    free(p);
    p = pvalloc(1);
    CHECK(p != NULL && aligned(p, (size_t)page) && malloc_usable_size(p) >= (size_t)page);
    memset(p, 3, (size_t)page);
    free(p);
}

static void zeroing(void) {
    for (size_t size = 1; size < (20u << 20); size = size * 3 + 1) {
        for (int round = 0; round < 3; round++) {
            unsigned char *p = calloc(1, size);
            CHECK(p != NULL);
            for (size_t i = 0; i < size; i++) CHECK(p[i] == 0);
            memset(p, 0xff, malloc_usable_size(p));
            free(p);
        }
    }
    void *p = calloc(0, 8);
    free(p);
    p = calloc(8, 0);
    free(p);
}

static void tuning(void) {
    /* An allocator may ignore the parameters and have no figures, but the calls must be there and be harmless. */
    (void)mallopt(M_MMAP_THRESHOLD, 1 << 20);
    (void)mallopt(M_TRIM_THRESHOLD, 1 << 20);
    (void)mallopt(M_ARENA_MAX, 2);
    void *p = malloc(30u << 20);
    memset(p, 1, 30u << 20);
    free(p);
    int trimmed = malloc_trim(0);
    CHECK(trimmed == 0 || trimmed == 1);
    struct mallinfo2 info = mallinfo2();
    (void)info;
    FILE *null = fopen("/dev/null", "w");
    CHECK(null != NULL);
    (void)malloc_info(0, null);
    fclose(null);
}

/* The program frees blocks that the C library allocated, and the other way round. */
static void shared_with_libc(void) {
    char *copy = strdup("a string that the C library allocates");
    CHECK(copy != NULL && strlen(copy) == 37);
    free(copy);
    wchar_t *wide = wcsdup(L"wide");
    CHECK(wide != NULL && wcslen(wide) == 4);
    free(wide);
    char *text = NULL;
    CHECK(asprintf(&text, "%d %s", 42, "forty-two") == 12);
    free(text);
    char *line = malloc(1); /* getline reallocates what the program allocated */
    size_t room = 1;
    FILE *memory = fmemopen((void *)"a rather long first line\nnext\n", 30, "r");
    CHECK(memory != NULL && getline(&line, &room, memory) == 25);
    free(line);
    fclose(memory);
    char *stream = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&stream, &length);
    for (int i = 0; i < 100000; i++) fprintf(out, "%d,", i);
    fclose(out);
    CHECK(length == 588890 && strlen(stream) == length);
    free(stream);
    char *directory = getcwd(NULL, 0);
    CHECK(directory != NULL);
    free(directory);
    char *real = realpath("/", NULL);
    CHECK(real != NULL && strcmp(real, "/") == 0);
    free(real);
}

/* Blocks cross threads: one allocates, another frees, while the first has ended. */
static void *allocates(void *argument) {
    void **blocks = argument;
    for (int i = 0; i < 10000; i++) {
        blocks[i] = malloc((size_t)(i % 2000) + 1);
        memset(blocks[i], i, (size_t)(i % 2000) + 1);
    }
    return NULL;
}

static void *frees(void *argument) {
    void **blocks = argument;
    for (int i = 0; i < 10000; i++) {
        CHECK(*(unsigned char *)blocks[i] == (unsigned char)i);
        free(blocks[i]);
    }
    return NULL;
}

static void across_threads(void) {
    static void *blocks[4][10000];
    for (int round = 0; round < 20; round++) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, allocates, blocks[i]) == 0);
        for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
        for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, frees, blocks[3 - i]) == 0);
        for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    }
}

int main(void) {
    basics();
    too_much();
    resizing();
    alignment();
    zeroing();
    tuning();
    shared_with_libc();
    across_threads();
    puts("malloc-api: ok");
    return 0;
}
