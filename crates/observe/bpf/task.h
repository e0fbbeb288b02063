/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Helpers for tasks, and the programs for wake-ups, shared by both objects.
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
 * Whether the current thread itself does the traced work, as opposed to an interrupt handler on top of it. Kernels that do not list the
 * address of the variable refuse programs that use it, so these programs have two variants, of which user space loads one.
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
 * Whether a task that is switched out sleeps. The tracepoint's argument does not help: it exists since 5.18, and up to 6.13
 * it reports a sleep that a signal prevented. The field is reliable here, under the run queue's lock.
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

/* Defines a program for each of the two events that enqueue a thread: after a sleep, and when it is new. */
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

/* Runs in the context of the waker, unlike sched_wakeup. Defines both variants (see is_own_work). */
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
