// Functions of the C library that are wrapped so that the allocator stays whole: dlopen and the exec family.
// They are C because some are variadic, and because dlopen must be left by a tail call.

#define _GNU_SOURCE
#include <alloca.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

extern char** environ;

// ---- dlopen -------------------------------------------------------------------------------------------

static void* (*real_dlopen)(const char*, int);
void megapage_find_real(void);

// RTLD_DEEPBIND lets a library find the C library's free before ours, and hand it our memory: PHP's
// extensions die of that. A tail call keeps the caller's return address, by which dlopen finds its RUNPATH.
__attribute__((optimize("O2"))) void* megapage_dlopen(const char* file, int flags) {
  // The constructors of libraries that the program needs run before ours.
  if (real_dlopen == NULL) megapage_find_real();
  return real_dlopen(file, flags & ~RTLD_DEEPBIND);
}

// ---- exec ---------------------------------------------------------------------------------------------
// The environment that brought the library here was taken out, so that children go without. A process that
// replaces itself (a wrapper script's last line) is still the program that was asked for: it takes it along.

enum { MAX_SAVED = 12, MAX_TEXT = 4096 };
static char saved_text[MAX_TEXT];
static char* saved[MAX_SAVED];
static int saved_count;
static size_t saved_length;
static pid_t saved_pid;

static int (*real_execve)(const char*, char* const*, char* const*);
static int (*real_execvpe)(const char*, char* const*, char* const*);
static int (*real_fexecve)(int, char* const*, char* const*);

static const char preload_name[] = "LD_PRELOAD=";

// Looks the real functions up. Before any thread exists.
void megapage_find_real(void) {
  real_dlopen = (void* (*)(const char*, int))dlsym(RTLD_NEXT, "dlopen");
  real_execve = (int (*)(const char*, char* const*, char* const*))dlsym(RTLD_NEXT, "execve");
  real_execvpe = (int (*)(const char*, char* const*, char* const*))dlsym(RTLD_NEXT, "execvpe");
  real_fexecve = (int (*)(int, char* const*, char* const*))dlsym(RTLD_NEXT, "fexecve");
}

// Remembers "name=value" for this process's next exec. One that does not fit is not remembered.
void megapage_remember(const char* name, size_t name_length, const char* value) {
  const size_t length = name_length + 1 + strlen(value) + 1;
  if (saved_count == MAX_SAVED || length > MAX_TEXT - saved_length) return;
  char* const text = saved_text + saved_length;
  saved[saved_count++] = text;
  saved_length += length;
  memcpy(text, name, name_length);
  text[name_length] = '=';
  strcpy(text + name_length + 1, value);
  saved_pid = getpid();
}

// Whether the program would be loaded by glibc's loader. A static one would only pass the variables on to its
// children, and another C library's loader may refuse ours. A script's interpreter is taken for one.
static bool is_for_glibc(int fd) {
  Elf64_Ehdr header;
  if (pread(fd, &header, sizeof header, 0) != sizeof header || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return true;
  }
  for (int i = 0; i < header.e_phnum; i++) {
    Elf64_Phdr segment;
    const off_t offset = (off_t)(header.e_phoff + (size_t)i * header.e_phentsize);
    if (pread(fd, &segment, sizeof segment, offset) != sizeof segment) return true;
    if (segment.p_type != PT_INTERP) continue;
    char loader[256] = {0};
    pread(fd, loader, sizeof loader - 1, (off_t)segment.p_offset);
    return strstr(loader, "ld-linux") != NULL;
  }
  return false;
}

static bool takes_along(const char* path) {
  if (real_execve == NULL) megapage_find_real();
  // A child of vfork shares our memory but not our process id.
  if (saved_count == 0 || getpid() != saved_pid) return false;
  if (path == NULL) return true;
  const int error = errno;
  // Not to wait for the other end of a pipe that cannot be executed anyway.
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const bool taken = fd < 0 || is_for_glibc(fd);
  if (fd >= 0) close(fd);
  errno = error;
  return taken;
}

