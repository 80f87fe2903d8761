// Executes the command in its arguments by execvp(3), in a new root if the first is `-r DIRECTORY`.
// As `executed`, it ends with 3 if the library is here or named in the environment, else with 4.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char** words) {
  if (count > 3 && strcmp(words[1], "-r") == 0) {
    if (chroot(words[2]) != 0 || chdir("/") != 0) return 98;
    words += 2;
    count -= 2;
  }
  if (count > 1 && strcmp(words[1], "look") != 0) {
    execvp(words[1], words + 1);
    perror(words[1]);
    return 99;
  }
  if (getenv("LD_PRELOAD") != NULL) return 3;
  char line[512];
  FILE* const maps = fopen("/proc/self/maps", "r");
  int found = 0;
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL) found |= (strstr(line, "libmegapage.so") != NULL);
  return found ? 3 : 4;
}
