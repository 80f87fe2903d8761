// What a program can see of freed memory that waits to be used again. The argument names a part; a defect ends it with status 1
// and a line.

#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define CHECK(holds, ...) do { if (!(holds)) { fprintf(stderr, __VA_ARGS__); fputc('\n', stderr); exit(1); } } while (0)
enum { MIB = 1 << 20 };

static long status(const char* field) {
  char line[256];
  long kilobytes = -1;
  FILE* const file = fopen("/proc/self/status", "r");
  CHECK(file != NULL, "no status");
  while (fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, field, strlen(field)) == 0) kilobytes = atol(line + strlen(field) + 1);
  }
  fclose(file);
  return kilobytes << 10;
}

// Waits until so little is resident, and no thread but the program's own is there.
static void comes_down_to(long bytes) {
  for (int i = 0; i < 300 && (status("VmRSS") > bytes || status("Threads") >> 10 > 1); i++) usleep(100000);
  CHECK(status("VmRSS") <= bytes, "%ld bytes are resident, %ld would be right", status("VmRSS"), bytes);
  CHECK(status("Threads") >> 10 == 1, "%ld threads", status("Threads") >> 10);
}

// As a list or a string grows, by an eighth each time.
static void grows(void) {
  char* block = NULL;
  size_t size = 4096, written = 0;
  const long before = status("VmRSS");
  for (; size < 16 * MIB; size += size / 8) {
    block = realloc(block, size);
    CHECK(block != NULL, "no memory");
    memset(block + written, 1, size - written);
    written = size;
  }
  // The last block, the one before it, what always waits, and huge pages that are used in part.
  CHECK(status("VmHWM") - before < (long)(2 * written + 13 * MIB), "%ld bytes for a block of %zu", status("VmHWM") - before, written);
  for (size_t i = 0; i < written; i++) CHECK(block[i] == 1, "byte %zu was lost", i);
  free(block);
  comes_down_to(before + 9 * MIB);
}

static void rests(void) {
  enum { COUNT = 500000 };
  static char* blocks[COUNT];
  const long before = status("VmRSS");
  for (int i = 0; i < COUNT; i++) memset(blocks[i] = malloc(40 + i % 7 * 24), 1, 40);
  CHECK(status("VmRSS") - before > 50 * MIB, "the blocks take no memory");
  for (int i = 0; i < COUNT; i++) free(blocks[i]);
  comes_down_to(before + 14 * MIB);
}

// Two blocks at a time, as the temporaries of an expression over arrays.
static void again(void) {
  enum { SIZE = 12 * MIB, ROUNDS = 60 };
  char* const kept = memset(malloc(SIZE), 1, SIZE);
  struct rusage usage[2];
  long after_first = 0;
  for (int round = 0; round < ROUNDS; round++) {
    char* const one = memset(malloc(SIZE), round, SIZE);
    char* const two = memset(malloc(SIZE), round, SIZE);
    free(one);
    free(two);
    getrusage(RUSAGE_SELF, &usage[round > 2]);
    if (round == 2) after_first = usage[0].ru_minflt;
  }
  // Of base pages or huge ones: at most one round of them came anew.
  const long faults = usage[1].ru_minflt - after_first;
  CHECK(faults < 2 * SIZE / 4096, "%ld faults in %d rounds", faults, ROUNDS);
  free(kept);
}

// Blocks of ever other sizes, none of which fits where the ones before it were.
static void most(void) {
  const long before = status("VmRSS");
  enum { COUNT = 12 };
  char* blocks[COUNT];
  long in_use = 0;
  for (size_t size = 2 * MIB; size < 6 * MIB; size += MIB / 4) {
    for (int i = 0; i < COUNT; i++) memset(blocks[i] = malloc(size), 1, size);
    if (in_use < (long)size * COUNT) in_use = (long)size * COUNT;
    for (int i = 0; i < COUNT; i += 2) free(blocks[i]);
    for (int i = 1; i < COUNT; i += 2) free(blocks[i]);
  }
  const long most = status("VmHWM") - before;
  CHECK(most < in_use + in_use / 20 + 12 * MIB, "%ld bytes at most for %ld", most, in_use);
}

static void shrinks(void) {
  for (size_t size = 64; size < 4 * MIB; size += 1 + size / 3) {
    char* block = malloc(size);
    for (size_t i = 0; i < size; i++) block[i] = (char)(i % 127);
    const size_t less = size * 5 / 8;
    block = realloc(block, less);
    for (size_t i = 0; i < less; i++) CHECK(block[i] == (char)(i % 127), "byte %zu of %zu was lost", i, less);
    CHECK(malloc_usable_size(block) <= less + less / 4 + 16 || malloc_usable_size(block) <= less + 65536 && less > 65536,
          "%zu bytes shrunk to %zu still take %zu", size, less, malloc_usable_size(block));
    free(block);
  }
}

int main(int count, char** words) {
  const char* const part = (count > 1 ? words[1] : "");
  if (strcmp(part, "grows") == 0) grows();
  else if (strcmp(part, "rests") == 0) rests();
  else if (strcmp(part, "again") == 0) again();
  else if (strcmp(part, "most") == 0) most();
  else if (strcmp(part, "shrinks") == 0) shrinks();
  else CHECK(0, "no part '%s'", part);
  return 0;
}
