/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The descent through page tables: those of x86-64, 4 or 5 levels, or with MEGAPAGE_ARM64 defined those of arm64 with a
 * granule of 4 KiB, 3 to 5 levels (Arm Architecture Reference Manual, D8.3). Levels count from 1, the table of pages;
 * Arm's own count the other way round, from 3. Compiled into the BPF program, and natively into a test with synthetic
 * memory (synthetic.c). The includer provides the types u32 and u64, and
 *
 *   int read_memory(void *to, u32 size, u64 kernel_address)       0, or not 0 where nothing is mapped there
 *   int range_at(u32 index, u64 *start, u64 *end)                 the ranges to walk; not 0 past the last
 *   int put_found(u32 index, u64 start, u64 entry, u32 level, u32 table)
 *   int copy_table(u32 index, u64 kernel_address)                 a whole table, 4 KiB, to the index-th place
 *
 * Page tables change and go while they are read. So every entry on the way down is read again after the copy. If one
 * has changed, the region is walked again; after MOST_TRIES it is left out. So a table that was freed and reused
 * meanwhile is never taken for a page table. No value of an entry leads outside memory that read_memory allows.
 */
#ifndef MEGAPAGE_WALK_H
#define MEGAPAGE_WALK_H

#define PAGE_PRESENT (1ULL << 0)
#ifdef MEGAPAGE_ARM64
#define PAGE_ACCESSED (1ULL << 10)
/* Of an entry of level 2 or 3 that is present: not a block. */
#define PAGE_TABLE (1ULL << 1)
#define IS_TABLE(entry) (((entry) & (PAGE_PRESENT | PAGE_TABLE)) == (PAGE_PRESENT | PAGE_TABLE))
#else
#define PAGE_ACCESSED (1ULL << 5)
#define PAGE_LEAF (1ULL << 7)
#define IS_TABLE(entry) (((entry) & (PAGE_PRESENT | PAGE_LEAF)) == PAGE_PRESENT)
#endif

#define MOST_FOUND 2048
#define MOST_TABLES 512
#define MOST_TRIES 4
/* No table belongs to this entry. */
#define NO_TABLE 0xffffffff

struct walk {
	/* In. Where physical address 0 is mapped; which bits of an entry are its frame; where memory ends, past which no
	 * entry leads; 3 to 5. */
	u64 direct_map;
	u64 frame_mask;
	u64 end;
	u32 levels;
	/* Tries spent on the region at `at`. */
	u32 tries;
	/* The top table, as a kernel address. */
	u64 top;
	/* In and out: where to go on. */
	u64 at;
	u32 range;
	/* Out: entries found and tables copied in this run; regions given up. */
	u32 found;
	u32 tables;
	u32 given_up;
};

enum { WALK_ON = 0, WALK_FULL = 1, WALK_DONE = 2 };

#define LEVEL_SHIFT(level) (12 + 9 * ((level) - 1))

static inline __attribute__((always_inline)) u64 entry_address(u64 table, u64 at, u32 level)
{
	return table + (((at >> LEVEL_SHIFT(level)) & 511) << 3);
}

/*
 * Reads the entries for `at` from the top down to the one that is no table: not present, a leaf, or that of level 2.
 * entries[level - 2] and addresses[level - 2] tell what was read where. The level at which it ended; 0 for a table
 * that cannot be read.
 */
static inline __attribute__((always_inline)) u32 descend(const struct walk *walk, u64 at, u64 entries[4],
							 u64 addresses[4])
{
	u64 table = walk->top;
	u64 entry;

#pragma unroll
	for (u32 level = 5; level >= 2; level--) {
		if (level > walk->levels)
			continue;
		addresses[level - 2] = entry_address(table, at, level);
		if (read_memory(&entry, sizeof(entry), addresses[level - 2]))
			return 0;
		entries[level - 2] = entry;
		if (level == 2 || !(entry & PAGE_PRESENT) || (level == 3 && !IS_TABLE(entry)))
			return level;
		if ((entry & walk->frame_mask) >= walk->end)
			return 0;
		table = walk->direct_map + (entry & walk->frame_mask);
	}
	return 0;
}

