// Effects of freed memory that waits for reuse on a program. See parts.h.

#include <malloc.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "parts.h"

enum { MIB = 1 << 20 };

// memset(3) that the compiler keeps, also where the block is freed next.
static void* fill(void* block, int byte, size_t size) {
  memset(block, byte, size);
  __asm__ volatile("" : : "r"(block) : "memory");
  return block;
}

// Waits until so little is resident, and no thread but the program's own is there.
static void comes_down_to(long bytes) {
  for (int i = 0; i < 300 && (status_bytes("VmRSS") > bytes || status("Threads") > 1); i++) usleep(100000);
  CHECK(status_bytes("VmRSS") <= bytes, "%ld bytes are resident, %ld would be right", status_bytes("VmRSS"), bytes);
  CHECK(status("Threads") == 1, "%ld threads", status("Threads"));
}

// As a list or a string grows, by an eighth each time.
static void grows(void) {
  char* block = NULL;
  size_t size = 4096, written = 0;
  const long before = status_bytes("VmRSS");
  for (; size < 16 * MIB; size += size / 8) {
    block = realloc(block, size);
    CHECK(block != NULL, "no memory");
    fill(block + written, 1, size - written);
    written = size;
  }
  // The last block, the one before it, what always waits, and huge pages that are used in part.
  CHECK(status_bytes("VmHWM") - before < (long)(2 * written + 13 * MIB), "%ld bytes for a block of %zu", status_bytes("VmHWM") - before, written);
  for (size_t i = 0; i < written; i++) CHECK(block[i] == 1, "byte %zu was lost", i);
  free(block);
  comes_down_to(before + 9 * MIB);
}

static void rests(void) {
  enum { COUNT = 500000 };
  static char* blocks[COUNT];
  const long before = status_bytes("VmRSS");
  for (int i = 0; i < COUNT; i++) fill(blocks[i] = malloc(40 + i % 7 * 24), 1, 40);
  CHECK(status_bytes("VmRSS") - before > 50 * MIB, "the blocks take no memory");
  for (int i = 0; i < COUNT; i++) free(blocks[i]);
  comes_down_to(before + 14 * MIB);
}

// Returns the number of threads without a call of malloc: each thread is a directory.
static long threads(void) {
  struct stat tasks;
  CHECK(stat("/proc/self/task", &tasks) == 0, "no /proc/self/task");
  return (long)tasks.st_nlink - 2;
}

// Frees a large block in a program that allocates only from its thread's cache afterwards.
static void kept(void) {
  enum { SIZE = 40 * MIB };
  char* const block = fill(malloc(SIZE), 1, SIZE);
  free(fill(malloc(32), 1, 32));
  for (int i = 0; i < 300 && threads() > 1; i++) usleep(100000);
  CHECK(threads() == 1, "%ld threads before anything was freed", threads());
  free(block);
  CHECK(threads() == 1, "free has started a thread");
  free(fill(malloc(32), 1, 32));
  CHECK(threads() == 2, "no thread purges what was freed");
}

// Allocates two blocks at a time, as the temporaries of an expression over arrays. Memory that went
// back to the kernel comes again as zeros.
static void again_of(size_t size) {
  enum { ROUNDS = 60 };
  char* const kept = fill(malloc(size), 1, size);
  int came_again = 0;
  for (int round = 0; round < ROUNDS; round++) {
    // Read as they come.
    volatile char* const one = malloc(size);
    volatile char* const two = malloc(size);
    for (size_t at = MIB; at < size && round > 2; at += MIB) came_again += (one[at] == 0) + (two[at] == 0);
    fill((char*)one, 1, size);
    fill((char*)two, 1, size);
    free((char*)one);
    free((char*)two);
  }
  // The delay may pass once, on a slow machine.
  CHECK((size_t)came_again <= 2 * size / MIB, "%d MiB in %d rounds came again", came_again, ROUNDS);
  free(kept);
}

static void again(void) {
  again_of(12 * MIB);
}

