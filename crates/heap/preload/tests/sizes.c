// Memory that a block takes, compared with its requested size. See parts.h.

#include <malloc.h>
#include <stdint.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>
#include "parts.h"

// Returns the most bytes allowed for a size: an eighth more, or the next multiple of 16.
static size_t most(size_t size) {
  const size_t eighth = size + size / 8 + 16;
  const size_t sixteen = (size + 15) / 16 * 16;
  return size <= 128 ? sixteen : eighth;
}

static void classes(void) {
  size_t before = 0;
  for (size_t size = 1; size <= 1 << 19; size += 1 + size / 64) {
    char* const block = malloc(size);
    CHECK(block != NULL, "no memory");
    const size_t usable = malloc_usable_size(block);
    CHECK(usable >= size && usable <= most(size), "%zu bytes take %zu", size, usable);
    CHECK(usable >= before, "%zu bytes take %zu, fewer ones took %zu", size, usable, before);
    CHECK((uintptr_t)block % (size < 16 ? 8 : 16) == 0, "%zu bytes at %p", size, (void*)block);
    memset(block, 1, usable);
    before = usable;
    // Every third block lives on, so that pages of all classes are there at once.
    if (size % 3 != 0) free(block);
  }
}

// Blocks of more than a page's. They take whole slices of 64 KiB.
static void large(void) {
  for (size_t size = (1 << 19) + 1; size < 8 << 20; size += (37 << 10) + 1) {
    char* const block = malloc(size);
    CHECK(block != NULL, "no memory");
    const size_t usable = malloc_usable_size(block);
    CHECK(usable >= size && usable - size < 64 << 10, "%zu bytes take %zu", size, usable);
    free(block);
  }
}

// One block of each of many sizes, in a heap of 96 MiB. Regions of 2 MiB that hold one are not many
// more than the blocks fill.
static void together(void) {
  for (int at = 0; at < 96; at++) CHECK(malloc(1 << 20) != NULL, "no memory");
  size_t bytes = 0, regions = 0;
  uintptr_t seen[64];
  for (size_t size = 90 << 10; size <= 1 << 19; size += size / 8) {
    const uintptr_t region = (uintptr_t)malloc(size) >> 21;
    size_t at = 0;
    while (at < regions && seen[at] != region) at++;
    if (at == regions) seen[regions++] = region;
    bytes += size;
  }
  CHECK(regions <= 2 * (bytes >> 21) + 2, "%zu bytes lie in %zu regions of 2 MiB", bytes, regions);
}

// A program that holds 64 MiB in blocks of the sizes that databases, file systems and compilers
// have, and a header. The library's thread takes a huge page before it collapses, and releases it:
// the check waits for that.
static void pages(void) {
  static const size_t sizes[] = {1024 + 8, 4096 + 272, 8192 + 40};
  for (size_t at = 0; at < 3; at++) {
    const long before = status_bytes("VmRSS");
    for (size_t i = 0; i < (64 << 20) / sizes[at]; i++) memset(malloc(sizes[at]), 1, sizes[at]);
    const long most = 69L << 20;
    long taken = status_bytes("VmRSS") - before;
    for (int wait = 0; taken > most && taken <= most + (2L << 20) && wait < 200; wait++) {
      usleep(10000);
      taken = status_bytes("VmRSS") - before;
    }
    CHECK(taken <= most, "%zu bytes: %ld were taken", sizes[at], taken);
  }
}

enum { FEW_STEP = 24, FEW_LARGEST = 2000 };
static pthread_barrier_t filled;

// One block of each of many sizes, 82 KiB.
static void* fill(void* none) {
  static __thread void* volatile block;
  for (int size = FEW_LARGEST; size > 0; size -= FEW_STEP) memset(block = malloc(size), 1, size);
  pthread_barrier_wait(&filled);
  pthread_barrier_wait(&filled);
  return none;
}

// Replaces 40 blocks 400 times, each twentieth by one of up to 60,000 bytes; 78 KiB are left.
static void* replace(void* number) {
  char* kept[40] = {NULL};
  unsigned seed = (unsigned)(uintptr_t)number;
  for (int round = 0; round < 400; round++) {
    seed = seed * 1103515245 + 12345;
    const size_t size = 16 + (seed >> 16) % (round % 20 != 0 ? 2000 : 60000);
    char** const block = &kept[(seed >> 8) % 40];
    free(*block);
    memset(*block = malloc(size), 1, size);
  }
  pthread_barrier_wait(&filled);
  pthread_barrier_wait(&filled);
  for (int at = 0; at < 40; at++) free(kept[at]);
  return NULL;
}

