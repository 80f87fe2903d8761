// Tests the environments that the wrappers of exec pass on. exec.rs runs it under the address
// sanitizer.
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern char** environ;
void megapage_remember(const char* name, size_t name_length, const char* value);
int megapage_execve(const char* path, char* const* arguments, char* const* environment);

// In the library these go past the names that it exports.
void* megapage_system_mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset) {
  return mmap(address, size, protection, flags, fd, offset);
}
int megapage_system_munmap(void* address, size_t size) { return munmap(address, size); }
int megapage_system_mprotect(void* address, size_t size, int protection) { return mprotect(address, size, protection); }

static bool confined;

long megapage_call(long number, unsigned long a, unsigned long b, unsigned long c, unsigned long d) {
  // As in the library.
  if (confined) return -1;
  return syscall(number, a, b, c, d);
}

int main(int count, char** arguments) {
  confined = getenv("CONFINED") != NULL;
  if (count > 1) {
    for (char** variable = environ; *variable != NULL; variable++) puts(*variable);
    return 0;
  }
  static char full[4096 + 32] = "LD_PRELOAD=";
  memset(full + strlen(full), 'x', 4096);
  char* const twice[] = {"LD_PRELOAD=/a.so", "A=1", "LD_PRELOAD=/b.so", full, "LD_PRELOAD=/c.so:/d.so", "B=2", NULL};
  megapage_remember("MEGAPAGE_HEAP", 13, "2m");
  megapage_remember("LD_PRELOAD", 10, arguments[0]);
  char* const child[] = {arguments[0], "child", NULL};
  megapage_execve("/proc/self/exe", child, twice);
  perror("execve");
  return 1;
}
