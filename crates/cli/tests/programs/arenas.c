// A program that maps its memory itself. Its first argument names the task: see main. Ends with 3
// if all went well. It prints by write(2), and never calls malloc.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 4096, PAGE = 4096 };
static char* arenas[MOST];

static char* map(size_t size) {
  return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

// Writes its number to every page, or to one of `step`.
static void fill(char* arena, size_t size, size_t step, int number) {
  for (size_t at = 0; at < size; at += step * PAGE) *(size_t*)(arena + at) = at + number;
}

static void check(const char* arena, size_t size, size_t step, int number) {
  for (size_t at = 0; at < size; at += step * PAGE)
    if (*(size_t*)(arena + at) != at + number) _exit(8);
}

static void ready(void) {
  char byte;
  write(1, "ready\n", 6);
  while (read(0, &byte, 1) > 0) {}
}

// hold MIB KIB STEP: maps MIB MiB in arenas of KIB KiB, touches one page of STEP, and waits.
// fork MIB KIB STEP: the same, with a child that writes and maps more.
static int hold(const char* how, size_t total, size_t size, size_t step) {
  const int count = total / size;
  for (int i = 0; i < count; i++) {
    arenas[i] = map(size);
    if (arenas[i] == MAP_FAILED) return 9;
    fill(arenas[i], size, step, i);
  }
  if (how[0] == 'f') {
    const pid_t child = fork();
    if (child == 0) {
      for (int i = 0; i < count; i++) {
        check(arenas[i], size, step, i);
        fill(arenas[i], size, step, i + 1);
        char* const more = map(size);
        if (more == MAP_FAILED) _exit(9);
        for (size_t at = 0; at < size; at += PAGE) if (more[at] != 0) _exit(7);
        fill(more, size, step, i + 2);
        check(more, size, step, i + 2);
        check(arenas[i], size, step, i + 1);
      }
      _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return 6;
  }
  ready();
  for (int i = 0; i < count; i++) check(arenas[i], size, step, i);
  return 3;
}

static void* churn(void* argument) {
  const int own = (int)(long)argument;
  char* held[16] = {0};
  size_t sizes[16];
  for (int i = 0; i < 3000; i++) {
    const int at = (i * 7 + own) % 16;
    if (held[at] != NULL) {
      check(held[at], sizes[at], 8, own + at);
      munmap(held[at], sizes[at]);
    }
    sizes[at] = (size_t)(64 + 61 * (i % 40)) << 10;
    held[at] = map(sizes[at]);
    if (held[at] == MAP_FAILED) _exit(9);
    for (size_t page = 0; page < sizes[at]; page += 8 * PAGE) if (held[at][page] != 0) _exit(7);
    // The first ones are dense.
    if (i < 600) memset(held[at], 1, sizes[at]);
    fill(held[at], sizes[at], 8, own + at);
  }
  return NULL;
}

// Runs threads that map, check and unmap.
static int threads(void) {
  pthread_t running[16];
  for (long i = 0; i < 16; i++) if (pthread_create(&running[i], NULL, churn, (void*)i) != 0) return 9;
  for (int i = 0; i < 16; i++) pthread_join(running[i], NULL);
  return 3;
}

// Limits the address space to 64 MiB more. Prints how many arenas of 1 MiB fit, and checks that one
// that was unmapped can be mapped again.
static int limit(void) {
  enum { MIB = 1 << 20 };
  char text[64] = {0};
  // The library maps ahead after the first arenas: these come before the limit.
  int count = 0;
  for (; count < 12; count++) memset(arenas[count] = map(MIB), 1, MIB);
  const int statm = open("/proc/self/statm", O_RDONLY);
  if (read(statm, text, sizeof text - 1) <= 0) return 9;
  const rlim_t most = strtoul(text, NULL, 10) * PAGE + 64 * (rlim_t)MIB;
  const struct rlimit bounds = {most, most};
  if (setrlimit(RLIMIT_AS, &bounds) != 0) return 9;
  const int before = count;
  while (count < MOST && (arenas[count] = map(MIB)) != MAP_FAILED) memset(arenas[count++], 1, MIB);
  if (errno != ENOMEM) return 8;
  char said[64];
  write(1, said, snprintf(said, sizeof said, "%d arenas\n", count - before));
  munmap(arenas[before], MIB);
  return map(MIB) == MAP_FAILED ? 7 : 3;
}

// Checks that the kernel lists each arena as it was mapped.
static int maps(void) {
  enum { SIZE = 768 << 10, COUNT = 64 };
  for (int i = 0; i < COUNT; i++) memset(arenas[i] = map(SIZE), 1, SIZE);
  size_t seen[COUNT] = {0};
  FILE* const maps = fopen("/proc/self/maps", "r");
  char line[512], access[5];
  unsigned long from, to;
  while (fgets(line, sizeof line, maps) != NULL) {
    if (sscanf(line, "%lx-%lx %4s", &from, &to, access) != 3 || strcmp(access, "rw-p") != 0) continue;
    for (int i = 0; i < COUNT; i++) {
      const unsigned long start = (unsigned long)arenas[i], end = start + SIZE;
      const unsigned long low = from > start ? from : start, high = to < end ? to : end;
      if (low < high) seen[i] += high - low;
    }
  }
  for (int i = 0; i < COUNT; i++) if (seen[i] != SIZE) return 8;
  return 3;
}

int main(int argc, char** argv) {
  if (strcmp(argv[1], "threads") == 0) return threads();
  if (strcmp(argv[1], "limit") == 0) return limit();
  if (strcmp(argv[1], "maps") == 0) return maps();
  return hold(argv[1], strtoul(argv[2], NULL, 10) << 20, strtoul(argv[3], NULL, 10) << 10, strtoul(argv[4], NULL, 10));
}
