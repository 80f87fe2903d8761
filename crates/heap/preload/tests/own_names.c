// A program whose own functions have names of the C library's, which never calls them. A stranger
// that does ends it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// As declared in headers that this does not include.
void* mmap(void* address, unsigned long size, int protection, int flags, int fd, long offset);
enum { READ_WRITE = 3, PRIVATE_ANONYMOUS = 0x22 };

static int stranger(const char* name) {
  fprintf(stderr, "%s was called by a stranger\n", name);
  exit(42);
}
#define OWN(name) int name() { return stranger(#name); }
OWN(open) OWN(open64) OWN(read) OWN(pread) OWN(close) OWN(syscall) OWN(madvise) OWN(fcntl) OWN(ioctl) OWN(getpid) OWN(gettid)
OWN(sysinfo) OWN(sysconf) OWN(fstat) OWN(clock_gettime) OWN(clock_nanosleep) OWN(nanosleep) OWN(usleep) OWN(prctl) OWN(access)
OWN(getrusage) OWN(sched_yield) OWN(getsockopt) OWN(pthread_mutex_trylock) OWN(pthread_sigmask) OWN(pthread_create) OWN(mremap)

int main(void) {
  char* blocks[200];
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < 200; i++) memset(blocks[i] = malloc(1 << 20), 1, 1 << 20);
    for (int i = 0; i < 100; i++) memset(mmap(0, 1 << 20, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0), 1, 1 << 20);
    for (int i = 0; i < 200; i++) free(blocks[i]);
    // Threads of the library's come to look.
    for (volatile long i = 0; i < 700000000; i++) {}
  }
  return 0;
}
