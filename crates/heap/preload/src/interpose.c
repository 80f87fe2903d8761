// Functions of the C library that are wrapped so that the allocator stays whole: dlopen and the
// exec family. They are C because some are variadic, and because dlopen must be left by a tail
// call.

#define _GNU_SOURCE
#include <alloca.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern char** environ;

// System calls by names that this library does not export for the program. Defined in
// primitives.rs.
extern void* megapage_system_mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset);
extern int megapage_system_munmap(void* address, size_t size);
extern int megapage_system_mprotect(void* address, size_t size, int protection);
// Returns -1 once the program may have forbidden itself system calls.
extern long megapage_call(long number, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d);

// ---- dlopen -----------------------------------------------------------------------------------
// RTLD_DEEPBIND lets a library find the C library's malloc and free before ours. It would hand our
// memory to a free that does not know it, and PHP's extensions die of that. The program has asked
// for all else that the library finds there first, so the flag stays. Instead the C library's own
// table of symbols leads to our functions from then on.

static void* (*real_dlopen)(const char*, int);
void megapage_find_real(void);

static const struct {
  const char* name;
  void* function;
} ours[] = {
  {"aligned_alloc", aligned_alloc},
  {"calloc", calloc},
  {"free", free},
  {"malloc", malloc},
  {"malloc_trim", malloc_trim},
  {"malloc_usable_size", malloc_usable_size},
  {"memalign", memalign},
  {"posix_memalign", posix_memalign},
  {"pvalloc", pvalloc},
  {"realloc", realloc},
  {"reallocarray", reallocarray},
  {"valloc", valloc},
};
enum { OURS = sizeof ours / sizeof ours[0] };

typedef struct {
  const ElfW(Sym)* symbols;
  const char* names;
  size_t count;
  ElfW(Addr) base;
} symbols_t;

// Returns the number of symbols, by the table in which the loader looks them up.
static size_t symbol_count(const uint32_t* hash) {
  const uint32_t buckets = hash[0];
  const uint32_t first = hash[1];
  const uint32_t* const bucket = hash + 4 + hash[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t* const chain = bucket + buckets;
  uint32_t last = 0;
  for (uint32_t i = 0; i < buckets; i++) {
    if (bucket[i] > last) last = bucket[i];
  }
  if (last < first) return 0;
  while ((chain[last - first] & 1) == 0) last++;
  return last + 1;
}

static int find_c_library(struct dl_phdr_info* object, size_t size, void* found) {
  (void)size;
  const char* const slash = strrchr(object->dlpi_name, '/');
  if (slash == NULL || strcmp(slash + 1, "libc.so.6") != 0) return 0;
  const ElfW(Dyn)* entry = NULL;
  for (int i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr)* const segment = &object->dlpi_phdr[i];
    if (segment->p_type == PT_DYNAMIC) entry = (const ElfW(Dyn)*)(object->dlpi_addr + segment->p_vaddr);
  }
  symbols_t* const symbols = found;
  for (; entry != NULL && entry->d_tag != DT_NULL; entry++) {
    // The loader has turned most values into addresses.
    const ElfW(Addr) value = entry->d_un.d_ptr;
    const void* const at = (const void*)(value < object->dlpi_addr ? value + object->dlpi_addr : value);
    if (entry->d_tag == DT_SYMTAB) symbols->symbols = at;
    if (entry->d_tag == DT_STRTAB) symbols->names = at;
    if (entry->d_tag == DT_GNU_HASH) symbols->count = symbol_count(at);
  }
  symbols->base = object->dlpi_addr;
  return 1;
}

// Returns false if malloc is the program's own, or another library's: then a free of the C
// library's never meets our memory.
static bool is_malloc_ours(void) {
  // Bounds of this library, which the linker defines.
  extern const char __ehdr_start[] __attribute__((visibility("hidden")));
  extern const char _end[] __attribute__((visibility("hidden")));
  return (uintptr_t)malloc >= (uintptr_t)__ehdr_start && (uintptr_t)malloc < (uintptr_t)_end;
}

