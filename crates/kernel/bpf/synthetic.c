// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * walk.h on synthetic physical memory, for tests (src/bpf/page_tables/synthetic_tests.rs). Figures are hexadecimal. Standard input:
 *
 *   walk LEVELS DIRECT_MAP FRAME_MASK TOP    the machine; TOP is a physical address
 *   end PHYSICAL                             where its memory ends; else nowhere
 *   word PHYSICAL VALUE                      an entry; its page then exists
 *   change READS PHYSICAL VALUE              what it becomes after so many reads
 *   range START END                          what is to be walked
 *   translate ADDRESS                        prints the physical address, or "none"
 *   go                                       walks, and prints:
 *
 *   found START ENTRY LEVEL                  for a table "table" and its words that are not 0: word INDEX VALUE
 *   end RUNS GIVEN_UP
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned int u32;
typedef unsigned long long u64;

static int read_memory(void *to, u32 size, u64 kernel_address);
static int range_at(u32 index, u64 *start, u64 *end);
static int put_found(u32 index, u64 start, u64 entry, u32 level, u32 table);
static int copy_table(u32 index, u64 kernel_address);
#include "walk.h"

#define MOST_PAGES 8192
#define MOST_LINES 8192

static struct walk walk;
static struct page {
	u64 physical;
	u64 words[512];
} pages[MOST_PAGES];
static struct {
	u64 start, end;
} ranges[MOST_LINES];
static struct {
	u64 reads, physical, value;
} changes[MOST_LINES];
static struct {
	u64 start, entry;
	u32 level, table;
} found[MOST_FOUND];
static u64 tables[MOST_TABLES][512];
static u32 page_count, range_count, change_count;
static u64 reads;

static struct page *page_of(u64 physical)
{
	for (u32 n = 0; n < page_count; n++)
		if (pages[n].physical == (physical & ~0xfffULL))
			return &pages[n];
	return NULL;
}

static void set_word(u64 physical, u64 value)
{
	struct page *page = page_of(physical);

	if (!page) {
		if (page_count == MOST_PAGES)
			abort();
		page = &pages[page_count++];
		page->physical = physical & ~0xfffULL;
	}
	page->words[(physical & 0xfff) / 8] = value;
}

static int read_memory(void *to, u32 size, u64 kernel_address)
{
	u64 physical = kernel_address - walk.direct_map;
	struct page *page = page_of(physical);

	if (!page || (physical & 0xfff) + size > 4096)
		return 1;
	memcpy(to, (char *)page->words + (physical & 0xfff), size);
	reads++;
	for (u32 n = 0; n < change_count; n++)
		if (changes[n].reads == reads)
			set_word(changes[n].physical, changes[n].value);
	return 0;
}

static int range_at(u32 index, u64 *start, u64 *end)
{
	if (index >= range_count)
		return 1;
	*start = ranges[index].start;
	*end = ranges[index].end;
	return 0;
}

static int put_found(u32 index, u64 start, u64 entry, u32 level, u32 table)
{
	if (index >= MOST_FOUND)
		abort();
	found[index].start = start;
	found[index].entry = entry;
	found[index].level = level;
	found[index].table = table;
	return 0;
}

static int copy_table(u32 index, u64 kernel_address)
{
	if (index >= MOST_TABLES)
		abort();
	return read_memory(tables[index], 4096, kernel_address);
}

static void go(void)
{
	u64 runs = 0, given_up = 0;
	int answer;

	do {
		walk.found = walk.tables = walk.given_up = 0;
		while ((answer = walk_step(&walk)) == WALK_ON)
			;
		runs++;
		given_up += walk.given_up;
		for (u32 n = 0; n < walk.found; n++) {
			printf("found %llx %llx %x\n", found[n].start, found[n].entry, found[n].level);
			if (found[n].table == NO_TABLE)
				continue;
			printf("table\n");
			for (u32 word = 0; word < 512; word++)
				if (tables[found[n].table][word])
					printf("word %x %llx\n", word, tables[found[n].table][word]);
		}
	} while (answer == WALK_FULL);
	printf("end %llx %llx\n", runs, given_up);
}

int main(void)
{
	char order[16];
	u64 a, b, c, d;

	while (scanf("%15s", order) == 1) {
		if (!strcmp(order, "walk") && scanf("%llx %llx %llx %llx", &a, &b, &c, &d) == 4) {
			walk.levels = a;
			walk.direct_map = b;
			walk.frame_mask = c;
			walk.end = ~0ULL;
			walk.top = b + d;
		} else if (!strcmp(order, "end") && scanf("%llx", &a) == 1) {
			walk.end = a;
		} else if (!strcmp(order, "word") && scanf("%llx %llx", &a, &b) == 2) {
			set_word(a, b);
		} else if (!strcmp(order, "change") && scanf("%llx %llx %llx", &a, &b, &c) == 3) {
			changes[change_count].reads = a;
			changes[change_count].physical = b;
			changes[change_count++].value = c;
		} else if (!strcmp(order, "range") && scanf("%llx %llx", &a, &b) == 2) {
			ranges[range_count].start = a;
			ranges[range_count++].end = b;
		} else if (!strcmp(order, "translate") && scanf("%llx", &a) == 1) {
			if (translate(&walk, a, &b))
				printf("none\n");
			else
				printf("%llx\n", b);
		} else if (!strcmp(order, "go")) {
			go();
		} else {
			return 1;
		}
	}
	return 0;
}
