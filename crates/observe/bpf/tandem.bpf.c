// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT
/*
 * Where the time of watched vCPUs goes, and who waits for whom, added up in the kernel.
 *
 * No event leaves the kernel: user space reads sums, when it likes. A vCPU is a thread that user space named; what other
 * threads do costs one look at a filter, two at a switch.
 *
 *	sched_switch, sched_wakeup, sched_migrate_task	on a pCPU, READY, ASLEEP
 *	kvm_entry, kvm_exit, kvm_userspace_exit		RUN or VMM
 *	kvm_vcpu_halt, kvm_vcpu_wakeup			POLL
 *	unthrottle_cfs_rq				LIMITED or READY
 *
 * Only the scheduler's are needed; user space attaches of the others what the kernel has, and says what is missing.
 */
#include "wait.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

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

static __always_inline void switch_in(u32 cpu, u32 index, u64 now)
{
	struct vcpu *v = vcpu_of(index);

	wait_no_more(cpu, index, now);
	if (!v)
		return;
	bpf_spin_lock(&v->lock);
	begin(v, READY, v->mode, now);
	bpf_spin_unlock(&v->lock);
	v->runs++;
	if (v->woken_at) {
		u64 bucket = now > v->woken_at ? log2(now - v->woken_at) : 0;

		barrier_var(bucket);
		bucket &= BUCKETS - 1;
		v->latency[bucket]++;
		v->woken_at = 0;
	}
}

static __always_inline void switch_out(u32 cpu, u32 index, struct task_struct *task, bool asleep, u64 now)
{
	struct vcpu *v = vcpu_of(index);
	u32 state = ASLEEP;

	if (!v)
		return;
	if (!asleep) {
		v->cfs_rq = queue_of(task);
		v->pcpu = cpu;
		state = is_limited(v->cfs_rq) ? LIMITED : READY;
	}
	bpf_spin_lock(&v->lock);
	if (asleep) {
		v->slept_at = now;
		v->slept_after = v->since;
	}
	/* Polling was in vain, and ended before the way into sleep. */
	if (asleep && v->state == POLL && v->poll_until < now)
		begin(v, POLL, mode_in_kvm(), v->poll_until);
	begin(v, v->mode, state, now);
	if (asleep && v->mode == POLL)
		v->mode = mode_in_kvm();
	bpf_spin_unlock(&v->lock);
	if (!asleep)
		wait_for(cpu, index, now);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	u32 cpu = bpf_get_smp_processor_id();
	u32 out = watched_index(prev->pid);
	u32 in = watched_index(next->pid);
	struct pcpu *p = pcpu_of(cpu);
	u64 now;

	if (!p)
		return 0;
	p->running = next->pid + 1;
	if (out == NOBODY && in == NOBODY && !*(volatile u32 *)&p->count)
		return 0;
	now = bpf_ktime_get_ns();
	if (*(volatile u32 *)&p->count) {
		/* The current task is still the one that is switched out. */
		charge_all(cpu, prev->pid, bpf_get_current_task(), now);
	}
	if (in != NOBODY)
		switch_in(cpu, in, now);
	if (out != NOBODY)
		switch_out(cpu, out, prev, sleeps(preempt, prev), now);
	return 0;
}

static __always_inline int woken(struct task_struct *task)
{
	u32 index = watched_index(task->pid);
	struct vcpu *v;
	bool was_asleep;
	u32 state, cpu;
	u64 now, queue;

	if (index == NOBODY)
		return 0;
	v = vcpu_of(index);
	if (!v || (v->state != ASLEEP && v->state != UNKNOWN) || task->on_cpu)
		return 0;
	cpu = pcpu_of_task(task);
	queue = queue_of(task);
	state = is_limited(queue) ? LIMITED : READY;
	now = bpf_ktime_get_ns();
	v->cfs_rq = queue;
	v->pcpu = cpu;
	v->woken_at = now;
	bpf_spin_lock(&v->lock);
	was_asleep = v->state == ASLEEP || v->state == UNKNOWN;
	if (was_asleep)
		begin(v, ASLEEP, state, now);
	bpf_spin_unlock(&v->lock);
	if (was_asleep)
		wait_for(cpu, index, now);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *task)
{
	return woken(task);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_wakeup_new, struct task_struct *task)
{
	return woken(task);
}

/* A vCPU that waits is moved to the queue of another pCPU. */
SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *task, int to)
{
	u32 index = watched_index(task->pid);
	struct pcpu *from;
	struct vcpu *v;
	u64 now, since;
	u32 state;

	if (index == NOBODY)
		return 0;
	v = vcpu_of(index);
	if (!v)
		return 0;
	state = v->state;
	if (state != READY && state != LIMITED)
		return 0;
	from = pcpu_of(v->pcpu);
	if (!from || v->pcpu == (u32)to)
		return 0;
	now = bpf_ktime_get_ns();
	since = wait_no_more(v->pcpu, index, now);
	if (state == READY && now > since && from->running)
		charge(index, from->running - 1, 0, now - since);
	v->cfs_rq = queue_on(task, to);
	v->pcpu = to;
	wait_for(to, index, now);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	u32 tid = task->pid;
	u32 index = watched_index(tid);
	struct vcpu *v;
	u64 now;

	if (index == NOBODY)
		return 0;
	/* Its number may be another's soon. */
	bpf_map_delete_elem(&watched, &tid);
	v = vcpu_of(index);
	if (!v)
		return 0;
	now = bpf_ktime_get_ns();
	bpf_spin_lock(&v->lock);
	begin(v, v->mode, ENDED, now);
	bpf_spin_unlock(&v->lock);
	return 0;
}

