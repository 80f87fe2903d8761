// Makes random calls of the mmap family, each twice. One call goes through the C library's names,
// which the preloaded library provides; the other goes by syscall(2) to a twin of the memory.
// Answers, error numbers, contents and protections must be the same.
//
// Arguments: the number of calls, and a seed. Prints the number of calls and of mappings advised to
// be huge. A difference ends it with status 1.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, SLOTS = 48, MOST_PAGES = 3072, HISTORY = 40 };

// Memory of ours, and its twin. `mixed`: parts of it were mapped, protected or advised separately.
// The kernel merges such parts again or not, depending on their neighbours. It does not move
// unmerged parts in one call.
typedef struct { char *ours, *twin; size_t pages; bool mixed; } Slot;
static Slot slots[SLOTS];
static int count;
static uint64_t state;
static long call;
static int file;
static char history[HISTORY][160];

static uint64_t rnd(uint64_t below) {
  state ^= state << 13; state ^= state >> 7; state ^= state << 17;
  return (state >> 11) % below;
}

static void note(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(history[call % HISTORY], sizeof history[0], format, arguments);
  va_end(arguments);
}

static void fail(const char* what, long ours, int our_errno, long twin, int twin_errno) {
  for (long at = call < HISTORY ? 0 : call - HISTORY + 1; at <= call; at++)
    fprintf(stderr, "%ld %s\n", at, history[at % HISTORY]);
  fprintf(stderr, "DIFFERENCE in call %ld: %s: %#lx (errno %d) and %#lx (errno %d)\n", call, what, ours, our_errno, twin,
          twin_errno);
  exit(1);
}

// Both fail alike, or neither does.
static bool same(const char* what, bool ours_failed, int our_errno, bool twin_failed, int twin_errno) {
  if (ours_failed != twin_failed || (ours_failed && our_errno != twin_errno))
    fail(what, ours_failed, our_errno, twin_failed, twin_errno);
  return !ours_failed;
}

#define BOTH(what, ours_call, twin_call, failed)                       \
  errno = 0;                                                           \
  const __typeof__(ours_call) a = (ours_call);                         \
  const int a_errno = errno;                                           \
  errno = 0;                                                           \
  const __typeof__(ours_call) b = (__typeof__(ours_call))(twin_call);  \
  const int b_errno = errno;                                           \
  const bool done = same(what, a == (failed), a_errno, b == (failed), b_errno); \
  (void)done

static bool peek(const char* at, char* into, size_t n) {
  struct iovec local = {into, n}, remote = {(void*)at, n};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)n;
}

static bool poke(char* at, const char* from, size_t n) {
  struct iovec local = {(void*)from, n}, remote = {at, n};
  return process_vm_writev(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)n;
}

static void compare(const Slot* slot, size_t first, size_t pages) {
  static char ours[PAGE], twin[PAGE];
  for (size_t page = first; page < first + pages && page < slot->pages; page++) {
    const bool a = peek(slot->ours + page * PAGE, ours, PAGE), b = peek(slot->twin + page * PAGE, twin, PAGE);
    if (a != b) fail("one page can be read, the other cannot", a, 0, b, 0);
    if (a && memcmp(ours, twin, PAGE) != 0) fail("contents", page, 0, page, 0);
  }
}

static void compare_some(const Slot* slot) {
  for (int i = 0; i < 3; i++) compare(slot, rnd(slot->pages), 1);
  compare(slot, 0, 1);
  compare(slot, slot->pages - 1, 1);
}

// Reads the access to each page of a range from /proc/self/maps; 0 for an unmapped page.
static void access_of(const char* start, size_t pages, char* access) {
  memset(access, 0, pages);
  FILE* const maps = fopen("/proc/self/maps", "r");
  char line[512];
  while (fgets(line, sizeof line, maps) != NULL) {
    unsigned long from, to;
    char a[5];
    if (sscanf(line, "%lx-%lx %4s", &from, &to, a) != 3) continue;
    const char value = (char)(64 | (a[0] == 'r') | (a[1] == 'w') << 1 | (a[2] == 'x') << 2 | (a[3] == 's') << 3);
    const unsigned long low = (unsigned long)start, high = low + pages * PAGE;
    if (to <= low || from >= high) continue;
    from = from < low ? low : from;
    to = to > high ? high : to;
    memset(access + (from - low) / PAGE, value, (to - from) / PAGE);
  }
  fclose(maps);
}

