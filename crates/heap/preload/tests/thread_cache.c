// Effects of the cache of freed blocks on a program. See parts.h.

#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>
#include "parts.h"

enum { LARGEST = 1100, BLOCKS = 64 };

static void order(void) {
  for (size_t size = 1; size <= 1024; size++) {
    char* const first = malloc(size);
    char* const second = malloc(size);
    free(first);
    free(second);
    char* const third = malloc(size);
    CHECK(third == second, "%zu bytes: not the block that was freed last", size);
    char* const fourth = malloc(size);
    CHECK(fourth == first, "%zu bytes: not the block that was freed before it", size);
    free(third);
    free(fourth);
  }
}

// Blocks of all sizes, filled, freed in another order and asked for again: none overlaps another.
static void sizes(void) {
  static unsigned char* blocks[LARGEST];
  uint64_t state = 1;
  for (int round = 0; round < 200; round++) {
    for (size_t i = 0; i < LARGEST; i++) {
      const size_t size = (round % 2 == 0 ? i : LARGEST - 1 - i);
      // A third aligned by itself, a third zeroed.
      const size_t alignment = (size_t)16 << (i % 5);
      blocks[i] = (i % 3 == 0 ? aligned_alloc(alignment, size) : i % 3 == 1 ? calloc(1, size) : malloc(size));
      CHECK(blocks[i] != NULL, "no memory");
      CHECK(malloc_usable_size(blocks[i]) >= size, "%zu bytes: only %zu can be used", size, malloc_usable_size(blocks[i]));
      CHECK((uintptr_t)blocks[i] % (i % 3 == 0 ? alignment : size < 16 ? 8 : 16) == 0, "%zu bytes: not aligned", size);
      for (size_t j = 0; i % 3 == 1 && j < size; j++) CHECK(blocks[i][j] == 0, "%zu bytes of calloc: not zero", size);
      memset(blocks[i], (int)(i % 251), size);
    }
    for (size_t i = 0; i < LARGEST; i++) {
      const size_t size = (round % 2 == 0 ? i : LARGEST - 1 - i);
      for (size_t j = 0; j < size; j++) CHECK(blocks[i][j] == i % 251, "%zu bytes: another block wrote there", size);
    }
    for (size_t i = LARGEST; i > 1; i--) {
      state = state * 6364136223846793005 + 1442695040888963407;
      const size_t j = (state >> 33) % i;
      unsigned char* const block = blocks[j];
      blocks[j] = blocks[i - 1];
      free(block);
    }
    free(blocks[0]);
  }
}

static void* fill_and_end(void* unused) {
  void* blocks[40];
  for (size_t size = 16; size <= 1024; size += 16) {
    for (int i = 0; i < 40; i++) blocks[i] = memset(malloc(size), 1, size);
    for (int i = 0; i < 40; i++) free(blocks[i]);
  }
  return unused;
}

static void ends(void) {
  long before = 0;
  for (int i = 0; i < 3000; i++) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, fill_and_end, NULL) == 0, "no thread");
    pthread_join(thread, NULL);
    if (i == 100) before = status_bytes("VmRSS");
  }
  // Lost, the blocks of a thread would be 100 KiB.
  CHECK(status_bytes("VmRSS") - before < 32 << 20, "2,900 threads left %ld bytes behind", status_bytes("VmRSS") - before);
}

static unsigned char* handed[BLOCKS * 16];

static void* free_handed(void* unused) {
  for (int i = 0; i < BLOCKS * 16; i++) {
    for (int j = 0; j < 16 + i; j++) CHECK(handed[i][j] == i % 251, "block %d was written to", i);
    free(handed[i]);
  }
  return unused;
}

static void handed_over(void) {
  for (int round = 0; round < 100; round++) {
    for (int i = 0; i < BLOCKS * 16; i++) handed[i] = memset(malloc(16 + i), i % 251, 16 + i);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, free_handed, NULL) == 0, "no thread");
    pthread_join(thread, NULL);
  }
}

static void child(void) {
  void* blocks[BLOCKS];
  for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(48);
  for (int i = 0; i < 8; i++) free(blocks[i]);
  const pid_t pid = fork();
  CHECK(pid >= 0, "no child");
  // Both use what was kept when the child was made.
  unsigned char* mine[BLOCKS];
  for (int i = 0; i < BLOCKS; i++) mine[i] = memset(malloc(48), pid == 0, 48);
  for (int i = 8; i < BLOCKS; i++) free(blocks[i]);
  for (int i = 0; i < BLOCKS; i++) {
    for (int j = 0; j < 48; j++) CHECK(mine[i][j] == (pid == 0), "the %s's block was written to", pid == 0 ? "child" : "parent");
    free(mine[i]);
  }
  if (pid == 0) _exit(0);
  int status;
  CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the child ended with status %d", status);
}

int main(int count, char** words) {
  static const Part parts[] = {
    {"order", order}, {"sizes", sizes}, {"ends", ends}, {"handed-over", handed_over}, {"child", child}, {NULL, NULL},
  };
  return run_part(count, words, parts);
}