// Makes the table lead to our functions. Returns false if it is not found, or if the kernel refuses
// to change it.
static bool change_table(void) {
  symbols_t found = {0};
  dl_iterate_phdr(find_c_library, &found);
  if (found.symbols == NULL || found.names == NULL || found.count == 0) return false;
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  const uintptr_t start = (uintptr_t)found.symbols & -page;
  const uintptr_t end = ((uintptr_t)(found.symbols + found.count) + page - 1) & -page;
  // The mapping is private, of a file: only this process sees what is written there.
  if (megapage_system_mprotect((void*)start, end - start, PROT_READ | PROT_WRITE) != 0) return false;
  for (size_t i = 0; i < found.count; i++) {
    ElfW(Sym)* const symbol = (ElfW(Sym)*)found.symbols + i;
    if (symbol->st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol->st_info) != STT_FUNC) continue;
    for (size_t j = 0; j < OURS; j++) {
      // Values are relative to the beginning of the library.
      if (strcmp(found.names + symbol->st_name, ours[j].name) == 0) symbol->st_value = (uintptr_t)ours[j].function - found.base;
    }
  }
  megapage_system_mprotect((void*)start, end - start, PROT_READ);
  return true;
}

// Returns true if a library may look for malloc and its relatives in the C library first.
static bool may_bind_deeply(void) {
  enum { NOT_TRIED, UNDER_WAY, POSSIBLE, REFUSED };
  static _Atomic(int) state = NOT_TRIED;
  int expected = NOT_TRIED;
  if (atomic_compare_exchange_strong(&state, &expected, UNDER_WAY)) {
    state = (!is_malloc_ours() || change_table() ? POSSIBLE : REFUSED);
  }
  while (state == UNDER_WAY) sched_yield();
  return state == POSSIBLE;
}

// A tail call keeps the caller's return address, by which dlopen finds the caller's RUNPATH.
__attribute__((optimize("O2"))) void* megapage_dlopen(const char* file, int flags) {
  // The constructors of libraries that the program needs run before ours.
  if (real_dlopen == NULL) megapage_find_real();
  if ((flags & RTLD_DEEPBIND) != 0 && !may_bind_deeply()) flags &= ~RTLD_DEEPBIND;
  return real_dlopen(file, flags);
}

// ---- exec -------------------------------------------------------------------------------------
// The environment that brought the library here was taken out, so that children go without it. A
// process that replaces itself (a wrapper script's last line) is still the program that was asked
// for. It takes the environment along if the new program's loader will load the library. All of
// this may run in a signal handler.

enum { MAX_SAVED = 12, MAX_TEXT = 4096, MAX_PATH = 4096, MAX_NAME = 256 };
static char saved_text[MAX_TEXT];
static char* saved[MAX_SAVED];
static int saved_count;
static size_t saved_length;
static pid_t saved_pid;

static int (*real_execve)(const char*, char* const*, char* const*);
static int (*real_execvpe)(const char*, char* const*, char* const*);
static int (*real_fexecve)(int, char* const*, char* const*);

static const char preload_name[] = "LD_PRELOAD=";

// Looks up the real functions, before any thread exists.
void megapage_find_real(void) {
  real_dlopen = (void* (*)(const char*, int))dlsym(RTLD_NEXT, "dlopen");
  real_execve = (int (*)(const char*, char* const*, char* const*))dlsym(RTLD_NEXT, "execve");
  real_execvpe = (int (*)(const char*, char* const*, char* const*))dlsym(RTLD_NEXT, "execvpe");
  real_fexecve = (int (*)(int, char* const*, char* const*))dlsym(RTLD_NEXT, "fexecve");
}

// Remembers "name=value" for this process's next exec. Drops a variable that does not fit.
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

#if defined(__x86_64__)
enum { MACHINE = EM_X86_64 };
#elif defined(__aarch64__)
enum { MACHINE = EM_AARCH64 };
#endif