// glibc maps such blocks singly, and returns each at once. Small machines do too (src/waiting.c).
static void arrays(void) {
  again_of(40 * MIB);
}

// A block that fits none of the holes which wait between others.
static void most(void) {
  enum { COUNT = 8, SIZE = 10 * MIB, LARGE = 30 * MIB };
  const long before = status_bytes("VmRSS");
  char* blocks[COUNT];
  for (int i = 0; i < COUNT; i++) blocks[i] = fill(malloc(SIZE), 1, SIZE);
  for (int i = 0; i < COUNT; i += 2) free(blocks[i]);
  char* const large = fill(malloc(LARGE), 1, LARGE);
  const long most = status_bytes("VmHWM") - before;
  CHECK(most < COUNT * SIZE + COUNT * SIZE / 20 + 12 * MIB, "%ld bytes at most for %d", most, COUNT * SIZE);
  for (int i = 1; i < COUNT; i += 2) free(blocks[i]);
  free(large);
}

// A large array that grows is never in memory twice.
static void moves(void) {
  enum { LAST = 96 * MIB };
  const long before = status_bytes("VmRSS");
  char* block = NULL;
  size_t written = 0;
  for (size_t size = 6 * MIB; size <= LAST; size *= 2) {
    block = realloc(block, size);
    CHECK(block != NULL, "no memory");
    for (size_t at = 0; at < written; at += 4096) CHECK(block[at] == (char)(at >> 12) , "byte %zu was lost", at);
    for (size_t at = written; at < size; at += 4096) block[at] = (char)(at >> 12);
    written = size;
  }
  CHECK(status_bytes("VmHWM") - before < LAST + 16 * MIB, "%ld bytes for a block of %d", status_bytes("VmHWM") - before, LAST);
  free(block);
}

static void shrinks(void) {
  for (size_t size = 64; size < 4 * MIB; size += 1 + size / 3) {
    char* block = malloc(size);
    for (size_t i = 0; i < size; i++) block[i] = (char)(i % 127);
    const size_t less = size * 5 / 8;
    // An empty page that is kept serves smaller blocks, too.
    malloc_trim(0);
    block = realloc(block, less);
    for (size_t i = 0; i < less; i++) CHECK(block[i] == (char)(i % 127), "byte %zu of %zu was lost", i, less);
    CHECK(malloc_usable_size(block) <= less + less / 4 + 16 || malloc_usable_size(block) <= less + 65536 && less > 65536,
          "%zu bytes shrunk to %zu still take %zu", size, less, malloc_usable_size(block));
    free(block);
  }
}

// Replaces 10 blocks of up to 300,000 bytes, at random: 3 MiB at once.
static void random_sizes(void) {
  enum { BLOCKS = 10, LARGEST = 300000, TIMES = 20000 };
  static char* blocks[BLOCKS];
  unsigned seed = 1;
  struct rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  const long resident = status_bytes("VmRSS");
  for (int i = 0; i < TIMES; i++) {
    seed = seed * 1103515245 + 12345;
    const size_t size = 16 + (seed >> 12) % LARGEST;
    char** const block = &blocks[(seed >> 8) % BLOCKS];
    free(*block);
    *block = fill(malloc(size), 1, size);
  }
  getrusage(RUSAGE_SELF, &after);
  const long faults = after.ru_minflt - before.ru_minflt, taken = status_bytes("VmHWM") - resident;
  CHECK(taken < 8 * MIB, "%ld bytes for 3 MiB", taken);
  // Each time 37 pages are written to.
  CHECK(faults < 2L * TIMES, "%ld page faults for %d blocks", faults, TIMES);
}

int main(int count, char** words) {
  static const Part parts[] = {
    {"grows", grows}, {"rests", rests}, {"kept", kept}, {"again", again}, {"arrays", arrays}, {"most", most}, {"moves", moves}, {"shrinks", shrinks}, {"random", random_sizes},
    {NULL, NULL},
  };
  return run_part(count, words, parts);
}