static size_t count(char* const* list) {
  size_t n = 0;
  while (list != NULL && list[n] != NULL) n++;
  return n;
}

// Fills `extended` with the variables that were taken out and then `environment`, less what they replace.
// `list` has MAX_TEXT bytes for the libraries of other LD_PRELOADs, one or more, after ours: what does not fit is left out.
static void extend(char** extended, char* list, char* const* environment) {
  size_t n = 0;
  size_t preload = 0;
  for (int i = 0; i < saved_count; i++) {
    if (strncmp(saved[i], preload_name, sizeof preload_name - 1) == 0) preload = n + 1;
    extended[n++] = saved[i];
  }
  // Bytes in `list`, without the terminating null.
  size_t length = 0;
  for (; environment != NULL && *environment != NULL; environment++) {
    if (preload > 0 && strncmp(*environment, preload_name, sizeof preload_name - 1) == 0) {
      const char* const theirs = *environment + sizeof preload_name - 1;
      const size_t more = strlen(theirs);
      if (length == 0) {
        length = strlen(extended[preload - 1]);
        memcpy(list, extended[preload - 1], length + 1);
      }
      if (length + 1 + more + 1 <= MAX_TEXT) {
        list[length] = ':';
        memcpy(list + length + 1, theirs, more + 1);
        length += 1 + more;
        extended[preload - 1] = list;
      }
      continue;
    }
    extended[n++] = *environment;
  }
  extended[n] = NULL;
}

#define EXTENDED(environment)                                                            \
  char** const extended = alloca((count(environment) + MAX_SAVED + 1) * sizeof(char*)); \
  char* const list = alloca(MAX_TEXT);                                                   \
  extend(extended, list, environment)

int megapage_execve(const char* path, char* const* arguments, char* const* environment) {
  if (!takes_along(path)) return real_execve(path, arguments, environment);
  EXTENDED(environment);
  return real_execve(path, arguments, extended);
}

int megapage_execvpe(const char* file, char* const* arguments, char* const* environment) {
  if (!takes_along(strchr(file, '/') != NULL ? file : NULL)) return real_execvpe(file, arguments, environment);
  EXTENDED(environment);
  return real_execvpe(file, arguments, extended);
}

int megapage_fexecve(int fd, char* const* arguments, char* const* environment) {
  if (!takes_along(NULL) || !is_for_glibc(fd)) return real_fexecve(fd, arguments, environment);
  EXTENDED(environment);
  return real_fexecve(fd, arguments, extended);
}

int megapage_execv(const char* path, char* const* arguments) {
  return megapage_execve(path, arguments, environ);
}

int megapage_execvp(const char* file, char* const* arguments) {
  return megapage_execvpe(file, arguments, environ);
}

// Gathers variadic arguments, of which `first` is one, into `arguments`; `rest` is left after the final null.
#define GATHER(first)                                                     \
  va_list rest;                                                           \
  size_t n = 1;                                                           \
  va_start(rest, first);                                                  \
  if (first != NULL) while (va_arg(rest, char*) != NULL) n++;             \
  va_end(rest);                                                           \
  char** const arguments = alloca((n + 1) * sizeof(char*));               \
  arguments[0] = (char*)first;                                            \
  va_start(rest, first);                                                  \
  for (size_t i = 1; first != NULL && i <= n; i++) arguments[i] = va_arg(rest, char*)

int megapage_execl(const char* path, const char* first, ...) {
  GATHER(first);
  va_end(rest);
  return megapage_execve(path, arguments, environ);
}

int megapage_execlp(const char* file, const char* first, ...) {
  GATHER(first);
  va_end(rest);
  return megapage_execvpe(file, arguments, environ);
}

int megapage_execle(const char* path, const char* first, ...) {
  GATHER(first);
  char* const* const environment = va_arg(rest, char* const*);
  va_end(rest);
  return megapage_execve(path, arguments, environment);
}
