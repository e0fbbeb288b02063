/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The maps, and the states of a vCPU.
 *
 * A state ends when another begins, and whoever begins one adds the time of the one before to its account, under the vCPU's
 * lock: so the account sums to `since` minus when the vCPU was first watched, whoever reads it and whenever.
 */
#ifndef TANDEM_STATE_H
#define TANDEM_STATE_H

#include "model.h"
#include "task.h"

/* User space makes the maps as large as it needs before it loads them. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct vcpu);
} vcpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct pcpu);
} pcpus SEC(".maps");

/* Thread to index in `vcpus`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} watched SEC(".maps");

/* One bit for threads whose number ends in its place: most threads of a host are not watched, and need no look into `watched`. */
#define FILTER_WORDS 1024u
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FILTER_WORDS);
	__type(key, u32);
	__type(value, u64);
} filter SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct sibling);
	__type(value, u32);
} siblings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct lost);
} lost SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct settings);
} settings SEC(".maps");

/*
 * Edges and links are taken away when they are read. One of two maps is written; user space puts the other in its place,
 * which the kernel ends only when no program uses the first any more, and empties the first in peace.
 */
#define TAKEN_AWAY(name, of_key, of_value)					\
	struct name##_map {							\
		__uint(type, BPF_MAP_TYPE_HASH);				\
		__uint(max_entries, 1);						\
		__type(key, of_key);						\
		__type(value, of_value);					\
	} name##_0 SEC(".maps"), name##_1 SEC(".maps");				\
	struct {								\
		__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);			\
		__uint(max_entries, 1);						\
		__type(key, u32);						\
		__array(values, struct name##_map);				\
	} name SEC(".maps") = { .values = { &name##_0 } }

TAKEN_AWAY(edges, struct edge_key, struct edge);
TAKEN_AWAY(links, struct link_key, struct link);

/*
 * Not static: clang would make these narrower than their types say, and the kernel refuses that.
 *
 * Whether entries into guests were ever seen. Where KVM tells of none, a vCPU in KVM_RUN counts as RUN.
 */
u32 sees_entries;
/* Whether calls of KVM_RUN are. If neither, nothing tells when the VMM's own code ends, and it counts as RUN too. */
u32 sees_calls;

/* Whether the begin of a halt is. If not, its end tells how long it was. */
u32 sees_halts;

static __always_inline u32 watched_index(u32 tid)
{
	u32 word = (tid >> 6) & (FILTER_WORDS - 1);
	u64 *bits = bpf_map_lookup_elem(&filter, &word);
	u32 *index;

	if (!bits || !(*bits >> (tid & 63) & 1))
		return NOBODY;
	index = bpf_map_lookup_elem(&watched, &tid);
	return index ? *index : NOBODY;
}

static __always_inline struct vcpu *vcpu_of(u32 index)
{
	return bpf_map_lookup_elem(&vcpus, &index);
}

static __always_inline struct pcpu *pcpu_of(u32 cpu)
{
	return bpf_map_lookup_elem(&pcpus, &cpu);
}

static __always_inline struct vcpu *current_vcpu(void)
{
	u32 index = watched_index((u32)bpf_get_current_pid_tgid());

	return index == NOBODY ? 0 : vcpu_of(index);
}

/* An account of a state. The verifier must see the bound right where it is used, so clang may not move it. */
static __always_inline u64 *time_of(struct vcpu *v, u64 state)
{
	barrier_var(state);
	state &= STATES - 1;
	return &v->time[state];
}

/* Begins a state. A vCPU of which nothing was known was in state `before`. Under the vCPU's lock. */
static __always_inline void begin(struct vcpu *v, u32 before, u32 state, u64 now)
{
	u32 was = v->state == UNKNOWN ? before : v->state;

	/* The clocks of two pCPUs, or a program that was interrupted after it read the time, may be a little late. */
	if (now > v->since) {
		*time_of(v, was) += now - v->since;
		v->since = now;
	}
	if (was != ENDED)
		v->state = state;
}

/* Whether somebody in that state is on a pCPU, or off all of them. */
static __always_inline bool is_on(u32 state)
{
	return state <= POLL;
}

static __always_inline bool is_off(u32 state)
{
	return state == READY || state == LIMITED || state == ASLEEP;
}

/*
 * What happens to a vCPU contradicts its state: something was not told. When it was, and so what the vCPU did since it was last heard of,
 * is not known. Under the vCPU's lock.
 */
static __always_inline void begin_after_gap(struct vcpu *v, u32 state, u64 now)
{
	if (now > v->since) {
		v->time[UNKNOWN] += now - v->since;
		v->since = now;
	}
	v->unlisted_since = 0;
	v->state = state;
}

/* A vCPU that is on a pCPU turns to another work. */
static __always_inline void turn_to(struct vcpu *v, u32 mode)
{
	u64 now = bpf_ktime_get_ns();

	bpf_spin_lock(&v->lock);
	/* It came unseen. If it is in the list of who waits, the next who looks there takes it off. */
	if (is_off(v->state))
		begin_after_gap(v, mode, now);
	else if (is_on(v->state) || v->state == UNKNOWN)
		begin(v, v->mode, mode, now);
	v->mode = mode;
	bpf_spin_unlock(&v->lock);
}

/* What the host does for a guest that left guest mode. */
static __always_inline u32 mode_in_kvm(void)
{
	return sees_entries ? VMM : RUN;
}

/*
 * Whether a quota keeps a task off. From 6.18 on each task says so itself: one that is in the kernel goes on, and competes, while its
 * group has used up its quota. Before, a group's queue, or that of one above it, was kept off as a whole. The run queue lives
 * as long as it has tasks; should it be gone all the same, because the thread just changed its group, the read fails or gives
 * an old answer. Quotas are of fair tasks: real-time ones have a place in such a queue too, and are not kept off with it.
 */
static __always_inline bool is_limited(u64 task_address, u64 queue_address)
{
	struct task_struct *task = (struct task_struct *)task_address;
	struct cfs_rq *queue = (struct cfs_rq *)queue_address;

	if (!task || BPF_CORE_READ(task, prio) < MAX_RT_PRIO)
		return false;
	if (bpf_core_field_exists(task->throttled))
		return BPF_CORE_READ(task, throttled);
	if (!queue || !bpf_core_field_exists(queue->throttle_count))
		return false;
	return BPF_CORE_READ(queue, throttle_count) > 0;
}

static __always_inline u64 queue_of(struct task_struct *task)
{
	if (!bpf_core_field_exists(task->se.cfs_rq))
		return 0;
	return (u64)task->se.cfs_rq;
}

/* The same on a pCPU to which it is about to move. */
static __always_inline u64 queue_on(struct task_struct *task, u32 cpu)
{
	struct cfs_rq **queues, *queue = 0;

	if (!bpf_core_field_exists(task->sched_task_group) || !bpf_core_field_exists(struct task_group, cfs_rq))
		return 0;
	queues = BPF_CORE_READ(task, sched_task_group, cfs_rq);
	bpf_probe_read_kernel(&queue, sizeof(queue), queues + cpu);
	return (u64)queue;
}

static __always_inline u32 log2(u64 value)
{
	u32 bits = 0;

	if (value >> 32)
		return BUCKETS - 1;
	if (value >> 16) {
		value >>= 16;
		bits += 16;
	}
	if (value >> 8) {
		value >>= 8;
		bits += 8;
	}
	if (value >> 4) {
		value >>= 4;
		bits += 4;
	}
	if (value >> 2) {
		value >>= 2;
		bits += 2;
	}
	return bits + (value >> 1);
}

#endif
