// A program of several parts; its first argument names the one to run. A failed check prints a line
// and ends it with status 1.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(holds, ...) do { if (!(holds)) { fprintf(stderr, __VA_ARGS__); fputc('\n', stderr); exit(1); } } while (0)

typedef struct {
  const char* name;
  void (*run)(void);
} Part;

// Runs the part that the program's first argument names; `parts` ends with a name of NULL.
static int run_part(int count, char** words, const Part* parts) {
  const char* const name = (count > 1 ? words[1] : "");
  while (parts->name != NULL && strcmp(parts->name, name) != 0) parts++;
  CHECK(parts->name != NULL, "no part '%s'", name);
  parts->run();
  return 0;
}

// Returns the number in a field of /proc/self/status, without its unit; -1 if there is none.
static long status(const char* field) {
  char line[256];
  long value = -1;
  FILE* const file = fopen("/proc/self/status", "r");
  CHECK(file != NULL, "no status");
  while (fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, field, strlen(field)) == 0) value = atol(line + strlen(field) + 1);
  }
  fclose(file);
  return value;
}

// Returns a field that is in kB, in bytes.
static long status_bytes(const char* field) {
  return status(field) << 10;
}

// Returns the bytes of AnonHugePages in smaps_rollup.
static long huge_bytes(void) {
  char line[256];
  long value = 0;
  FILE* const file = fopen("/proc/self/smaps_rollup", "r");
  CHECK(file != NULL, "no smaps_rollup");
  while (fgets(line, sizeof line, file) != NULL) sscanf(line, "AnonHugePages: %ld", &value);
  fclose(file);
  return value << 10;
}