static __always_inline void count_link(u32 to, u32 wakes, u32 ipis, u32 yields, u32 made)
{
	struct link_key key = { .from = watched_index((u32)bpf_get_current_pid_tgid()), .to = to };
	struct lost *lost;
	struct link *link;
	u32 zero = 0;
	void *map;

	if (key.from == NOBODY || to == NOBODY || key.from == to)
		return;
	map = bpf_map_lookup_elem(&links, &zero);
	if (!map)
		return;
	link = bpf_map_lookup_elem(map, &key);
	if (!link) {
		struct link fresh = {};

		bpf_map_update_elem(map, &key, &fresh, BPF_NOEXIST);
		link = bpf_map_lookup_elem(map, &key);
	}
	if (link) {
		__sync_fetch_and_add(&link->wakes, wakes);
		__sync_fetch_and_add(&link->ipis, ipis);
		__sync_fetch_and_add(&link->yields, yields);
		__sync_fetch_and_add(&link->yields_made, made);
		return;
	}
	lost = losses();
	if (lost)
		__sync_fetch_and_add(&lost->links, 1);
}

/* In the context of the waker, which sched_wakeup need not be. */
SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *task)
{
	u32 to = watched_index(task->pid);

	if (to != NOBODY && is_own_work())
		count_link(to, 1, 0, 0, 0);
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking_unsure, struct task_struct *task)
{
	u32 to = watched_index(task->pid);

	if (to != NOBODY)
		count_link(to, 1, 0, 0, 0);
	return 0;
}

static __always_inline int entered(void)
{
	struct vcpu *v = current_vcpu();

	if (!v)
		return 0;
	if (!sees_entries)
		sees_entries = 1;
	turn_to(v, RUN);
	return 0;
}

static __always_inline int exited(void)
{
	struct vcpu *v = current_vcpu();

	if (!v)
		return 0;
	v->exits++;
	turn_to(v, VMM);
	return 0;
}

SEC("tp_btf/kvm_entry")
int BPF_PROG(on_entry)
{
	return entered();
}

SEC("tp_btf/kvm_exit")
int BPF_PROG(on_kvm_exit)
{
	return exited();
}

/* The back end of KVM for hosts without VT-x or AMD-V has neither tracepoint. */
SEC("fentry/pvm_vcpu_run")
int BPF_PROG(on_pvm_entry)
{
	return entered();
}

SEC("fexit/pvm_vcpu_run")
int BPF_PROG(on_pvm_exit)
{
	return exited();
}

SEC("tp_btf/kvm_userspace_exit")
int BPF_PROG(on_userspace_exit)
{
	struct vcpu *v = current_vcpu();

	if (!v)
		return 0;
	v->user_exits++;
	if (sees_entries || sees_calls)
		turn_to(v, VMM);
	return 0;
}

SEC("fentry/kvm_arch_vcpu_ioctl_run")
int BPF_PROG(on_run)
{
	struct vcpu *v = current_vcpu();

	if (!v)
		return 0;
	if (!sees_calls)
		sees_calls = 1;
	turn_to(v, mode_in_kvm());
	return 0;
}

SEC("fentry/kvm_vcpu_halt")
int BPF_PROG(on_halt, struct kvm_vcpu *vcpu)
{
	struct vcpu *v = current_vcpu();
	u32 longest;

	if (!v)
		return 0;
	if (!sees_halts)
		sees_halts = 1;
	longest = BPF_CORE_READ(vcpu, halt_poll_ns);
	if (longest) {
		v->poll_until = bpf_ktime_get_ns() + longest;
		turn_to(v, POLL);
	}
	return 0;
}

/* Polling was in vain: the vCPU is about to sleep. Where the compiler put this function into the one above, `poll_until` serves. */
SEC("fentry/kvm_vcpu_block")
int BPF_PROG(on_block)
{
	struct vcpu *v = current_vcpu();

	if (v && v->mode == POLL)
		turn_to(v, mode_in_kvm());
	return 0;
}

/*
 * A halt ended, after `ns`. If on_halt saw it begin, POLL is accounted already, or ends now. If there is no on_halt, what the vCPU
 * did on its pCPU since the halt began was polling: it is moved from RUN or VMM, of which it was taken for a part.
 */
