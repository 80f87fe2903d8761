// The library must not disturb: forks in signals' handlers, filters of system calls, small
// stacks, libraries that are bound deeply, and what malloc(3) tells of itself. See parts.h.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "parts.h"

enum { MIB = 1 << 20, FORKS = 150 };

static void use(size_t bytes) {
  char* const block = malloc(bytes);
  if (block == NULL) _exit(90);
  for (size_t i = 0; i < bytes; i += 4096) block[i] = 1;
  free(block);
}

// ---- forks in handlers ----

static volatile sig_atomic_t forks;
static volatile sig_atomic_t is_child;
static volatile sig_atomic_t badly;

// The child goes on where the handler has interrupted it.
static void fork_here(int signal) {
  (void)signal;
  if (is_child) return;
  const pid_t child = fork();
  if (child == 0) {
    is_child = 1;
    return;
  }
  int status = -1;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) badly++;
  forks++;
}

static void fork_while(void (*work)(void)) {
  // A program that hangs ends.
  alarm(100);
  struct sigaction action = {.sa_handler = fork_here, .sa_flags = SA_RESTART};
  sigaction(SIGPROF, &action, NULL);
  const struct itimerval often = {{0, 2000}, {0, 2000}};
  setitimer(ITIMER_PROF, &often, NULL);
  while (forks < FORKS) {
    work();
    if (is_child) {
      for (int i = 0; i < 20; i++) work();
      use(5 * MIB);
      use(100);
      _exit(0);
    }
  }
  const struct itimerval never = {{0, 0}, {0, 0}};
  setitimer(ITIMER_PROF, &never, NULL);
  CHECK(badly == 0, "%d of %d forks failed, or their children", (int)badly, (int)forks);
}

static void allocate(void) {
  use((1 + rand() % 6) * MIB);
}

static void map(void) {
  char* const memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memory[0] = 1;
  munmap(memory, MIB);
}

static void fork_in_malloc(void) {
  fork_while(allocate);
}

static void fork_in_mmap(void) {
  fork_while(map);
}

// With a thread of the library's beside it.
static void fork_beside_a_thread(void) {
  char* const large = malloc(200 * MIB);
  memset(large, 1, 200 * MIB);
  fork_while(allocate);
  free(large);
}

// A thread that shares heaps with others. Only such threads take the signal.
static void* work_young(void* none) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPROF);
  pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
  char* kept[40] = {NULL};
  for (int round = 0; round < 800; round++) {
    char** const block = &kept[round * 7 % 40];
    free(*block);
    *block = malloc(16 + round * 37 % 3000);
    (*block)[0] = 1;
  }
  for (int at = 0; at < 40; at++) free(kept[at]);
  if (is_child) {
    use(5 * MIB);
    use(100);
    _exit(0);
  }
  pthread_sigmask(SIG_BLOCK, &signals, NULL);
  return none;
}

static void run_young(void) {
  enum { THREADS = 5 };
  pthread_t threads[THREADS];
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPROF);
  pthread_sigmask(SIG_BLOCK, &signals, NULL);
  for (int at = 0; at < THREADS; at++) CHECK(pthread_create(&threads[at], NULL, work_young, NULL) == 0, "no thread");
  for (int at = 0; at < THREADS; at++) pthread_join(threads[at], NULL);
}

static void fork_in_young_threads(void) {
  fork_while(run_young);
}

static void* return_memory(void* none) {
  while (true) {
    use(5 * MIB);
    malloc_trim(0);
  }
  return none;
}

// Beside threads that give memory back to the kernel.
static void fork_beside_returns(void) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPROF);
  pthread_sigmask(SIG_BLOCK, &signals, NULL);
  for (int at = 0; at < 3; at++) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, return_memory, NULL) == 0, "no thread");
  }
  pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
  fork_while(allocate);
}

// ---- filters ----

#define ALLOW(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

// Forbids this process, on pain of death, all but what a malloc needs, and ends there.
static void confine(bool all_threads) {
  struct sock_filter filter[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    ALLOW(write), ALLOW(exit_group), ALLOW(mmap), ALLOW(munmap), ALLOW(madvise), ALLOW(mprotect), ALLOW(mremap), ALLOW(futex),
    ALLOW(brk), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  const struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no PR_SET_NO_NEW_PRIVS");
  const long answer = all_threads ? syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program)
                                  : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
  CHECK(answer == 0, "no filter: %ld", answer);
}

static void work_confined(void) {
  for (int round = 0; round < 3; round++) {
    char* blocks[100];
    for (int i = 0; i < 100; i++) memset(blocks[i] = malloc(MIB - 64 * (i % 3)), 1, 1000000);
    for (int i = 0; i < 100; i++) free(blocks[i]);
    for (int i = 0; i < 64; i++) memset(mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, MIB);
    use(100 * MIB);
    for (int i = 0; i < 100000; i++) free(malloc(16 + i % 500));
  }
  // Threads of the library's, if there were any, come to look.
  int word = 0;
  const struct timespec pause = {1, 200000000};
  syscall(SYS_futex, &word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 0, &pause);
}

static void confined(void) {
  // The C library's first one asks for a random number.
  use(100);
  confine(false);
  work_confined();
}

static void confined_with_all_threads(void) {
  // The library has threads by then.
  use(300 * MIB);
  for (int i = 0; i < 100; i++) memset(mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, MIB);
  char* const kept = malloc(100 * MIB);
  memset(kept, 1, 100 * MIB);
  confine(true);
  work_confined();
}