/* Whether every entry from the top to `lowest` still is what it was, the bit that the processor sets aside. */
static inline __attribute__((always_inline)) int unchanged(const struct walk *walk, u32 lowest,
							   const u64 entries[4], const u64 addresses[4])
{
	u64 entry;

#pragma unroll
	for (u32 level = 5; level >= 2; level--) {
		if (level > walk->levels || level < lowest)
			continue;
		if (read_memory(&entry, sizeof(entry), addresses[level - 2]))
			return 0;
		if ((entry ^ entries[level - 2]) & ~PAGE_ACCESSED)
			return 0;
	}
	return 1;
}

/* One step: the next region, or as far past an empty part as its entry tells. */
static inline __attribute__((always_inline)) int walk_step(struct walk *walk)
{
	u64 entries[4] = {}, addresses[4] = {};
	u64 start, end, entry, next;
	u32 level, table = NO_TABLE;

	if (walk->found >= MOST_FOUND || walk->tables >= MOST_TABLES)
		return WALK_FULL;
	if (range_at(walk->range, &start, &end))
		return WALK_DONE;
	if (walk->at < start)
		walk->at = start;
	if (walk->at >= end) {
		walk->range++;
		return WALK_ON;
	}

	level = descend(walk, walk->at, entries, addresses);
	if (level == 0)
		goto again;
	switch (level) {
	case 5:
		entry = entries[3];
		next = (walk->at | ((1ULL << LEVEL_SHIFT(5)) - 1)) + 1;
		break;
	case 4:
		entry = entries[2];
		next = (walk->at | ((1ULL << LEVEL_SHIFT(4)) - 1)) + 1;
		break;
	case 3:
		entry = entries[1];
		next = (walk->at | ((1ULL << LEVEL_SHIFT(3)) - 1)) + 1;
		break;
	default:
		entry = entries[0];
		next = (walk->at | ((1ULL << LEVEL_SHIFT(2)) - 1)) + 1;
		break;
	}
	if (level == 2 && IS_TABLE(entry)) {
		table = walk->tables;
		if (copy_table(table, walk->direct_map + (entry & walk->frame_mask)))
			goto again;
	}
	if (!unchanged(walk, level, entries, addresses))
		goto again;
	/* Above level 3 an entry is a table or nothing. */
	if (entry && level <= 3) {
		if (put_found(walk->found, walk->at, entry, level, table))
			return WALK_FULL;
		walk->found++;
		if (table != NO_TABLE)
			walk->tables++;
	}
	walk->at = next;
	walk->tries = 0;
	return WALK_ON;

again:
	if (++walk->tries < MOST_TRIES)
		return WALK_ON;
	walk->given_up++;
	walk->at = (walk->at | ((1ULL << LEVEL_SHIFT(2)) - 1)) + 1;
	walk->tries = 0;
	return WALK_ON;
}

/* The physical address that `at` is mapped to; not 0 is answered where it is not present. */
static inline __attribute__((always_inline)) int translate(const struct walk *walk, u64 at, u64 *physical)
{
	u64 entries[4] = {}, addresses[4] = {};
	u64 entry, within;
	u32 level = descend(walk, at, entries, addresses);

	if (level == 3) {
		entry = entries[1];
		within = (1ULL << LEVEL_SHIFT(3)) - 1;
	} else if (level == 2 && !IS_TABLE(entries[0])) {
		entry = entries[0];
		within = (1ULL << LEVEL_SHIFT(2)) - 1;
	} else if (level == 2) {
		if ((entries[0] & walk->frame_mask) >= walk->end)
			return 1;
		if (read_memory(&entry, sizeof(entry),
				entry_address(walk->direct_map + (entries[0] & walk->frame_mask), at, 1)))
			return 1;
		within = (1ULL << LEVEL_SHIFT(1)) - 1;
	} else {
		return 1;
	}
	if (!(entry & PAGE_PRESENT))
		return 1;
	*physical = (entry & walk->frame_mask & ~within) | (at & within);
	return *physical >= walk->end;
}

#endif
