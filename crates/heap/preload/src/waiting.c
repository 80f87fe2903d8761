// Amount of freed memory that waits to be used again, in place of mimalloc's fixed sizes. Included
// by mimalloc.c, before arena-alloc.c.
//
// A program that frees large blocks and soon asks for others wants them back as they are. To return
// 2 MiB and take 2 MiB means a fault and clearing it. A program that has done with them wants them
// gone. So, as in glibc, the memory that waits grows with the blocks that are freed (its
// M_MMAP_THRESHOLD and M_TRIM_THRESHOLD, mallopt(3)). With the memory in use it never exceeds the
// most that was in use at once before, so that no peak rises by it. Memory that has waited for the
// purge delay goes. Array libraries free and request a hundred megabytes for each operation.

// Bytes that always wait: this many for each thread, at most that many, and a part of the committed
// bytes.
#define LEAST_ALWAYS (128 * MI_KiB)
#define MOST_ALWAYS (512 * MI_KiB)
#define ALWAYS_SHARE 200
// Bytes beyond those that are worth a thread that purges them.
#define MUCH (2 * MI_MiB)
// More waits, but at most this many times the largest block freed so far.
#define LARGEST_TIMES 64
// It is also at most this part of the machine's memory, because other processes may want it within
// the delay. The bounds of that part follow. Larger blocks never wait.
#define MACHINE_SHARE 32
#define LEAST_MOST_WAITING (64 * MI_MiB)
#define MOST_MOST_WAITING (1024 * MI_MiB)
// Bytes that must be committed before waiting bytes are counted again: this, or if it is more, a
// part of the committed bytes. Counting takes time by those.
#define COUNT_AFTER MI_MiB
#define COUNT_SHARE 1024
// More may wait, by this part of the bytes that went so far: they may have come again, over and
// over. The increase is at most this many bytes, or if it is more, this many thousandths of the
// committed bytes, less those that the rounding of blocks takes.
#define RESERVE_SHARE 16
#define LEAST_MOST_RESERVE (2 * MI_MiB)
#define MOST_RESERVE 20
// Once too much waits, this part of what may wait goes with the rest.
#define AT_ONCE_SHARE 8

// Defined in primitives.rs. The first says that more waits than always may, so that a thread has to
// purge it after the delay. The second returns the bytes that the limits on memory let wait once
// `more` bytes more are in use. This is any number while no limit is near. `touched` is the share
// of committed memory that holds something, in thousandths.
extern void megapage_much_waits(void);
extern size_t megapage_room_for_waiting(size_t more, size_t touched);
// Also there: true if the heap counts the bytes at the address as held. Blocks apart are not.
extern bool megapage_has_chunk(const void* address);

// Bytes of blocks that pages have linked: the program may have touched as many. Most of a slice of
// 64 KiB with few blocks may be untouched.
static _Atomic(size_t) linked;
// Thousandths of the memory in use that pages had linked, at the last count.
enum { ALL = 1000 };
static _Atomic(size_t) linked_share = ALL;

static void note_linked(size_t bytes) { mi_atomic_add_relaxed(&linked, bytes); }

// Blocks of each large class that its pages have, in use or free.
static _Atomic(size_t) large_blocks[MI_BIN_COUNT];
// A class has many blocks if it has this many, and this part of the linked bytes.
enum { MANY_BLOCKS = 256, MUCH_SHARE = 8 };

// Bytes that pages of larger blocks than medium ones have.
static _Atomic(size_t) large_bytes;

static void note_new(const mi_page_t* page) {
  const size_t size = mi_page_block_size(page);
  if (size <= MI_MEDIUM_MAX_OBJ_SIZE) return;
  mi_atomic_add_relaxed(&large_blocks[_mi_bin(size)], page->reserved);
  mi_atomic_add_relaxed(&large_bytes, page->reserved * size);
}

static void forget_use(size_t bytes);

static void note_unlinked(const mi_page_t* page) {
  const size_t size = mi_page_block_size(page);
  mi_atomic_sub_relaxed(&linked, page->capacity * size);
  if (page->memid.memkind != MI_MEM_ARENA && !megapage_has_chunk(mi_page_start(page))) forget_use(size);
  if (size <= MI_MEDIUM_MAX_OBJ_SIZE) return;
  mi_atomic_sub_relaxed(&large_blocks[_mi_bin(size)], page->reserved);
  mi_atomic_sub_relaxed(&large_bytes, page->reserved * size);
}

