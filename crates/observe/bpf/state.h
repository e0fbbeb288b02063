/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The maps, and the states of a vCPU.
 *
 * When a state begins, the program adds the time of the previous state to its sum, under the vCPU's lock. At any time, the sums
 * of a vCPU therefore equal `since` minus the start of watching.
 */
#ifndef TANDEM_STATE_H
#define TANDEM_STATE_H

#include "model.h"
#include "task.h"

/* User space sizes the maps before loading. */
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

/* Maps a thread to its index in `vcpus`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} watched SEC(".maps");

/* One bit per thread number modulo the size: most threads of a host are not watched, and skip the lookup in `watched`. */
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
 * Edges and links are double-buffered. The programs write one map; user space replaces it by the other and then empties it. The
 * kernel completes the replacement when no program uses the old map any more.
 */
#define DOUBLE_BUFFERED(name, of_key, of_value)					\
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

DOUBLE_BUFFERED(edges, struct edge_key, struct edge);
DOUBLE_BUFFERED(links, struct link_key, struct link);

/*
 * Not static: clang would narrow static variables, which the kernel then refuses.
 *
 * Whether guest entries were seen. If KVM reports none, a vCPU in KVM_RUN counts as RUN.
 */
u32 sees_entries;
/* Whether calls of KVM_RUN were seen. Without both, the end of the VMM's own code is unknown, and it counts as RUN too. */
u32 sees_calls;

/* Whether starts of halts were seen. Without them, the end of a halt reports its length. */
u32 sees_halts;

static __always_inline u32 watched_index(u32 tid)
{
	u32 word = (tid >> 6) & (FILTER_WORDS - 1);
	u64 *bits = bpf_map_lookup_elem(&filter, &word);
	u32 *index;

	if (!bits || !(*bits >> (tid & 63) & 1))
		return NO_VCPU;
	index = bpf_map_lookup_elem(&watched, &tid);
	return index ? *index : NO_VCPU;
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

	return index == NO_VCPU ? 0 : vcpu_of(index);
}

/* Returns the sum of a state. The verifier must see the bound where it is used, so clang may not move it. */
static __always_inline u64 *time_of(struct vcpu *v, u64 state)
{
	barrier_var(state);
	state &= STATES - 1;
	return &v->time[state];
}

/* Begins a state. A vCPU in state UNKNOWN was in state `before`. Under the vCPU's lock. */
static __always_inline void begin(struct vcpu *v, u32 before, u32 state, u64 now)
{
	u32 was = v->state == UNKNOWN ? before : v->state;

		/* `now` may precede `since`: clocks of pCPUs differ, and a program may be interrupted after it read the time. */
	if (now > v->since) {
		*time_of(v, was) += now - v->since;
		v->since = now;
	}
	if (was != ENDED)
		v->state = state;
}

/* Whether a vCPU in that state is on a pCPU. */
static __always_inline bool is_on(u32 state)
{
	return state <= POLL;
}

static __always_inline bool is_off(u32 state)
{
	return state == READY || state == LIMITED || state == ASLEEP;
}

/*
 * Begins a state after a missed event, which shows when an event contradicts the state of a vCPU. The time since its last
 * event is UNKNOWN. Under the vCPU's lock.
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

/* Changes the mode of a vCPU that is on a pCPU. */
static __always_inline void turn_to(struct vcpu *v, u32 mode)
{
	u64 now = bpf_ktime_get_ns();

	bpf_spin_lock(&v->lock);
	/* It was switched in unseen. If it is still in the list of a pCPU, the next switch there removes it. */
	if (is_off(v->state))
		begin_after_gap(v, mode, now);
	else if (is_on(v->state) || v->state == UNKNOWN)
		begin(v, v->mode, mode, now);
	v->mode = mode;
	bpf_spin_unlock(&v->lock);
}

/* Returns the state of a guest's thread in KVM outside guest mode. */
static __always_inline u32 mode_in_kvm(void)
{
	return sees_entries ? VMM : RUN;
}

/*
 * Whether a quota throttles a task. Since 6.18 each task has its own flag: a task in the kernel keeps running and competing after its
 * group used up its quota. Before, the run queues of a group and its descendants were throttled as a whole. The run queue lives
 * as long as it has tasks. If the thread just left its group and the queue is freed, the read fails or returns an old
 * value. Quotas apply to fair tasks only: real-time tasks can belong to such a group, but are not throttled with it.
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

/* The same for a pCPU that the task is about to move to. */
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
