// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Copies page tables of a process to where user space can read them (crates/kernel/src/bpf/page_tables.rs, which
 * declares the same structures). Reads kernel memory only by bpf_probe_read_kernel, which a bad address makes
 * fail and nothing else. Changes nothing.
 */
#include "vmlinux.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

static inline int read_memory(void *to, u32 size, u64 kernel_address)
{
	return bpf_probe_read_kernel(to, size, (const void *)kernel_address) != 0;
}

static inline int range_at(u32 index, u64 *start, u64 *end);
static inline int put_found(u32 index, u64 start, u64 entry, u32 level, u32 table);
static inline int copy_table(u32 index, u64 kernel_address);
#include "walk.h"

#define MOST_RANGES 1024
/* Steps of one run: bounds the time under RCU to a few milliseconds even where all is empty. */
#define MOST_STEPS 16384

enum { STATUS_DONE = 0, STATUS_MORE = 1, STATUS_GONE = 2, STATUS_NOT_FOUND = 3 };

struct range {
	u64 start, end;
};

struct found {
	u64 start, entry;
	u32 level, table;
};

struct control {
	struct walk walk;
	u32 pid;
	u32 range_count;
	u32 status;
	u32 padding;
	/* Which address space was walked: of which task, which mm, and where its stack starts. */
	u64 started;
	u64 mm;
	u64 stack;
	/* For find_direct_map: how many GiB to try, and the 64 bytes that stand at walk.at. */
	u64 tries;
	u64 magic[8];
};

#define ARRAY(name, element, count)                  \
	struct {                                     \
		__uint(type, BPF_MAP_TYPE_ARRAY);    \
		__uint(map_flags, BPF_F_MMAPABLE);   \
		__uint(max_entries, count);          \
		__type(key, u32);                    \
		__type(value, element);              \
	} name SEC(".maps")

struct table {
	u64 entries[512];
};

ARRAY(control, struct control, 1);
ARRAY(ranges, struct range, MOST_RANGES);
ARRAY(found, struct found, MOST_FOUND);
ARRAY(tables, struct table, MOST_TABLES);

static inline struct control *the_control(void)
{
	u32 index = 0;

	return bpf_map_lookup_elem(&control, &index);
}

static inline int range_at(u32 index, u64 *start, u64 *end)
{
	struct control *own = the_control();
	struct range *range = bpf_map_lookup_elem(&ranges, &index);

	if (!own || !range || index >= own->range_count)
		return 1;
	*start = range->start;
	*end = range->end;
	return 0;
}

static inline int put_found(u32 index, u64 start, u64 entry, u32 level, u32 table)
{
	struct found *place = bpf_map_lookup_elem(&found, &index);

	if (!place)
		return 1;
	place->start = start;
	place->entry = entry;
	place->level = level;
	place->table = table;
	return 0;
}

static inline int copy_table(u32 index, u64 kernel_address)
{
	struct table *place = bpf_map_lookup_elem(&tables, &index);

	return !place || read_memory(place, sizeof(*place), kernel_address);
}

/* By its number in the caller's own namespace, where the kernel can (6.14), as /proc shows it there. */
static inline struct task_struct *find_task(s32 pid)
{
	if (bpf_task_from_vpid)
		return bpf_task_from_vpid(pid);
	return bpf_task_from_pid(pid);
}

static long step(u32 index, void *context)
{
	struct control *own = the_control();
	int answer;

	if (!own)
		return 1;
	answer = walk_step(&own->walk);
	own->status = answer == WALK_DONE ? STATUS_DONE : STATUS_MORE;
	return answer != WALK_ON;
}

static long try_direct_map(u32 index, void *context)
{
	struct control *own = the_control();
	u64 physical, there[8];

	if (!own)
		return 1;
	if (!translate(&own->walk, own->walk.at, &physical) &&
	    !read_memory(there, sizeof(there), own->walk.direct_map + physical) && there[0] == own->magic[0] &&
	    there[1] == own->magic[1] && there[2] == own->magic[2] && there[3] == own->magic[3] &&
	    there[4] == own->magic[4] && there[5] == own->magic[5] && there[6] == own->magic[6] &&
	    there[7] == own->magic[7]) {
		own->status = STATUS_DONE;
		return 1;
	}
	own->walk.direct_map += 1ULL << 30;
	return 0;
}

/*
 * Runs `callback` on the address space of own->pid, `count` times at most. RCU keeps page tables from being used
 * for something else while they are read; the task keeps its mm, and that its top table, unless it exits or
 * executes another program, which shows afterwards.
 */
static inline void with_address_space(struct control *own, u32 count, void *callback)
{
	struct task_struct *task = find_task(own->pid);
	struct mm_struct *mm;

	own->status = STATUS_GONE;
	if (!task)
		return;
	bpf_rcu_read_lock();
	mm = task->mm;
	if (mm && !(task->flags & PF_EXITING)) {
		own->started = task->start_boottime;
		own->mm = (u64)mm;
		own->stack = mm->start_stack;
		own->walk.top = (u64)mm->pgd;
		own->status = STATUS_MORE;
		bpf_loop(count, callback, 0, 0);
		if ((u64)task->mm != own->mm)
			own->status = STATUS_GONE;
	}
	bpf_rcu_read_unlock();
	bpf_task_release(task);
}

/* Walks own->walk from where it stands. */
SEC("syscall")
int walk(void *context)
{
	struct control *own = the_control();

	if (own)
		with_address_space(own, MOST_STEPS, step);
	return 0;
}

/*
 * Finds out where physical address 0 is mapped, trying own->tries GiB upwards from walk.direct_map: the right one
 * leads from walk.at of the process to the bytes of own->magic.
 */
SEC("syscall")
int find_direct_map(void *context)
{
	struct control *own = the_control();

	if (!own)
		return 0;
	with_address_space(own, own->tries, try_direct_map);
	if (own->status == STATUS_MORE)
		own->status = STATUS_NOT_FOUND;
	return 0;
}

struct mapping {
	/* In: the process, and an address. */
	u64 address;
	u32 pid;
	/* Out: an errno, negative, or 0 and the mapping that holds the address. */
	s32 status;
	u64 start, end, flags;
};

static long note_mapping(struct task_struct *task, struct vm_area_struct *area, struct mapping *mapping)
{
	mapping->start = area->vm_start;
	mapping->end = area->vm_end;
	mapping->flags = area->vm_flags & VM_HUGETLB;
	return 0;
}

/* Finds the mapping at an address. EBUSY if the process's address space is being changed. */
SEC("syscall")
int find_mapping(struct mapping *context)
{
	struct mapping mapping = { .address = context->address };
	struct task_struct *task = find_task(context->pid);

	if (!task) {
		context->status = -3; /* ESRCH */
		return 0;
	}
	context->status = bpf_find_vma(task, mapping.address, note_mapping, &mapping, 0);
	context->start = mapping.start;
	context->end = mapping.end;
	context->flags = mapping.flags;
	bpf_task_release(task);
	return 0;
}
