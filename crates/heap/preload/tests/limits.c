// Programs that live near a limit: of addresses, of writable or locked memory, of a control group.
#define _GNU_SOURCE
#include "parts.h"
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define MIB (1ul << 20)
// As many blocks as there are, of which it is then known how many.
#define FILLS(blocks, count, size) CHECK(fill(blocks, count, size) == (count), "no %d blocks of %zu KiB", (int)(count), (size_t)(size) >> 10)

static void limit(int resource, size_t bytes) {
  struct rlimit value = {bytes, bytes};
  CHECK(setrlimit(resource, &value) == 0, "no limit");
}

// Fills blocks, and answers the number that it got.
static size_t fill(void** blocks, size_t count, size_t size) {
  for (size_t i = 0; i < count; i++) {
    blocks[i] = malloc(size);
    if (blocks[i] == NULL) return i;
    memset(blocks[i], 1, size);
  }
  return count;
}

static void* run_thread(void* argument) { return argument; }

static void map(size_t bytes) {
  void* const mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(mapped != MAP_FAILED, "no mapping of %zu MiB", bytes / MIB);
}

// Under `ulimit -v`: blocks, one large block, a mapping and a thread.
static void addresses(void) {
  static void* blocks[100];
  pthread_t thread;
  FILLS(blocks, 100, MIB);
  map(48 * MIB);
  FILLS(blocks, 1, 30 * MIB);
  CHECK(pthread_create(&thread, NULL, run_thread, NULL) == 0 && pthread_join(thread, NULL) == 0, "no thread");
}

// The program sets the limit itself, when the heap has reserved what it has.
static void late(void) {
  static void* blocks[64];
  FILLS(blocks, 32, MIB);
  limit(RLIMIT_AS, 256 * MIB);
  map(100 * MIB);
  FILLS(blocks + 32, 32, MIB);
  map(16 * MIB);
}

// Freed blocks make room for other blocks.
static void data(void) {
  static void* blocks[1600];
  limit(RLIMIT_DATA, status_bytes("VmData") + 110 * MIB);
  for (int round = 0; round < 3; round++) {
    const size_t size = (round % 2 ? MIB : 64 << 10);
    const size_t count = 100 * MIB / size;
    FILLS(blocks, count, size);
    for (size_t i = 0; i < count; i++) free(blocks[i]);
  }
}

// Frees small blocks, and requests a large block of zeros that fits only after that.
static void zeros(void) {
  static void* blocks[128];
  FILLS(blocks, 128, MIB / 4);
  for (int i = 0; i < 128; i++) free(blocks[i]);
  char* const large = calloc(1, 100 * MIB);
  CHECK(large != NULL, "no 100 MiB");
  memset(large, 1, 100 * MIB);
}

// As a user who may lock what a small program uses, and less than the heap has reserved.
static void locked_now(void) {
  static void* blocks[32];
  struct rlimit lock;
  FILLS(blocks, 1, 100);
  CHECK(getrlimit(RLIMIT_MEMLOCK, &lock) == 0, "no limit");
  const bool much = (lock.rlim_max >= 64 * MIB);
  limit(RLIMIT_MEMLOCK, much ? 64 * MIB : lock.rlim_max);
  CHECK(geteuid() != 0 || setuid(65534) == 0, "no other user");
  CHECK(mlockall(MCL_CURRENT) == 0, "mlockall is refused");
  CHECK(status_bytes("VmLck") > (long)MIB, "nothing is locked");
  FILLS(blocks, 32, MIB / 4);
  CHECK(munlockall() == 0, "munlockall is refused");
  if (!much) return;
  CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0, "mlockall of what comes is refused");
  FILLS(blocks, 32, MIB / 8);
}

