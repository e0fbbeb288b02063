/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * What both objects ask of tasks, and the programs that hear of wake-ups.
 */
#ifndef TANDEM_TASK_H
#define TANDEM_TASK_H

#include "vmlinux.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

extern const int __preempt_count __ksym __weak;
extern const struct pcpu_hot pcpu_hot __ksym __weak;

/*
 * Whether the current thread does what is done, or was interrupted by who does it. Kernels that do not tell where their
 * variables are refuse programs that ask this, so those come in two forms, of which user space loads one.
 */
static __always_inline bool is_own_work(void)
{
	u32 count = 0;

	if (&__preempt_count)
		count = *(const u32 *)bpf_this_cpu_ptr(&__preempt_count);
	else if (&pcpu_hot)
		count = ((const struct pcpu_hot *)bpf_this_cpu_ptr(&pcpu_hot))->preempt_count;
	return !(count & IN_INTERRUPT);
}

static __always_inline u32 pcpu_of_task(struct task_struct *task)
{
	struct task_struct___old *old = (void *)task;

	if (bpf_core_field_exists(task->thread_info.cpu))
		return task->thread_info.cpu;
	return old->cpu;
}

/*
 * Whether a task that is switched out can go on. The argument of the tracepoint is no help: it came with 5.18, and up to 6.13
 * it says that a task sleeps which a signal kept from sleeping. The field is true here, under the run queue's lock.
 */
static __always_inline bool sleeps(bool preempt, struct task_struct *task)
{
	struct task_struct___old *old = (void *)task;

	if (preempt)
		return false;
	if (bpf_core_field_exists(task->__state))
		return task->__state != 0;
	return old->state != 0;
}

/* A program for each of the two events of a thread that is in a queue now: it slept, or it is new. */
#define ON_WAKEUP(program, woken)					\
	SEC("tp_btf/sched_wakeup")					\
	int BPF_PROG(program, struct task_struct *task)			\
	{								\
		return woken(task, false);				\
	}								\
									\
	SEC("tp_btf/sched_wakeup_new")					\
	int BPF_PROG(program##_new, struct task_struct *task)		\
	{								\
		return woken(task, true);				\
	}

/* In the context of the waker, which sched_wakeup need not be. In both forms (is_own_work). */
#define ON_WAKING(program, waking)					\
	SEC("tp_btf/sched_waking")					\
	int BPF_PROG(program, struct task_struct *task)			\
	{								\
		return waking(task, is_own_work());			\
	}								\
									\
	SEC("tp_btf/sched_waking")					\
	int BPF_PROG(program##_unsure, struct task_struct *task)	\
	{								\
		return waking(task, true);				\
	}

#endif
