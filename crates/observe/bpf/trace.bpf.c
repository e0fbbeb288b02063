// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT
/*
 * Records every switch of this host for some seconds, and the wake-ups and migrations of traced threads.
 *
 * Events leave by a ring buffer in the order of their reservation, which is nearly that of time; user space sorts them. The events of
 * each pCPU are numbered, and dropped events use up numbers, so that the reader detects gaps. No other state is kept.
 *
 * This object is separate from tandem.bpf.c, which runs all day and emits no events.
 */
#include "task.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* From the kernel's uapi. */
#define MAP_TYPE_PERCPU_ARRAY 6
#define MAP_TYPE_RINGBUF 27

/* Kinds of events; src/trace/event.rs has the same in Rust. */
enum {
	SWITCH,		/* `from` left the pCPU, `to` entered it */
	WAKE,		/* `from` woke `to`, which is now in that pCPU's queue */
	MOVE,		/* `to` is now in that pCPU's queue */
};

#define FROM_SLEEPS 1u		/* `from` is not runnable */
#define TO_IS_KERNEL 2u		/* `to` is a kernel thread */

struct event {
	u64 at;
	u32 kind;
	u32 pcpu;
	u32 from;		/* thread; 0 is idle */
	u32 to;
	u32 tgid;		/* of `to` */
	u32 flags;
	u32 seen_on;		/* the pCPU on which the program ran */
	u32 number;		/* of the event on that pCPU, from 0 on */
	char comm[16];		/* of `to` */
};

struct {
	__uint(type, MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

/* Threads whose wake-ups and migrations are recorded, with the last waker of each: 0 if that was an interrupt. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} traced SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} dropped SEC(".maps");

/* Number of events of each pCPU, including dropped ones. The programs run with interrupts off. */
struct {
	__uint(type, MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} written SEC(".maps");

static __always_inline struct event *begin(u32 kind, u32 pcpu)
{
	u32 zero = 0;
	u64 *count = bpf_map_lookup_elem(&written, &zero);
	struct event *e;
	u32 number;

	if (!count)
		return 0;
	number = (u32)*count;
	*count += 1;
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		count = bpf_map_lookup_elem(&dropped, &zero);
		if (count)
			__sync_fetch_and_add(count, 1);
		return 0;
	}
	e->at = bpf_ktime_get_ns();
	e->kind = kind;
	e->pcpu = pcpu;
	e->flags = 0;
	e->seen_on = bpf_get_smp_processor_id();
	e->number = number;
	return e;
}

static __always_inline void name(struct event *e, struct task_struct *to)
{
	e->to = to->pid;
	e->tgid = to->tgid;
	if (to->flags & PF_KTHREAD)
		e->flags |= TO_IS_KERNEL;
	bpf_probe_read_kernel_str(&e->comm, sizeof(e->comm), &to->comm);
}

static __always_inline bool is_traced(struct task_struct *task)
{
	u32 tid = task->pid;

	return bpf_map_lookup_elem(&traced, &tid);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(trace_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct event *e = begin(SWITCH, bpf_get_smp_processor_id());

	if (!e)
		return 0;
	e->from = prev->pid;
	if (sleeps(preempt, prev))
		e->flags |= FROM_SLEEPS;
	name(e, next);
	bpf_ringbuf_submit(e, 0);
	return 0;
}

static __always_inline int waking(struct task_struct *task, bool is_own)
{
	u32 tid = task->pid;
	u32 *by = bpf_map_lookup_elem(&traced, &tid);

	if (by)
		*by = is_own ? (u32)bpf_get_current_pid_tgid() : 0;
	return 0;
}

ON_WAKING(trace_waking, waking)

static __always_inline int woken(struct task_struct *task, bool is_new)
{
	u32 tid = task->pid;
	u32 *by = bpf_map_lookup_elem(&traced, &tid);
	struct event *e;

	if (!by)
		return 0;
	e = begin(WAKE, pcpu_of_task(task));
	if (!e)
		return 0;
	/* The current task may be unrelated: its pCPU was interrupted. */
	e->from = is_new ? (u32)bpf_get_current_pid_tgid() : *by;
	name(e, task);
	bpf_ringbuf_submit(e, 0);
	return 0;
}

ON_WAKEUP(trace_wakeup, woken)

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(trace_move, struct task_struct *task, int to)
{
	struct event *e;

	if (!is_traced(task))
		return 0;
	e = begin(MOVE, to);
	if (!e)
		return 0;
	e->from = 0;
	name(e, task);
	bpf_ringbuf_submit(e, 0);
	return 0;
}
