// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Counts the calls of a function, and the time from each call to its return (crates/kernel/src/bpf/function_calls.rs, which declares the
 * same structures). Attached to one process each time; the cookie is that process. Changes nothing.
 */
#include "vmlinux.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Threads that are in the function at once: calls of further ones are counted, their time is not. */
#define MOST_STARTS 16384

/* The PID namespace whose numbers the cookies are, as stat(2) of /proc/self/ns/pid has it. */
struct numbers {
	u64 device, inode;
};

struct counts {
	u64 calls, returns, nanoseconds;
};

struct pid_numbers {
	u32 pid, tgid;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct numbers);
} numbers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct counts);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_STARTS);
	__type(key, u64);
	__type(value, u64);
} starts SEC(".maps");

/*
 * Whether the current process is the one that this was attached to. The kernel runs what is attached to any process wherever
 * the breakpoint is hit by one that has it, too.
 */
static inline int is_meant(void *context)
{
	u32 index = 0;
	struct pid_numbers own = {};
	struct numbers *of = bpf_map_lookup_elem(&numbers, &index);

	if (!of || bpf_get_ns_current_pid_tgid(of->device, of->inode, &own, sizeof(own)))
		return 0;
	return own.tgid == bpf_get_attach_cookie(context);
}

static inline struct counts *of_this_cpu(void)
{
	u32 index = 0;

	return bpf_map_lookup_elem(&counts, &index);
}

SEC("uprobe")
int count_call(void *context)
{
	struct counts *own = of_this_cpu();

	if (own && is_meant(context))
		own->calls++;
	return 0;
}

SEC("uprobe")
int begin_call(void *context)
{
	u64 thread = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();
	struct counts *own = of_this_cpu();

	if (!own || !is_meant(context))
		return 0;
	own->calls++;
	/* The outermost call of a function that calls itself is the one that is timed... */
	bpf_map_update_elem(&starts, &thread, &now, BPF_NOEXIST);
	return 0;
}

SEC("uretprobe")
int end_call(void *context)
{
	u64 thread = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();
	struct counts *own = of_this_cpu();
	u64 *start = bpf_map_lookup_elem(&starts, &thread);

	if (!own || !start || !is_meant(context))
		return 0;
	/* ...up to the first return. */
	own->returns++;
	own->nanoseconds += now - *start;
	bpf_map_delete_elem(&starts, &thread);
	return 0;
}