static void compare_access(const Slot* slot) {
  static char ours[MOST_PAGES * 2], twin[MOST_PAGES * 2];
  access_of(slot->ours, slot->pages, ours);
  access_of(slot->twin, slot->pages, twin);
  for (size_t page = 0; page < slot->pages; page++)
    if (ours[page] != twin[page]) fail("protection", ours[page], (int)page, twin[page], (int)page);
}

static int advised(void) {
  FILE* const smaps = fopen("/proc/self/smaps", "r");
  char line[512];
  int found = 0;
  while (fgets(line, sizeof line, smaps) != NULL)
    if (strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " hg") != NULL) found++;
  fclose(smaps);
  return found;
}

static void forget(int index) { slots[index] = slots[--count]; }

// Calls of mremap(2) that failed on one side only, because of unmerged parts.
static long ours_unmerged, twin_unmerged;

static void add(char* ours, char* twin, size_t pages, bool mixed) {
  if (pages == 0) return;
  if (count == SLOTS) {
    const int victim = (int)rnd(SLOTS);
    if (munmap(slots[victim].ours, slots[victim].pages * PAGE) != 0) fail("munmap of a whole slot", -1, errno, 0, 0);
    syscall(SYS_munmap, slots[victim].twin, slots[victim].pages * PAGE);
    forget(victim);
  }
  slots[count++] = (Slot){ours, twin, pages, mixed};
}

// Removes pages from a slot; the parts before and behind them become slots.
static void cut(int index, size_t first, size_t pages) {
  const Slot slot = slots[index];
  forget(index);
  add(slot.ours, slot.twin, first, slot.mixed);
  add(slot.ours + (first + pages) * PAGE, slot.twin + (first + pages) * PAGE, slot.pages - first - pages, slot.mixed);
}

static char* raw_mmap(void* address, size_t len, int protection, int flags, int fd, off_t offset) {
  return (char*)syscall(SYS_mmap, address, len, protection, flags, fd, offset);
}

static int any_protection(void) {
  static const int protections[] = {PROT_NONE, PROT_READ, PROT_WRITE, 3, 3, 3, 3, PROT_READ | PROT_EXEC, 7};
  return protections[rnd(9)];
}

static size_t any_length(void) {
  switch (rnd(10)) {
    case 0: return 1 + rnd(3 * PAGE);
    case 1: return PAGE * (1 + rnd(15));
    case 2: return (size_t)PAGE * (512 + rnd(MOST_PAGES - 512));
    case 3: return (2 << 20) * (1 + rnd(4));
    case 4: return (64 << 10) * (1 + rnd(31));
    case 5: return (1 << 20) + PAGE * rnd(20);
    default: return 256 << (10 + rnd(3));
  }
}

static void fill(Slot* slot) {
  for (size_t page = 0; page < slot->pages; page++) {
    const uint64_t value = rnd(~0ull);
    const char text[8];
    memcpy((char*)text, &value, 8);
    if (!poke(slot->ours + page * PAGE, text, 8) || !poke(slot->twin + page * PAGE, text, 8)) return;
  }
}