// Returns the thousandths of the memory in use that belong to no block.
static size_t rounding(void) { return ALL - mi_atomic_load_relaxed(&linked_share); }

// Bytes that the program has asked for in large blocks, and bytes of the slices that they take.
// Both are halved from time to time.
static _Atomic(size_t) asked, given;
#define HALVED_FROM (1024 * MI_MiB)

static void note_asked(size_t size) {
  if (size <= MI_MEDIUM_MAX_OBJ_SIZE || apart) return;
  mi_atomic_add_relaxed(&asked, size);
  const size_t slices = mi_align_up(size, MI_ARENA_SLICE_SIZE);
  size_t now = mi_atomic_add_relaxed(&given, slices) + slices;
  if (now < HALVED_FROM || !mi_atomic_cas_strong_acq_rel(&given, &now, now / 2)) return;
  mi_atomic_store_relaxed(&asked, mi_atomic_load_relaxed(&asked) / 2);
}

// Returns the thousandths of linked bytes that large blocks have beyond what was asked for.
static size_t beyond_asked(void) {
  const size_t all_given = mi_atomic_load_relaxed(&given) / ALL + 1;
  const size_t all_linked = mi_atomic_load_relaxed(&linked) / ALL + 1;
  const size_t beyond = ALL - mi_min(ALL, mi_atomic_load_relaxed(&asked) / all_given);
  return beyond * mi_min(ALL, mi_atomic_load_relaxed(&large_bytes) / all_linked) / ALL;
}

// Returns the committed bytes that may wait as far as limits on memory go. Twice the bytes that
// pages have linked may be touched, because stacks and earlier contents count as well.
static size_t room_for_waiting(size_t more) {
  const size_t share = mi_clamp(2 * mi_atomic_load_relaxed(&linked_share), 1, ALL);
  const size_t room = megapage_room_for_waiting(more, share);
  return (room > SIZE_MAX / ALL ? SIZE_MAX : room * ALL / share);
}
// Defined in primitives.rs: true if the program leaves much of its blocks untouched. Then more of a
// waiting range is present than the block in its place would touch. Blocks have `rounding`
// thousandths beyond what was asked for.
extern bool megapage_leaves_untouched(size_t rounding);

// Bytes from which on a block may be one that is being filled.
#define LARGE (4 * MI_MiB)

// True if freed memory waits until a limit is near: its delay, in milliseconds, is 34 years.
static bool waits_on;
#define LONGEST_DELAY (1L << 40)

static size_t most_waiting = LEAST_MOST_WAITING;

static void waiting_init(size_t machine_bytes) {
  most_waiting = mi_clamp(machine_bytes / MACHINE_SHARE, LEAST_MOST_WAITING, MOST_MOST_WAITING);
}

// Bytes that wait, or have waited and are in use again: known exactly at the last count.
static _Atomic(size_t) waiting_at_most;
// Waiting bytes beyond which they are counted.
static _Atomic(size_t) count_at = LEAST_ALWAYS;
// Most bytes that were in use at once, as counted, and the largest block that was freed.
static _Atomic(size_t) most_in_use;
static _Atomic(size_t) largest_freed;
// Bytes that went because more waited than may wait.
static _Atomic(size_t) sent_away;

// True while the thread frees a block that holds nothing any more (move_contents): it neither waits
// nor was in use.
static __thread bool is_emptied;

typedef struct {
  size_t waiting;
  size_t committed;
} bytes_t;

static size_t always_waits(size_t committed) {
  const size_t threads = mi_atomic_load_relaxed(&_mi_subproc_main()->thread_count);
  return mi_clamp(threads * LEAST_ALWAYS, LEAST_ALWAYS, MOST_ALWAYS) + committed / ALWAYS_SHARE;
}