// Returns the bytes that each of so many threads takes while all have done their work.
static long taken_by_each(size_t count, void* (*work)(void*), long most) {
  pthread_t threads[count];
  pthread_barrier_init(&filled, NULL, (unsigned)count + 1);
  const long before = status_bytes("RssAnon");
  for (size_t at = 0; at < count; at++) CHECK(!pthread_create(&threads[at], NULL, work, (void*)at), "no thread");
  pthread_barrier_wait(&filled);
  // Memory that waits goes after a second. On a busy machine more waits: more threads are at work.
  long taken = (status_bytes("RssAnon") - before) / (long)count;
  for (int wait = 0; taken > most && wait < 500; wait++) {
    usleep(10000);
    taken = (status_bytes("RssAnon") - before) / (long)count;
  }
  pthread_barrier_wait(&filled);
  for (size_t at = 0; at < count; at++) pthread_join(threads[at], NULL);
  return taken;
}

// Threads that have few blocks of each size, all at the same time.
static void few(void) {
  const long most = 150 << 10, taken = taken_by_each(40, fill, most);
  CHECK(taken <= most, "each thread took %ld bytes for 82 KiB", taken);
}

// Threads that have freed blocks of many sizes.
static void replaced(void) {
  const long most = 200 << 10, taken = taken_by_each(50, replace, most);
  CHECK(taken <= most, "each thread took %ld bytes for 78 KiB", taken);
}

static void print_usage(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  printf("%ld %ld\n", status_bytes("VmHWM"), usage.ru_minflt);
}

// Replaces one of `count` blocks of 84 to 512 KiB, over and over, and prints the peak in bytes and
// the page faults.
static void come_and_go(size_t count) {
  enum { REPLACED = 20000, LEAST = 84 << 10, MOST = 512 << 10 };
  char** const blocks = calloc(count, sizeof(char*));
  uint64_t random = 88172645463325252;
  for (size_t round = 0; round < REPLACED; round++) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    const size_t size = LEAST + (random >> 32) % (MOST - LEAST);
    char** const block = &blocks[round < count ? round : (random & UINT32_MAX) % count];
    free(*block);
    memset(*block = malloc(size), 1, size);
  }
  print_usage();
}

static void hundred(void) { come_and_go(100); }
static void hundreds(void) { come_and_go(300); }

// The compiler has to allocate what is stored here.
static char* volatile large_block;

// Touches one page of each MiB of a large block of zeros, over and over.
static void* touch_zeros(void* unused) {
  enum { BYTES = 200 << 20 };
  for (int round = 0; round < 10; round++) {
    char* const block = large_block = calloc(1, BYTES);
    for (size_t at = 0; at < BYTES; at += 1 << 20) block[at] = 1;
    CHECK(mallinfo2().hblkhd >= BYTES, "it does not count");
    free(block);
  }
  return unused;
}

// Does so, and prints the peak in bytes and the page faults.
static void zeros(void) {
  touch_zeros(NULL);
  print_usage();
}

// The same in a thread whose first block is one of zeros.
static void zeros_first(void) {
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, touch_zeros, NULL) == 0, "no thread");
  pthread_join(thread, NULL);
  print_usage();
}

// Fills a large block of zeros, and waits until most of it is on huge pages.
static void dense(void) {
  enum { BYTES = 512 << 20 };
  memset(large_block = calloc(1, BYTES), 1, BYTES);
  long huge = 0;
  for (int look = 0; look < 200 && huge < BYTES / 10 * 9; look++) {
    usleep(100000);
    huge = huge_bytes();
  }
  CHECK(huge >= BYTES / 10 * 9, "%ld bytes of %d are huge", huge, BYTES);
}

int main(int count, char** words) {
  static const Part parts[] = {{"classes", classes}, {"dense", dense}, {"few", few}, {"hundred", hundred}, {"hundreds", hundreds}, {"large", large}, {"pages", pages}, {"replaced", replaced}, {"together", together}, {"zeros", zeros}, {"zeros-first", zeros_first}, {NULL, NULL}};
  return run_part(count, words, parts);
}
