# Memory of all kinds that page tables tell apart; then waits for the end of its input.
import ctypes, os, sys, tempfile

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
for call in (libc.madvise, libc.mprotect):
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

PAGE, HUGE = 4096, 2 << 20
NONE, READ, WRITE = 0, 1, 2
SHARED, PRIVATE, ANONYMOUS, HUGETLB = 1, 2, 0x20, 0x40000
DONTNEED, HUGEPAGE, NOHUGEPAGE, PAGEOUT, GUARD_INSTALL = 4, 14, 15, 21, 102
got = []


def area(regions, flags=PRIVATE | ANONYMOUS, protection=READ | WRITE, file=-1, spare=HUGE):
    start = libc.mmap(None, regions * HUGE + spare, protection, flags, file, 0)
    assert start not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
    return -(-start // HUGE) * HUGE if spare else start


def write(start, pages):
    for page in pages:
        ctypes.memset(start + page * PAGE, 1, 1)


def read(start, pages):
    for page in pages:
        ctypes.c_char.from_address(start + page * PAGE).value


def attempt(name, answer):
    if answer == 0:
        got.append(name)


base = area(4)
attempt("nohuge", libc.madvise(base, 4 * HUGE, NOHUGEPAGE))
write(base, range(0, 512, 3))
write(base, range(512, 1024))
read(base, range(1024, 1536, 2))
write(base, range(1025, 1536, 6))
# Not to be accessed: pages, and the page of zeros.
attempt("none", libc.mprotect(base + 700 * PAGE, 100 * PAGE, NONE))
attempt("none", libc.mprotect(base + 1100 * PAGE, 100 * PAGE, NONE))

# Ends within regions, and a hole in one.
clipped = area(4)
libc.munmap(clipped, 100 * PAGE)
libc.munmap(clipped + 700 * PAGE, 3 * PAGE)
write(clipped, [*range(100, 700), *range(703, 4 * 512)])
attempt("guard", libc.madvise(clipped + 120 * PAGE, 10 * PAGE, GUARD_INSTALL))
attempt("out", libc.madvise(clipped + 1024 * PAGE, 300 * PAGE, PAGEOUT))

huge = area(4)
attempt("huge", libc.madvise(huge, 4 * HUGE, HUGEPAGE))
write(huge, range(4 * 512))
# Split, and whole but not to be accessed.
libc.madvise(huge + 5 * PAGE, PAGE, DONTNEED)
attempt("none", libc.mprotect(huge + HUGE, HUGE, NONE))

zeros = area(2)
libc.madvise(zeros, 2 * HUGE, HUGEPAGE)
read(zeros, [0, 512])
attempt("none", libc.mprotect(zeros + HUGE, HUGE, NONE))

shared = area(2, SHARED | ANONYMOUS)
write(shared, range(0, 1024, 5))
if os.fork() == 0:
    # Shares what was private, too. A child ends with its parent: prctl(PR_SET_PDEATHSIG, SIGKILL).
    libc.prctl(1, 9)
    write(base, range(512, 600))
    write(shared, range(1, 1024, 5))
    os.read(0, 1)
    os._exit(0)

with tempfile.TemporaryFile() as file:
    file.write(b"x" * (3 * HUGE))
    file.flush()
    whole = area(2, SHARED, READ, file.fileno())
    read(whole, range(0, 1024, 7))
    copied = area(2, PRIVATE, READ | WRITE, file.fileno())
    read(copied, range(100))
    write(copied, range(50, 150))

for name, bits, size in (("hugetlb-2m", 21, HUGE), ("hugetlb-1g", 30, 1 << 30)):
    pages = 2 if bits == 21 else 1
    flags = PRIVATE | ANONYMOUS | HUGETLB | bits << 26
    start = libc.mmap(None, pages * size, READ | WRITE, flags, -1, 0)
    if start not in (None, ctypes.c_void_p(-1).value):
        write(start, [3])
        if pages == 2:
            # Not to be accessed: as little may be written there as to the page of zeros.
            write(start + size, [3])
            attempt("none", libc.mprotect(start + size, size, NONE))
        got.append(name)

print(" ".join(got), f"zeros={zeros}", flush=True)
os.read(0, 1)