// Scripts whose interpreters are scripts are followed as the kernel follows them.
enum { MAX_SCRIPTS = 4, MAX_SEGMENTS = 256 };

static int open_to_read(const char* path) {
  // O_NONBLOCK: must not wait for the other end of a pipe, which cannot be executed anyway.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  return (int)megapage_call(SYS_openat, (uintptr_t)(long)AT_FDCWD, (uintptr_t)path, (uintptr_t)flags, 0);
}

static ssize_t read_at(int fd, void* buffer, size_t size, off_t offset) {
  return megapage_call(SYS_pread64, (uintptr_t)fd, (uintptr_t)buffer, size, (uintptr_t)offset);
}

static void close_file(int fd) {
  megapage_call(SYS_close, (uintptr_t)fd, 0, 0, 0);
}

static pid_t own_process(void) {
  return (pid_t)megapage_call(SYS_getpid, 0, 0, 0, 0);
}

// Returns true if glibc's loader for this library's machine would load an ELF file. A static
// program would only pass the variables on to its children. Another C library's loader, or that of
// another machine, may refuse the library.
static bool is_for_glibc(int fd, const Elf64_Ehdr* header) {
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB || header->e_machine != MACHINE) return false;
  for (int i = 0; i < header->e_phnum && i < MAX_SEGMENTS; i++) {
    Elf64_Phdr segment;
    const off_t offset = (off_t)(header->e_phoff + (size_t)i * header->e_phentsize);
    if (read_at(fd, &segment, sizeof segment, offset) != sizeof segment) return false;
    if (segment.p_type != PT_INTERP) continue;
    char loader[MAX_NAME] = {0};
    read_at(fd, loader, sizeof loader - 1, (off_t)segment.p_offset);
    return strstr(loader, "ld-linux") != NULL;
  }
  return false;
}

// Opens the file that would be executed with this one as its script. Returns -1 if that fails.
// Closes neither.
static int open_interpreter(char* line) {
  char* const name = line + 2 + strspn(line + 2, " \t");
  name[strcspn(name, " \t\n")] = 0;
  return open_to_read(name);
}

// Returns true if the program in an open file loads our library. With `shell`, a file of no known
// kind goes to /bin/sh (execvp(3)). Leaves the file open. An interpreter that may not be read
// counts as one that loads it.
static bool loads_ours(int fd, bool shell) {
  int current = fd;
  bool loads = false;
  for (int level = 0; level <= MAX_SCRIPTS; level++) {
    union {
      Elf64_Ehdr header;
      char line[MAX_NAME];
    } start = {.line = {0}};
    const ssize_t length = read_at(current, start.line, sizeof start.line - 1, 0);
    int next = -1;
    if (length >= (ssize_t)sizeof start.header && memcmp(start.line, ELFMAG, SELFMAG) == 0) {
      loads = is_for_glibc(current, &start.header);
    } else if (length > 2 && start.line[0] == '#' && start.line[1] == '!') {
      next = open_interpreter(start.line);
      loads = (next < 0 && errno == EACCES);
    } else if (shell && level == 0 && length >= 0) {
      next = open_to_read("/bin/sh");
    }
    if (current != fd) close_file(current);
    current = next;
    if (next < 0) return loads;
  }
  close_file(current);
  return false;
}

// Returns true if our library is found where the environment names it: the program may have a new
// root by then.
static bool is_ours_there(void) {
  for (int i = 0; i < saved_count; i++) {
    if (strncmp(saved[i], preload_name, sizeof preload_name - 1) != 0) continue;
    const char* const path = saved[i] + sizeof preload_name - 1;
    if (path[0] != '/') return true;
    const int fd = open_to_read(path);
    if (fd >= 0) close_file(fd);
    return fd >= 0;
  }
  return true;
}

// Returns true if this process takes its variables along at all. A child of vfork shares our memory
// but not our process id. A process that has forbidden itself system calls gets no process id, and
// may die of a look at the program.
static bool is_taker(void) {
  if (real_execve == NULL) megapage_find_real();
  return saved_count > 0 && own_process() == saved_pid;
}