// Counts the bytes that are free but still committed, and the committed bytes, in all arenas.
static bytes_t count_bytes(void) {
  size_t waiting = 0;
  size_t committed = 0;
  mi_subproc_t* const subproc = _mi_subproc_main();
  const size_t arenas = mi_arenas_get_count(subproc);
  for (size_t a = 0; a < arenas; a++) {
    mi_arena_t* const arena = mi_arena_from_index(subproc, a);
    if (arena == NULL) continue;
    const size_t chunks = mi_min(mi_bbitmap_chunk_count(arena->slices_free), mi_bitmap_chunk_count(arena->slices_committed));
    for (size_t i = 0; i < chunks; i++) {
      for (size_t j = 0; j < MI_BCHUNK_FIELDS; j++) {
        const mi_bfield_t used = mi_atomic_load_relaxed(&arena->slices_committed->chunks[i].bfields[j]);
        if (used == 0) continue;
        committed += mi_popcount(used);
        waiting += mi_popcount(used & mi_atomic_load_relaxed(&arena->slices_free->chunks[i].bfields[j]));
      }
    }
  }
  return (bytes_t){_mi_size_of_slices(waiting), _mi_size_of_slices(committed)};
}

// Returns the bytes in use, and notes how much of them pages have linked. The slices of a page that
// is committed in part count once it is freed: until then its blocks do.
static size_t count_in_use(size_t committed, size_t waiting) {
  const size_t now = mi_atomic_load_relaxed(&linked);
  const size_t in_use = mi_max(committed - mi_min(waiting, committed), now);
  mi_atomic_store_relaxed(&linked_share, mi_min(now / (in_use / ALL + 1), ALL));
  return in_use;
}

static size_t raise(_Atomic(size_t)* most, size_t value) {
  size_t now = mi_atomic_load_relaxed(most);
  while (now < value && !mi_atomic_cas_weak_acq_rel(most, &now, value)) {}
  return (now < value ? value : now);
}

// Forgets that a block apart was in use, which is being freed: the program may have touched little
// of it.
static void forget_use(size_t bytes) {
  size_t most = mi_atomic_load_relaxed(&most_in_use);
  while (!mi_atomic_cas_weak_acq_rel(&most_in_use, &most, most - mi_min(bytes, most))) {}
}

static bool mi_arena_purge(mi_arena_t* arena, size_t slice_index, size_t slice_count);

// Returns the bytes that may wait while `in_use` bytes are in use, `committed` are committed,
// `most` were in use at once, and `more` are about to be committed.
static size_t allowed_to_wait(size_t in_use, size_t committed, size_t most, size_t more) {
  const size_t room = mi_max(LEAST_ALWAYS, room_for_waiting(more));
  if (waits_on) return room;
  const size_t largest = mi_atomic_load_relaxed(&largest_freed);
  const size_t reserve = MOST_RESERVE - mi_min(rounding(), MOST_RESERVE);
  const size_t most_reserve = mi_max(LEAST_MOST_RESERVE, committed / ALL * reserve);
  most += mi_min(most_reserve, mi_atomic_load_relaxed(&sent_away) / RESERVE_SHARE);
  const size_t useful = mi_min(mi_min(LARGEST_TIMES * largest, most_waiting), most - mi_min(in_use, most));
  return mi_min(room, mi_max(always_waits(committed), useful));
}

// Sends away `bytes` of the memory that waits, beginning at the end of the arenas: blocks come from
// their beginning. Returns the bytes that went.
static size_t send_away(size_t bytes) {
  mi_subproc_t* const subproc = _mi_subproc_main();
  const size_t wanted = _mi_slice_count_of_size(bytes);
  size_t gone = 0;
  for (size_t a = mi_arenas_get_count(subproc); a > 0 && gone < wanted; a--) {
    mi_arena_t* const arena = mi_arena_from_index(subproc, a - 1);
    if (arena == NULL || arena->memid.is_pinned) continue;
    const size_t chunks = mi_min(mi_bbitmap_chunk_count(arena->slices_free), mi_bitmap_chunk_count(arena->slices_committed));
    for (size_t field = chunks * MI_BCHUNK_FIELDS; field > 0 && gone < wanted; field--) {
      const size_t i = (field - 1) / MI_BCHUNK_FIELDS, j = (field - 1) % MI_BCHUNK_FIELDS;
      mi_bfield_t waiting = mi_atomic_load_relaxed(&arena->slices_committed->chunks[i].bfields[j]);
      if (waiting != 0) waiting &= mi_atomic_load_relaxed(&arena->slices_free->chunks[i].bfields[j]);
      while (waiting != 0 && gone < wanted) {
        // The last slices that wait next to each other: `count` before `end`.
        const size_t end = MI_BFIELD_BITS - mi_clz(waiting);
        const mi_bfield_t others = ~(waiting << (MI_BFIELD_BITS - end));
        const size_t count = mi_min(others == 0 ? MI_BFIELD_BITS : mi_clz(others), wanted - gone);
        const size_t first = (field - 1) * MI_BFIELD_BITS + end - count;
        if (mi_bbitmap_try_clearNC(arena->slices_free, first, count)) {
          mi_arena_purge(arena, first, count);
          mi_bitmap_clearN(arena->slices_purge, first, count);
          mi_bbitmap_setN(arena->slices_free, first, count);
          gone += count;
        }
        waiting &= ((mi_bfield_t)1 << (end - count)) - 1;
      }
    }
  }
  mi_atomic_add_relaxed(&sent_away, _mi_size_of_slices(gone));
  return _mi_size_of_slices(gone);
}