static void map_anywhere(bool dense) {
  static const int odd[] = {MAP_SHARED | MAP_ANONYMOUS, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK,
    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, MAP_ANONYMOUS,
    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_NONBLOCK, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | (21 << MAP_HUGE_SHIFT),
    MAP_PRIVATE, MAP_SHARED, MAP_SHARED_VALIDATE | MAP_SYNC};
  int protection = 3, flags = MAP_PRIVATE | MAP_ANONYMOUS, fd = -1;
  size_t len = any_length();
  off_t offset = 0;
  if (rnd(4) == 0) flags |= MAP_NORESERVE;
  if (rnd(8) == 0) {
    flags = odd[rnd(sizeof odd / sizeof *odd)];
    if (flags & MAP_POPULATE) len = PAGE * (1 + rnd(16));
    if (!(flags & MAP_ANONYMOUS)) fd = rnd(4) == 0 ? 999 : file;
    // More than any pool holds: the test does not depend on the pool.
    if (flags & MAP_HUGETLB) len = 1ul << 50;
  }
  if (rnd(8) == 0) protection = any_protection();
  if (rnd(50) == 0) len = rnd(2) == 0 ? 0 : 1ul << 60;
  if (rnd(50) == 0) offset = rnd(2) == 0 ? 1 : PAGE;
  note("mmap(NULL, %zu, %d, %#x, %d, %ld)", len, protection, flags, fd, (long)offset);
  BOTH("mmap", (char*)mmap(NULL, len, protection, flags, fd, offset), raw_mmap(NULL, len, protection, flags, fd, offset),
       (char*)MAP_FAILED);
  if (!done) return;
  const bool anonymous = (flags & MAP_ANONYMOUS) != 0;
  const size_t pages = (len + PAGE - 1) / PAGE;
  if (!anonymous) {
    // Both map the same file, so their contents always agree.
    syscall(SYS_munmap, b, len);
    if (munmap(a, len) != 0) fail("munmap of a file", -1, errno, 0, 0);
    return;
  }
  add(a, b, pages, false);
  Slot* const slot = &slots[count - 1];
  if ((flags & MAP_HUGETLB) == 0) compare_some(slot);
  if (dense && protection == 3) fill(slot);
}

static void map_inside(int index) {
  slots[index].mixed = true;
  const Slot slot = slots[index];
  const size_t first = rnd(slot.pages), pages = 1 + rnd(slot.pages - first);
  const int protection = any_protection();
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | (rnd(3) == 0 ? MAP_NORESERVE : 0);
  if (rnd(6) == 0) flags = MAP_SHARED | MAP_ANONYMOUS;
  flags |= rnd(5) == 0 ? MAP_FIXED_NOREPLACE : MAP_FIXED;
  size_t from = first * PAGE;
  if (rnd(40) == 0) from += 7;
  note("mmap(slot of %zu pages + %zu, %zu pages, %d, %#x)", slot.pages, from, pages, protection, flags);
  BOTH("mmap within", (char*)mmap(slot.ours + from, pages * PAGE, protection, flags, -1, 0),
       raw_mmap(slot.twin + from, pages * PAGE, protection, flags, -1, 0), (char*)MAP_FAILED);
  if (done && (a != slot.ours + from || b != slot.twin + from)) fail("mmap elsewhere", a - slot.ours, 0, b - slot.twin, 0);
}