static bool takes_along(const char* path, bool shell) {
  const int error = errno;
  const int fd = open_to_read(path);
  const bool taken = (fd < 0 ? errno == EACCES : loads_ours(fd, shell)) && is_ours_there();
  if (fd >= 0) close_file(fd);
  errno = error;
  return taken;
}

// Does the same for a program that execvpe(3) looks for in PATH.
__attribute__((noinline)) static bool found_takes_along(const char* file) {
  if (strchr(file, '/') != NULL) return takes_along(file, true);
  const char* list = NULL;
  for (char** variable = environ; variable != NULL && *variable != NULL && list == NULL; variable++) {
    if (strncmp(*variable, "PATH=", 5) == 0) list = *variable + 5;
  }
  if (list == NULL) list = "/bin:/usr/bin";
  const size_t length = strlen(file);
  char path[MAX_PATH];
  for (;;) {
    const size_t directory = strcspn(list, ":");
    if (directory + 1 + length + 1 <= sizeof path) {
      memcpy(path, list, directory);
      path[directory] = '/';
      // An empty directory is the current one.
      memcpy(path + directory + (directory > 0), file, length + 1);
      if (megapage_call(SYS_faccessat, (uintptr_t)(long)AT_FDCWD, (uintptr_t)path, X_OK, 0) == 0) return takes_along(path, true);
    }
    if (list[directory] == 0) return false;
    list += directory + 1;
  }
}

static size_t count(char* const* list) {
  size_t n = 0;
  while (list != NULL && list[n] != NULL) n++;
  return n;
}

// Fills `extended` with the variables that were taken out, and then with `environment`. Other
// LD_PRELOADs, one or more, are merged into ours: `list` has MAX_TEXT bytes for it, and a list that
// does not fit is left out.
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

// An environment with our variables, in a new mapping: a thread's stack may be as small as 16 KiB.
typedef struct {
  char** variables;
  size_t size;
} extended_t;

// Makes such an environment. `variables` is NULL if there is no memory: the program goes without.
static extended_t extended(char* const* environment) {
  const size_t pointers = (count(environment) + MAX_SAVED + 1) * sizeof(char*);
  extended_t it = {NULL, pointers + MAX_TEXT};
  void* const block = megapage_system_mmap(NULL, it.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) return it;
  it.variables = block;
  extend(it.variables, (char*)block + pointers, environment);
  return it;
}

static int after_failure(extended_t it) {
  const int error = errno;
  megapage_system_munmap(it.variables, it.size);
  errno = error;
  return -1;
}

int megapage_execve(const char* path, char* const* arguments, char* const* environment) {
  extended_t with = {0};
  if (is_taker() && takes_along(path, false)) with = extended(environment);
  if (with.variables == NULL) return real_execve(path, arguments, environment);
  real_execve(path, arguments, with.variables);
  return after_failure(with);
}

int megapage_execvpe(const char* file, char* const* arguments, char* const* environment) {
  extended_t with = {0};
  if (is_taker() && found_takes_along(file)) with = extended(environment);
  if (with.variables == NULL) return real_execvpe(file, arguments, environment);
  real_execvpe(file, arguments, with.variables);
  return after_failure(with);
}

int megapage_fexecve(int fd, char* const* arguments, char* const* environment) {
  extended_t with = {0};
  if (is_taker() && loads_ours(fd, false) && is_ours_there()) with = extended(environment);
  if (with.variables == NULL) return real_fexecve(fd, arguments, environment);
  real_fexecve(fd, arguments, with.variables);
  return after_failure(with);
}

int megapage_execv(const char* path, char* const* arguments) {
  return megapage_execve(path, arguments, environ);
}

int megapage_execvp(const char* file, char* const* arguments) {
  return megapage_execvpe(file, arguments, environ);
}

// Gathers variadic arguments, of which `first` is one, into `arguments`. Leaves `rest` after the
// final null.
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
