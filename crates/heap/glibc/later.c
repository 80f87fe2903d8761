// Functions that newer C libraries define and glibc 2.17 does not. Each is hidden: it serves our
// library, with Rust's standard library in it, and never the program. They are linked as an
// archive, as is glibc's own libc_nonshared.a, so that only those that are called get in. They are
// weak: a library may have its own (names.rs of crates/kernel/inside). No header declares them
// here, since older headers define some inline.

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/syscall.h>

#define HIDDEN __attribute__((visibility("hidden"), weak))

static long call(long number, long a, long b, long c, long d) {
#if defined(__x86_64__)
  register long fourth __asm__("r10") = d;
  long answer;
  __asm__ volatile("syscall"
                   : "=a"(answer)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                   : "rcx", "r11", "memory");
  return answer;
#elif defined(__aarch64__)
  register long first __asm__("x0") = a;
  register long second __asm__("x1") = b;
  register long third __asm__("x2") = c;
  register long fourth __asm__("x3") = d;
  register long which __asm__("x8") = number;
  __asm__ volatile("svc 0" : "+r"(first) : "r"(second), "r"(third), "r"(fourth), "r"(which) : "memory");
  return first;
#endif
}

static int answered(long answer) {
  if (answer >= 0) return (int)answer;
  errno = (int)-answer;
  return -1;
}

// The kernel's struct stat is the C library's on both architectures. Since glibc 2.33.
HIDDEN int fstat(int fd, void* to) { return answered(call(SYS_fstat, fd, (long)to, 0, 0)); }
HIDDEN int fstat64(int fd, void* to) { return fstat(fd, to); }

HIDDEN int stat64(const char* path, void* to) {
  return answered(call(SYS_newfstatat, AT_FDCWD, (long)path, (long)to, 0));
}

HIDDEN int lstat64(const char* path, void* to) {
  return answered(call(SYS_newfstatat, AT_FDCWD, (long)path, (long)to, AT_SYMLINK_NOFOLLOW));
}

// Since glibc 2.30.
HIDDEN int gettid(void) { return (int)call(SYS_gettid, 0, 0, 0, 0); }