// Maps at a hint behind a slot. Each side may get another address; both must be usable.
static void map_behind(int index) {
  const Slot slot = slots[index];
  const size_t len = PAGE * (1 + rnd(600));
  note("mmap(behind a slot, %zu)", len);
  BOTH("mmap at a hint", (char*)mmap(slot.ours + slot.pages * PAGE, len, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
       raw_mmap(slot.twin + slot.pages * PAGE, len, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), (char*)MAP_FAILED);
  if (!done) return;
  add(a, b, len / PAGE, false);
  compare_some(&slots[count - 1]);
}

static void unmap(int index) {
  const Slot slot = slots[index];
  const size_t first = rnd(2) == 0 ? 0 : rnd(slot.pages);
  const size_t pages = rnd(2) == 0 ? slot.pages - first : 1 + rnd(slot.pages - first);
  size_t from = first * PAGE, len = pages * PAGE;
  const int odd = (int)rnd(30);
  if (odd == 0) from += 1;
  if (odd == 1) len = 0;
  if (odd == 2) len -= rnd(PAGE);
  note("munmap(slot of %zu pages + %zu, %zu)", slot.pages, from, len);
  BOTH("munmap", munmap(slot.ours + from, len), syscall(SYS_munmap, slot.twin + from, len), -1);
  if (done) cut(index, first, pages);
}

static void protect(int index) {
  slots[index].mixed = true;
  const Slot slot = slots[index];
  const size_t first = rnd(slot.pages), pages = 1 + rnd(slot.pages - first);
  const int protection = any_protection();
  const size_t from = first * PAGE + (rnd(40) == 0 ? 16 : 0);
  note("mprotect(slot of %zu pages + %zu, %zu pages, %d)", slot.pages, from, pages, protection);
  BOTH("mprotect", mprotect(slot.ours + from, pages * PAGE, protection),
       syscall(SYS_mprotect, slot.twin + from, pages * PAGE, protection), -1);
}

static void advise(int index) {
  static const int advices[] = {MADV_DONTNEED, MADV_DONTNEED, MADV_DONTNEED, MADV_WILLNEED, MADV_DONTFORK, MADV_DOFORK,
    MADV_POPULATE_WRITE, MADV_POPULATE_READ, MADV_COLD, 12345};
  slots[index].mixed = true;
  const Slot slot = slots[index];
  const size_t first = rnd(slot.pages), pages = 1 + rnd(slot.pages - first);
  int advice = advices[rnd(10)];
  const size_t most = advice == MADV_POPULATE_WRITE || advice == MADV_POPULATE_READ ? 16 : pages;
  const size_t len = (pages < most ? pages : most) * PAGE;
  note("madvise(slot of %zu pages + %zu, %zu, %d)", slot.pages, first, len, advice);
  BOTH("madvise", madvise(slot.ours + first * PAGE, len, advice),
       syscall(SYS_madvise, slot.twin + first * PAGE, len, advice), -1);
}

static void look(int index) {
  static unsigned char vector[2 * MOST_PAGES];
  const Slot slot = slots[index];
  const size_t first = rnd(slot.pages), pages = 1 + rnd(slot.pages - first);
  note("mincore(slot of %zu pages + %zu, %zu pages)", slot.pages, first, pages);
  BOTH("mincore", mincore(slot.ours + first * PAGE, pages * PAGE, vector),
       syscall(SYS_mincore, slot.twin + first * PAGE, pages * PAGE, vector), -1);
}

static void lock(int index) {
  slots[index].mixed = true;
  const Slot slot = slots[index];
  const size_t first = rnd(slot.pages), pages = 1;
  note("mlock, munlock(slot of %zu pages + %zu)", slot.pages, first);
  BOTH("mlock", mlock(slot.ours + first * PAGE, pages * PAGE), syscall(SYS_mlock, slot.twin + first * PAGE, pages * PAGE), -1);
  // A failed mlock may leave the mapping locked. MREMAP_DONTUNMAP unlocks the whole merged mapping,
  // which may differ between the sides. So nothing stays locked here.
  munlock(slot.ours + first * PAGE, pages * PAGE);
  munlock(slot.twin + first * PAGE, pages * PAGE);
}

// Unmaps a slot of which `pages` pages may have gone elsewhere, on one side.
static void drop(int index, size_t first, size_t pages, char* ours, char* twin, size_t more) {
  const Slot slot = slots[index];
  const size_t behind = first + pages;
  forget(index);
  if (ours != NULL) munmap(ours, more * PAGE); else munmap(slot.ours + first * PAGE, pages * PAGE);
  if (first > 0) munmap(slot.ours, first * PAGE);
  if (behind < slot.pages) munmap(slot.ours + behind * PAGE, (slot.pages - behind) * PAGE);
  if (twin != NULL) syscall(SYS_munmap, twin, more * PAGE); else syscall(SYS_munmap, slot.twin + first * PAGE, pages * PAGE);
  if (first > 0) syscall(SYS_munmap, slot.twin, first * PAGE);
  if (behind < slot.pages) syscall(SYS_munmap, slot.twin + behind * PAGE, (slot.pages - behind) * PAGE);
}

static void resize(int index) {
  const Slot slot = slots[index];
  const bool whole = rnd(2) == 0;
  const size_t first = whole ? 0 : rnd(slot.pages), pages = whole ? slot.pages : 1 + rnd(slot.pages - first);
  size_t more = rnd(3) == 0 ? pages : rnd(2) == 0 ? 1 + rnd(pages) : pages + rnd(700);
  if (more > MOST_PAGES) more = MOST_PAGES;
  // The room behind a mapping may differ between the sides, and is not compared.
  int flags = more > pages || rnd(2) == 0 ? MREMAP_MAYMOVE : 0;
  size_t from = first * PAGE;
  if (rnd(40) == 0) from += 8;
  if (rnd(40) == 0) flags = 64;
  void *to_ours = NULL, *to_twin = NULL;
  if (flags == MREMAP_MAYMOVE && rnd(3) == 0) {
    // Reserved before, so that nothing else is there.
    flags |= MREMAP_FIXED;
    to_ours = mmap(NULL, more * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    to_twin = raw_mmap(NULL, more * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  } else if (flags == MREMAP_MAYMOVE && rnd(6) == 0) {
    flags |= MREMAP_DONTUNMAP;
    more = rnd(5) == 0 ? more : pages;
  }
  note("mremap(slot of %zu pages + %zu, %zu pages, %zu pages, %d)", slot.pages, from, pages, more, flags);
  errno = 0;
  char* const a = mremap(slot.ours + from, pages * PAGE, more * PAGE, flags, to_ours);
  const int a_errno = errno;
  errno = 0;
  char* const b = (char*)syscall(SYS_mremap, slot.twin + from, pages * PAGE, more * PAGE, flags, to_twin);
  const int b_errno = errno;
  const bool a_failed = a == MAP_FAILED, b_failed = b == MAP_FAILED;
  if (a_failed != b_failed && slot.mixed && (a_failed ? a_errno : b_errno) == EFAULT) {
    *(a_failed ? &ours_unmerged : &twin_unmerged) += 1;
    drop(index, first, pages, a_failed ? NULL : a, b_failed ? NULL : b, more);
    if (to_ours != NULL) {
      munmap(to_ours, more * PAGE);
      syscall(SYS_munmap, to_twin, more * PAGE);
    }
    return;
  }
  if (!same("mremap", a_failed, a_errno, b_failed, b_errno)) {
    if (to_ours != NULL) {
      // A failure may have unmapped it, in whole or in part.
      Slot reserved = {to_ours, to_twin, more, true};
      compare_access(&reserved);
      munmap(to_ours, more * PAGE);
      syscall(SYS_munmap, to_twin, more * PAGE);
    }
    return;
  }
  if (flags & MREMAP_DONTUNMAP) {
    add(a, b, more, slot.mixed);
  } else {
    const bool in_place = a == slot.ours + from;
    if (in_place != (b == slot.twin + from) && more <= pages) fail("mremap elsewhere", a - slot.ours, 0, b - slot.twin, 0);
    cut(index, first, pages);
    add(a, b, more, slot.mixed);
  }
  compare_some(&slots[count - 1]);
}

static void write_some(int index) {
  const Slot slot = slots[index];
  const uint64_t value = rnd(~0ull);
  for (int i = 0; i < 4; i++) {
    const size_t at = rnd(slot.pages) * PAGE + 8 * rnd(PAGE / 8);
    const bool a = poke(slot.ours + at, (const char*)&value, 8), b = poke(slot.twin + at, (const char*)&value, 8);
    if (a != b) fail("one page can be written, the other cannot", a, 0, b, 0);
  }
  note("write to a slot of %zu pages", slot.pages);
}

// Forks a child that writes to its copies of the slots.
static void fork_once(void) {
  note("fork");
  const pid_t child = fork();
  if (child == 0) {
    for (int i = 0; i < count; i++) compare_some(&slots[i]);
    for (int i = 0; i < count; i++) write_some(i);
    // New mappings may take the place of those that MADV_DONTFORK left out. So the child forgets
    // the slots from before the fork.
    count = 0;
    for (int i = 0; i < 200; i++, call++) {
      map_anywhere(true);
      if (count > 0) unmap((int)rnd(count));
    }
    for (int i = 0; i < count; i++) compare_some(&slots[i]);
    _exit(0);
  }
  int status;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) fail("a child", child, errno, status, 0);
}

// Maps or protects parts of advised memory again, and touches them. They must merge with the rest:
// else mremap(2) of the whole fails. Returns the number of successful moves; -1 for an error.
static int merge_again(void) {
  enum { MIB = 1 << 20, MAPS = 64 };
  static char* maps[MAPS];
  int moved = 0;
  for (int i = 0; i < MAPS; i++) {
    maps[i] = mmap(NULL, 4 * MIB, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (maps[i] == MAP_FAILED) return -1;
    memset(maps[i], i + 1, 4 * MIB);
  }
  for (int i = 8; i < MAPS; i++) {
    char* const part = maps[i] + MIB + 3 * PAGE;
    if (i % 3 == 0) {
      if (mmap(part, MIB, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != part) return -1;
    } else if (i % 3 == 1) {
      if (mmap(part, MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != part) return -1;
      if (mprotect(part, MIB, 3) != 0) return -1;
    } else {
      if (munmap(part, MIB) != 0 || mmap(part, MIB, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != part) return -1;
    }
    memset(part, 100, MIB);
    char* const all = mremap(maps[i], 4 * MIB, 5 * MIB, MREMAP_MAYMOVE);
    if (all == MAP_FAILED) continue;
    moved++;
    if (all[0] != i + 1 || all[MIB + 3 * PAGE] != 100 || all[2 * MIB + 3 * PAGE] != i + 1 || all[4 * MIB] != 0) return -1;
    if (munmap(all, 5 * MIB) != 0) return -1;
    maps[i] = NULL;
  }
  for (int i = 0; i < MAPS; i++)
    if (maps[i] != NULL) munmap(maps[i], 4 * MIB);
  return moved;
}

// Returns AnonHugePages of this process, in KiB; -1 if the kernel does not report it.
static long huge_kib(void) {
  FILE* const all = fopen("/proc/self/smaps_rollup", "r");
  char line[128];
  long kib = -1;
  while (all != NULL && fgets(line, sizeof line, all) != NULL)
    if (sscanf(line, "AnonHugePages: %ld", &kib) == 1) break;
  if (all != NULL) fclose(all);
  return kib;
}

// Grows a mapping by mremap(2) and fills it. Waits until 16 MiB are huge, for at most 20 s.
static long grow(void) {
  enum { MIB = 1 << 20, STEP = 4 * MIB, WHOLE = 160 * MIB };
  char* all = mmap(NULL, STEP, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (size_t len = STEP; all != MAP_FAILED; len += STEP) {
    memset(all + len - STEP, 1, STEP);
    if (len == WHOLE) break;
    all = mremap(all, len, len + STEP, MREMAP_MAYMOVE);
  }
  if (all == MAP_FAILED) return -1;
  for (int look = 0; look < 400 && huge_kib() < 16 << 10; look++) usleep(50000);
  return huge_kib();
}

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "grow") == 0) {
    printf("%ld huge\n", grow());
    return 0;
  }
  if (argc == 2 && strcmp(argv[1], "merge") == 0) {
    const int moved = merge_again();
    printf("%d moved\n", moved);
    return moved < 0;
  }
  if (argc < 3) return 2;
  const long calls = atol(argv[1]);
  state = strtoull(argv[2], NULL, 0) * 2654435761u + 88172645463325252ull;
  char name[] = "/tmp/megapage-mapped-XXXXXX";
  file = mkstemp(name);
  if (file < 0 || unlink(name) != 0 || ftruncate(file, 16 << 20) != 0) return 2;
  int most_advised = 0;
  for (call = 0; call < calls; call++) {
    const bool dense = call / 2000 % 4 != 3;
    const int kind = count == 0 ? 0 : (int)rnd(100);
    const int index = count == 0 ? 0 : (int)rnd(count);
    if (kind < 22) map_anywhere(dense);
    else if (kind < 40) unmap(index);
    else if (kind < 50) protect(index);
    else if (kind < 58) map_inside(index);
    else if (kind < 61) map_behind(index);
    else if (kind < 70) advise(index);
    else if (kind < 73) look(index);
    else if (kind < 75) lock(index);
    else if (kind < 85) resize(index);
    else write_some(index);
    if (count > 0 && call % 8 == 0) compare_some(&slots[rnd(count)]);
    if (count > 0 && call % 64 == 0) {
      const int at = (int)rnd(count);
      compare_access(&slots[at]);
      compare(&slots[at], 0, 64);
    }
    if (call % 5000 == 4999) {
      const int found = advised();
      most_advised = found > most_advised ? found : most_advised;
      fork_once();
    }
  }
  for (int i = 0; i < count; i++) {
    compare(&slots[i], 0, slots[i].pages);
    compare_access(&slots[i]);
  }
  printf("%ld calls, %d advised, %ld ours %ld twin unmerged\n", calls, most_advised, ours_unmerged, twin_unmerged);
  return 0;
}