// Sends away what exceeds the bytes that may wait, at most `free` bytes. Returns the bytes that
// still wait. Other threads count what is being sent as gone: each would send away as much.
static size_t send_excess(size_t waiting, size_t allowed, size_t free) {
  const size_t excess = (waiting > allowed ? mi_min(waiting - allowed + allowed / AT_ONCE_SHARE, free) : 0);
  mi_atomic_store_relaxed(&count_at, allowed);
  mi_atomic_store_relaxed(&waiting_at_most, waiting - excess);
  return (excess > 0 ? waiting - send_away(excess) : waiting);
}

// Returns the size from which on a range is purged at once that is just being freed: 0 for now,
// SIZE_MAX for later. The range has `slice_count` committed slices. Upstream asks this in one
// place, where it has an option.
static size_t immediate_purge_size(size_t slice_count) {
  const size_t size = _mi_size_of_slices(slice_count);
  const bool is_hardly_touched = size < LARGE && megapage_leaves_untouched(beyond_asked());
  if (((size > most_waiting || is_hardly_touched) && !waits_on) || is_emptied) return 0;
  raise(&largest_freed, size);
  const size_t at_most = mi_atomic_add_relaxed(&waiting_at_most, size) + size;
  const size_t count_from = mi_atomic_load_relaxed(&count_at);
  if (mi_likely(at_most <= count_from) && (at_most <= LEAST_ALWAYS || at_most <= room_for_waiting(0))) return SIZE_MAX;

  // This range is not marked as free yet.
  const bytes_t now = count_bytes();
  const size_t in_use = count_in_use(now.committed, now.waiting + size);
  const size_t allowed = allowed_to_wait(in_use, now.committed, raise(&most_in_use, in_use + size), 0);
  // Other ranges go first: this one may be asked for again at once.
  const size_t waiting = send_excess(now.waiting + size, allowed, now.waiting);
  const bool goes = (waiting > allowed);
  if (goes) {
    mi_atomic_add_relaxed(&sent_away, size);
    mi_atomic_sub_relaxed(&waiting_at_most, mi_min(size, mi_atomic_load_relaxed(&waiting_at_most)));
  }
  if (waiting > always_waits(now.committed) + MUCH && !waits_on) megapage_much_waits();
  return (goes ? 0 : SIZE_MAX);
}

// Makes room for `size` bytes that are about to be committed. `already` bytes of them are
// committed, and count as in use. Memory that waits was of no use for them. It goes if both
// together would be more than was in use at once before.
static void make_room(size_t size, size_t already) {
  static _Atomic(size_t) grown;
  static _Atomic(size_t) count_after = COUNT_AFTER;
  const size_t waiting = mi_atomic_load_relaxed(&waiting_at_most);
  if (waiting <= LEAST_ALWAYS) return;
  if (mi_atomic_add_relaxed(&grown, size) + size < mi_atomic_load_relaxed(&count_after)) return;
  mi_atomic_store_relaxed(&grown, 0);
  const bytes_t now = count_bytes();
  mi_atomic_store_relaxed(&count_after, mi_max(COUNT_AFTER, now.committed / COUNT_SHARE));
  const size_t with_range = count_in_use(now.committed, now.waiting);
  const size_t in_use = mi_max(with_range - mi_min(already, with_range), mi_atomic_load_relaxed(&linked));
  const size_t allowed = allowed_to_wait(in_use + size, now.committed, raise(&most_in_use, in_use), size);
  if (now.waiting > allowed) send_excess(now.waiting, allowed, now.waiting);
}