SEC("tp_btf/kvm_vcpu_wakeup")
int BPF_PROG(on_kvm_wakeup, u64 ns, bool waited)
{
	struct vcpu *v = current_vcpu();
	u32 mode = mode_in_kvm();
	u64 now, began, polled, *from;

	if (!v)
		return 0;
	v->halts++;
	now = bpf_ktime_get_ns();
	began = now - ns;
	bpf_spin_lock(&v->lock);
	if (v->mode == POLL) {
		begin(v, POLL, mode, now);
	} else if (!sees_halts && v->state <= POLL) {
		if (!waited) {
			begin(v, v->mode, POLL, began);
			begin(v, POLL, mode, now);
		} else if (v->slept_at > began) {
			polled = v->slept_at - (began > v->slept_after ? began : v->slept_after);
			from = time_of(v, v->mode);
			if (*from > polled) {
				*from -= polled;
				v->time[POLL] += polled;
			}
			v->slept_at = 0;
			begin(v, v->mode, mode, now);
		}
	}
	v->mode = mode;
	bpf_spin_unlock(&v->lock);
	return 0;
}

static __always_inline int count_ipi(struct vcpu *v)
{
	if (v)
		v->ipis++;
	return 0;
}

SEC("tp_btf/kvm_apic_ipi")
int BPF_PROG(on_ipi)
{
	return is_own_work() ? count_ipi(current_vcpu()) : 0;
}

SEC("tp_btf/kvm_apic_ipi")
int BPF_PROG(on_ipi_unsure)
{
	return count_ipi(current_vcpu());
}

/* In the context of the sender. The number of an APIC is that of its vCPU, unless the guest changed it. */
static __always_inline int interrupt_to(u32 apic)
{
	struct vcpu *v = current_vcpu();
	struct sibling sibling = { .vcpu = apic };
	u32 *to;

	if (!v)
		return 0;
	sibling.vm = v->vm;
	to = bpf_map_lookup_elem(&siblings, &sibling);
	if (to)
		count_link(*to, 0, 1, 0, 0);
	return 0;
}

SEC("tp_btf/kvm_apic_accept_irq")
int BPF_PROG(on_accept_irq, u32 apic)
{
	return is_own_work() ? interrupt_to(apic) : 0;
}

SEC("tp_btf/kvm_apic_accept_irq")
int BPF_PROG(on_accept_irq_unsure, u32 apic)
{
	return interrupt_to(apic);
}

SEC("fentry/kvm_vcpu_on_spin")
int BPF_PROG(on_spin)
{
	struct vcpu *v = current_vcpu();

	if (v)
		v->spins++;
	return 0;
}

SEC("fexit/kvm_vcpu_yield_to")
int BPF_PROG(on_yield_to, struct kvm_vcpu *target, int made)
{
	u32 to;

	if (!current_vcpu())
		return 0;
	to = watched_index(BPF_CORE_READ(target, pid, numbers[0].nr));
	count_link(to, 0, 0, 1, made > 0);
	return 0;
}

/* A quota is filled up again. Under the lock of the queue's pCPU. */
SEC("fexit/unthrottle_cfs_rq")
int BPF_PROG(on_unthrottle, struct cfs_rq *queue)
{
	u32 cpu = BPF_CORE_READ(queue, rq, cpu);
	struct pcpu *p = pcpu_of(cpu);

	if (p && p->count && p->running)
		charge_all(cpu, p->running - 1, 0, bpf_ktime_get_ns());
	return 0;
}

/* What a vCPU does that was not yet seen to do anything. */
SEC("iter/task")
int find_out(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	bool known = false;
	struct vcpu *v;
	u32 index, cpu;
	u64 now;

	if (!task)
		return 0;
	index = watched_index(task->pid);
	if (index == NOBODY)
		return 0;
	v = vcpu_of(index);
	if (!v || v->state != UNKNOWN)
		return 0;
	now = bpf_ktime_get_ns();
	if (task->on_cpu || sleeps(false, task)) {
		u32 state = task->on_cpu ? v->mode : ASLEEP;

		bpf_spin_lock(&v->lock);
		if (v->state == UNKNOWN)
			begin(v, state, state, now);
		bpf_spin_unlock(&v->lock);
		return 0;
	}
	cpu = pcpu_of_task(task);
	v->pcpu = cpu;
	v->cfs_rq = queue_of(task);
	wait_for(cpu, index, now);
	bpf_spin_lock(&v->lock);
	if (v->state == UNKNOWN)
		begin(v, READY, READY, now);
	else
		known = true;
	bpf_spin_unlock(&v->lock);
	if (known)
		wait_no_more(cpu, index, now);
	return 0;
}

static u32 next_pcpu;

/* Charges who waits for the next pCPU in turn. User space runs it once for each before it reads, and once more, for the turn. */
SEC("tc")
int settle(struct __sk_buff *ctx)
{
	u32 cpu = next_pcpu;
	struct pcpu *p = pcpu_of(cpu);

	next_pcpu = p ? cpu + 1 : 0;
	if (p && p->count && p->running)
		charge_all(cpu, p->running - 1, 0, bpf_ktime_get_ns());
	return 0;
}
