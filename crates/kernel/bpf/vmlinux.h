/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The few kernel types that our programs look into, each with no more than the fields used. Offsets are those of
 * the running kernel: libbpf relocates every access (CO-RE) against /sys/kernel/btf/vmlinux.
 */
#ifndef MEGAPAGE_VMLINUX_H
#define MEGAPAGE_VMLINUX_H

typedef unsigned char u8;
typedef int s32;
typedef unsigned int u32;
typedef long long s64;
typedef unsigned long long u64;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	u64 pgd;
} pgd_t;

struct mm_struct {
	pgd_t *pgd;
	unsigned long start_stack;
};

struct task_struct {
	unsigned int flags;
	struct mm_struct *mm;
	u64 start_boottime;
};

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	unsigned long vm_flags;
};

#pragma clang attribute pop

/* linux/sched.h */
#define PF_EXITING 0x00000004
/* linux/mm.h */
#define VM_HUGETLB 0x00400000

/* uapi/linux/bpf.h: map types, flags, and helpers by number. */
#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_F_MMAPABLE (1U << 10)
#define BPF_NOEXIST 1

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static u64 (*const bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*const bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*const bpf_get_ns_current_pid_tgid)(u64 device, u64 inode, void *numbers, u32 size) = (void *)120;
static u64 (*const bpf_get_attach_cookie)(void *context) = (void *)174;
static long (*const bpf_find_vma)(struct task_struct *task, u64 address, void *callback, void *context,
				  u64 flags) = (void *)180;
static long (*const bpf_loop)(u32 count, void *callback, void *context, u64 flags) = (void *)181;

/* kernel/bpf/helpers.c: functions that a program may call by name. */
#define __ksym __attribute__((section(".ksyms")))
#define __weak __attribute__((weak))
extern struct task_struct *bpf_task_from_pid(s32 pid) __ksym;
extern struct task_struct *bpf_task_from_vpid(s32 pid) __ksym __weak;
extern void bpf_task_release(struct task_struct *task) __ksym;
extern void bpf_rcu_read_lock(void) __ksym;
extern void bpf_rcu_read_unlock(void) __ksym;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]
#define __type(name, type) typeof(type) *name

#endif
