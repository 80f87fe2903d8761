// A program that switches transparent huge pages off for itself. See parts.h.

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <errno.h>
#include "parts.h"

enum { SIZE = 96 << 20, HUGE = 2 << 20 };
// True if huge pages are expected: the second argument.
static int wanted;

static void switch_off(void) {
  CHECK(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 0, "they are off already");
  CHECK(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0, "not switched off: %s", strerror(errno));
  CHECK(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1, "the program is not told what it has set");
}

static void heap(void) {
  switch_off();
  for (int i = 0; i < SIZE / 1000; i++) memset(malloc(1000), 1, 1000);
  const long huge = huge_bytes();
  CHECK(wanted ? huge > SIZE / 10 * 8 : huge == 0, "%ld bytes are huge", huge);
}

static void mappings(void) {
  switch_off();
  char* const own = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(own != MAP_FAILED, "no memory");
  // Memory that the library has not judged yet is not huge.
  memset(own, 1, 4 * HUGE);
  CHECK(huge_bytes() == 0, "%ld bytes are huge at once", huge_bytes());
  memset(own, 1, SIZE);
  for (int i = 0; i < 100 && huge_bytes() < SIZE / 10 * 9; i++) usleep(wanted ? 100000 : 10000);
  const long huge = huge_bytes();
  CHECK(wanted ? huge >= SIZE / 10 * 9 : huge == 0, "%ld bytes are huge", huge);
}

static void other_uses(void) {
  char name[16] = "";
  switch_off();
  CHECK(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0) == 0, "not switched on: %s", strerror(errno));
  CHECK(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 0, "still off");
  CHECK(prctl(PR_SET_THP_DISABLE, 1, 64, 0, 0) == -1 && errno == EINVAL, "an unknown flag is taken");
  CHECK(prctl(PR_SET_NAME, "wishful", 0, 0, 0) == 0 && prctl(PR_GET_NAME, name, 0, 0, 0) == 0, "no name");
  CHECK(strcmp(name, "wishful") == 0, "the name is %s", name);
  errno = 0;
  CHECK(prctl(-5, 0, 0, 0, 0) == -1 && errno == EINVAL, "an unknown option is taken");
  switch_off();
  const pid_t child = fork();
  if (child == 0) _exit(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 1, "a child has %d", status);
}

int main(int count, char** words) {
  static const Part parts[] = {{"heap", heap}, {"mappings", mappings}, {"other_uses", other_uses}, {NULL, NULL}};
  wanted = (count > 2 && strcmp(words[2], "thp") == 0);
  return run_part(count, words, parts);
}
