// Prints if the library is loaded, the value of its variable, and if any of a heap of 64 MiB is on
// huge pages.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long field(const char* file, const char* name) {
  char line[512];
  long found = 0, value;
  FILE* const in = fopen(file, "r");
  if (in == NULL) return -1;
  while (fgets(line, sizeof line, in) != NULL) {
    if (strstr(line, name) == NULL) continue;
    found += sscanf(line + strlen(name), "%ld", &value) == 1 ? value : 1;
  }
  fclose(in);
  return found;
}

int main(void) {
  const char* const heap = getenv("MEGAPAGE_HEAP");
  const long loaded = field("/proc/self/maps", "libmegapage.so");
  for (int i = 0; i < 64; i++) memset(malloc(1 << 20), 1, 1 << 20);
  const long huge = field("/proc/self/smaps_rollup", "AnonHugePages:");
  printf("%s, variable %s, %s\n", loaded > 0 ? "loaded" : "absent", heap != NULL ? heap : "gone",
         huge > 0 ? "huge" : huge == 0 ? "base" : "unknown");
  return 0;
}