// ---- a small stack ----

static char* many[1002];

static void* execute(void* unused) {
  char* const words[] = {"true", NULL};
  execve("/bin/true", words, many);
  return unused;
}

static void small_stack(void) {
  for (int i = 0; i < 1000; i++) {
    many[i] = malloc(16);
    snprintf(many[i], 16, "V%d=1", i);
  }
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 16384);
  pthread_t thread;
  CHECK(pthread_create(&thread, &small, execute, NULL) == 0, "no thread");
  pthread_join(thread, NULL);
  CHECK(false, "not executed");
}

// ---- libraries that are bound deeply ----

static const char* plugin_path;
int version(void) { return 1; }

static void deeply_bound(void) {
  void* const plugin = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  CHECK(plugin != NULL, "%s", dlerror());
  int (*const plugin_version)(void) = (int (*)(void))dlsym(plugin, "plugin_version");
  CHECK(plugin_version() == 2, "the plugin sees the program's function");
  void* (*const plugin_malloc)(size_t) = (void* (*)(size_t))dlsym(plugin, "plugin_malloc");
  char* (*const plugin_copy)(const char*) = (char* (*)(const char*))dlsym(plugin, "plugin_copy");
  void (*const plugin_free)(void*) = (void (*)(void*))dlsym(plugin, "plugin_free");
  for (size_t bytes = 1; bytes < 4 * MIB; bytes = bytes * 3 / 2 + 1) {
    void* const theirs = plugin_malloc(bytes);
    CHECK(malloc_usable_size(theirs) >= bytes, "%zu bytes are not of this heap", bytes);
    memset(theirs, 1, bytes);
    free(theirs);
    plugin_free(malloc(bytes));
    plugin_free(strdup("ours"));
    free(plugin_copy("theirs"));
    plugin_free(realloc(plugin_malloc(bytes), 2 * bytes));
  }
}

// ---- what malloc tells ----

static void statistics(void) {
  enum { BLOCKS = 100, SIZE = 500000, ALL = BLOCKS * SIZE };
  const struct mallinfo2 before = mallinfo2();
  char* blocks[BLOCKS];
  for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(SIZE), 1, SIZE);
  const struct mallinfo2 full = mallinfo2();
  const size_t used = full.uordblks + full.hblkhd - before.uordblks - before.hblkhd;
  CHECK(used >= ALL && used < ALL + ALL / 4, "%zu bytes in use of %d", used, ALL);
  CHECK(full.arena >= full.uordblks && full.arena == full.uordblks + full.fordblks, "the parts are not the whole");
  CHECK((size_t)mallinfo().uordblks == full.uordblks, "mallinfo tells something else");
  for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
  const struct mallinfo2 after = mallinfo2();
  const size_t left = after.uordblks + after.hblkhd;
  CHECK(left < before.uordblks + before.hblkhd + ALL / 10, "%zu bytes in use after all were freed", left);
  // Small ones, of which the thread keeps some.
  void* small[1000];
  for (int i = 0; i < 1000; i++) small[i] = malloc(64);
  const size_t with_small = mallinfo2().uordblks;
  for (int i = 0; i < 1000; i++) free(small[i]);
  const size_t without = mallinfo2().uordblks;
  CHECK(with_small - without >= 64000, "%zu bytes of 64000 are free", with_small - without);
  char text[2048] = "";
  FILE* const stream = tmpfile();
  // Nothing is to be allocated between the two values.
  static char buffer[4096];
  setvbuf(stream, buffer, _IOFBF, sizeof buffer);
  CHECK(malloc_info(1, stream) == EINVAL && malloc_info(0, stream) == 0, "malloc_info fails");
  rewind(stream);
  fread(text, 1, sizeof text - 1, stream);
  char wanted[100];
  snprintf(wanted, sizeof wanted, "<system type=\"current\" size=\"%zu\"/>", mallinfo2().arena);
  CHECK(strstr(text, "<malloc version=\"1\">") && strstr(text, wanted), "malloc_info: %s", text);
  malloc_stats();
}

// The compiler cannot see through these.
static void* (*volatile ask)(size_t) = malloc;
static void (*volatile give_back)(void*) = free;

static void free_twice_small(void) {
  give_back(ask(100));
  void* const block = ask(40);
  give_back(block);
  give_back(block);
}

static void free_twice_medium(void) {
  void* blocks[3];
  for (int i = 0; i < 3; i++) blocks[i] = ask(20000);
  give_back(blocks[1]);
  give_back(blocks[1]);
}

static void free_twice_large(void) {
  void* const block = ask(100000);
  ask(100000);
  give_back(block);
  give_back(block);
}

int main(int count, char** words) {
  static const Part parts[] = {
    {"fork_in_malloc", fork_in_malloc}, {"fork_in_mmap", fork_in_mmap}, {"fork_beside_a_thread", fork_beside_a_thread},
    {"fork_in_young_threads", fork_in_young_threads}, {"fork_beside_returns", fork_beside_returns},
    {"confined", confined}, {"confined_with_all_threads", confined_with_all_threads}, {"small_stack", small_stack},
    {"deeply_bound", deeply_bound}, {"statistics", statistics}, {"free_twice_small", free_twice_small},
    {"free_twice_medium", free_twice_medium}, {"free_twice_large", free_twice_large}, {NULL, NULL},
  };
  plugin_path = (count > 2 ? words[2] : NULL);
  return run_part(count, words, parts);
}