// As a user who may lock 8 MiB: all blocks that fit are locked, and can be freed.
static void locked_until_refused(void) {
  enum { MOST = 64 };
  static void* blocks[MOST];
  limit(RLIMIT_MEMLOCK, 8 * MIB);
  CHECK(geteuid() != 0 || setuid(65534) == 0, "no other user");
  CHECK(mlockall(MCL_FUTURE) == 0, "mlockall is refused");
  size_t got = fill(blocks, MOST, MIB / 4);
  CHECK(got > 8 && got < MOST, "%zu blocks", got);
  while (got > 0) free(blocks[--got]);
}

// As root: what the heap gets from then on is locked.
static void locked_later(void) {
  static void* blocks[256];
  FILLS(blocks, 1, 100);
  CHECK(mlockall(MCL_FUTURE) == 0, "mlockall is refused");
  FILLS(blocks, 256, MIB / 4);
  CHECK(status_bytes("VmLck") >= 64 * (long)MIB, "not all of 64 MiB is locked");
}

// And as huge as ever.
static void locked_huge(void) {
  locked_later();
  const long huge = huge_bytes();
  CHECK(huge >> 20 >= 48, "%ld MiB of 64 are huge", huge >> 20);
}

enum { SHARERS = 6 };
static pthread_barrier_t shared;

// Fills blocks of 20 KiB, frees them, and stays.
static void* fill_and_free(void* none) {
  enum { COUNT = 200 };
  void* blocks[COUNT];
  for (size_t got = fill(blocks, COUNT, 20 << 10); got > 0;) free(blocks[--got]);
  pthread_barrier_wait(&shared);
  pthread_barrier_wait(&shared);
  return none;
}

// Takes blocks of whole slices, where others were, until a limit refuses the next. To be run below
// a limit.
static void tight(void) {
  static void* blocks[4000];
  pthread_t threads[SHARERS];
  pthread_barrier_init(&shared, NULL, SHARERS + 1);
  for (int i = 0; i < SHARERS; i++) CHECK(pthread_create(&threads[i], NULL, fill_and_free, NULL) == 0, "no thread");
  pthread_barrier_wait(&shared);
  for (int round = 0; round < 24; round++) {
    size_t got = fill(blocks, 4000, (size_t)(1 + round) << 16);
    CHECK(got > 0 && got < 4000, "%zu blocks", got);
    while (got > 0) free(blocks[--got]);
  }
  pthread_barrier_wait(&shared);
  for (int i = 0; i < SHARERS; i++) pthread_join(threads[i], NULL);
}

static unsigned seed = 1;
static unsigned next(void) {
  seed = seed * 1103515245 + 12345;
  return seed >> 8;
}

// Fills, frees in the middle of what it has filled, and fills again with other sizes; then says the
// peak in KiB.
static void churn(void) {
  enum { BLOCKS = 200000 };
  void** const blocks = calloc(BLOCKS, sizeof *blocks);
  for (int round = 0; round < 4; round++) {
    for (int i = 0; i < BLOCKS; i++) {
      if (blocks[i] != NULL) continue;
      size_t size = (next() % 64 == 0 ? 4000 + next() % 30000 : 16 + next() % 600);
      blocks[i] = malloc(size);
      memset(blocks[i], 1, size);
    }
    // A buffer that is there for a moment.
    char* buffer = malloc(24 * MIB);
    memset(buffer, 1, 24 * MIB);
    free(buffer);
    for (int i = 0; i < BLOCKS && round < 3; i++) {
      if (next() % 3 == 0) free(blocks[i]), blocks[i] = NULL;
    }
  }
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  printf("%ld\n", usage.ru_maxrss);
}

int main(int count, char** words) {
  const Part parts[] = {
      {"addresses", addresses},       {"late", late},
      {"data", data},                 {"locked-now", locked_now},
      {"locked-later", locked_later}, {"locked-huge", locked_huge},
      {"churn", churn},               {"tight", tight},
      {"locked-until-refused", locked_until_refused},
      {"zeros", zeros},               {NULL, NULL},
  };
  return run_part(count, words, parts);
}
