/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The kernel's types that the programs use.
 *
 * Written by hand. Each structure has only the used fields: libbpf relocates their offsets with the kernel's BTF when it loads the
 * programs (CO-RE), so order, size and omitted fields do not matter. Names with three underscores are variants of a structure in
 * other kernels.
 */
#ifndef TANDEM_VMLINUX_H
#define TANDEM_VMLINUX_H

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef signed short __s16;
typedef unsigned int __u32;
typedef signed int __s32;
typedef unsigned long long __u64;
typedef signed long long __s64;
/* Required by declarations of unused helpers. */
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;
typedef _Bool bool;
enum { false, true };

/* Of the interface to user space, whose numbers never change. */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
};
enum { BPF_ANY = 0, BPF_NOEXIST = 1 };
struct bpf_spin_lock {
	__u32 val;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node {
	u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
};

struct css_set {
	struct cgroup_subsys_state *subsys[1];
};

struct rq {
	int cpu;
};

struct cfs_rq {
	struct rq *rq;
	int throttle_count;
};

struct task_group {
	struct cfs_rq **cfs_rq;
};

struct sched_entity {
	struct cfs_rq *cfs_rq;
};

struct thread_info {
	u32 cpu;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int __state;
	/* An int before 7.3, a u8 since. Unsigned, so that CO-RE adjusts the size of direct loads. */
	unsigned int on_cpu;
	int prio;
	bool throttled;
	unsigned int flags;
	s32 pid;
	s32 tgid;
	u64 start_boottime;
	char comm[16];
	struct sched_entity se;
	struct task_group *sched_task_group;
	struct css_set *cgroups;
};

/* Before 5.14 the field was called so; before 5.16 the pCPU was here. */
struct task_struct___old {
	long state;
	unsigned int cpu;
};

struct upid {
	int nr;
};

struct pid {
	struct upid numbers[1];
};

struct kvm {
	bool override_halt_poll_ns;
	unsigned int max_halt_poll_ns;
};

struct kvm_vcpu_arch {
	u64 msr_kvm_poll_control;
};

struct kvm_vcpu {
	struct kvm *kvm;
	struct pid *pid;
	unsigned int halt_poll_ns;
	struct kvm_vcpu_arch arch;
};

struct bpf_iter_meta {
	u64 seq_num;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

/* 6.2 to 6.14 */
struct pcpu_hot {
	int preempt_count;
};

/* Their numbers differ from kernel to kernel: always through bpf_core_enum_value(). */
enum cgroup_subsys_id {
	cpu_cgrp_id,
};

#pragma clang attribute pop

/* Contexts that programs do not read. */
struct __sk_buff {
	__u32 len;
};

/* include/linux/sched.h */
#define PF_KTHREAD 0x00200000

/* include/linux/sched/prio.h: below are real-time and deadline tasks */
#define MAX_RT_PRIO 100

/* include/linux/preempt.h: interrupts of any kind that are being served */
#define IN_INTERRUPT 0x00ff0100

#endif
