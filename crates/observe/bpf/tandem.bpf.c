// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT
/*
 * Sums the times of watched vCPUs per state and per culprit in the kernel.
 *
 * No events leave the kernel: user space reads the sums at any time. A vCPU is a thread that user space registered; other
 * threads cost one filter lookup per event, two per switch.
 *
 *	sched_switch, sched_wakeup, sched_migrate_task	on a pCPU, READY, ASLEEP
 *	kvm_entry, kvm_exit, kvm_userspace_exit		RUN or VMM
 *	kvm_vcpu_halt, kvm_vcpu_wakeup			POLL
 *	unthrottle_cfs_rq				LIMITED or READY
 *
 * Only the scheduler's events are required; user space attaches the others if the kernel has them, and reports the missing ones.
 */
#include "wait.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

static __always_inline void switch_in(u32 cpu, u32 index, u64 now)
{
	struct vcpu *v = vcpu_of(index);

	wait_no_more(cpu, index);
	if (!v)
		return;
	end_unlisted(v, now);
	bpf_spin_lock(&v->lock);
	/* It is already on a pCPU: the switch out was missed, and whether it slept is unknown. */
	if (is_on(v->state)) {
		if (v->mode == POLL)
			v->mode = mode_in_kvm();
		begin_after_gap(v, v->mode, now);
	} else {
		begin(v, READY, v->mode, now);
	}
	bpf_spin_unlock(&v->lock);
	v->waited_until = now;
	v->runs++;
	if (v->woken_at) {
		u64 took = now > v->woken_at ? now - v->woken_at : 0;
		u64 bucket = log2(took);

		barrier_var(bucket);
		bucket &= BUCKETS - 1;
		v->latency[bucket]++;
		v->latency_time += took;
		v->woken_at = 0;
	}
}

/* Records the start of a wait for a pCPU. Returns LIMITED if a quota throttles the vCPU, else READY. */
static __always_inline u32 wait_of(struct vcpu *v, struct task_struct *task, u32 cpu, u64 now)
{
	v->task = (u64)task;
	v->cfs_rq = queue_of(task);
	v->pcpu = cpu;
	v->waits_since = now;
	return is_limited(v->task, v->cfs_rq) ? LIMITED : READY;
}

static __always_inline void switch_out(u32 cpu, u32 index, struct task_struct *task, bool asleep, bool missed, u64 now)
{
	struct vcpu *v = vcpu_of(index);
	u32 state = ASLEEP;

	if (!v)
		return;
	if (!asleep)
		state = wait_of(v, task, cpu, now);
	bpf_spin_lock(&v->lock);
	if (asleep) {
		v->slept_at = now;
		v->slept_after = v->since;
	}
	/* Polling timed out before the vCPU went to sleep. */
	if (asleep && v->state == POLL && v->poll_until < now)
		begin(v, POLL, mode_in_kvm(), v->poll_until);
	/* The switch in was missed, and possibly a switch out before it. */
	if (missed || is_off(v->state))
		begin_after_gap(v, state, now);
	else
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
	struct lost *lost;
	bool missed;
	u64 now;

	if (!p)
		return 0;
	if (!p->task)
		p->task = (u64)prev;
	/* Some kernels miss switches. Then the thread that ran since the last one is unknown, and no culprit is charged. */
	missed = p->task != (u64)prev;
	if (missed) {
		lost = losses();
		if (lost)
			__sync_fetch_and_add(&lost->switches, 1);
	}
	if (out == NO_VCPU && in == NO_VCPU && !*(volatile u32 *)&p->count) {
		p->task = (u64)next;
		return 0;
	}
	/* A concurrent `settle` must find the thread that ran up to now, and no vCPU may be charged for its own run time. So the
	 * vCPU that is switched in leaves the list first, and the vCPU that is switched out enters it last. */
	now = bpf_ktime_get_ns();
	if (*(volatile u32 *)&p->count)
		charge_all(cpu, now, missed ? IS_LOCKED | IS_GAP : IS_LOCKED);
	/* It was switched in unseen, and no longer waits. */
	if (missed && out != NO_VCPU)
		wait_no_more(cpu, out);
	if (in != NO_VCPU)
		switch_in(cpu, in, now);
	p->task = (u64)next;
	if (out != NO_VCPU)
		switch_out(cpu, out, prev, sleeps(preempt, prev), missed, now);
	return 0;
}

/* Whether the wake-up of a task that is on no pCPU begins a wait. For a state on a pCPU, the switch out was missed. */
static __always_inline bool can_be_woken(u32 state)
{
	return state == ASLEEP || state == UNKNOWN || is_on(state);
}

static __always_inline int woken(struct task_struct *task, bool is_new)
{
	u32 index = watched_index(task->pid);
	struct vcpu *v;
	bool was_asleep;
	u32 state, cpu;
	u64 now;

	if (index == NO_VCPU)
		return 0;
	v = vcpu_of(index);
	if (!v || !can_be_woken(v->state) || task->on_cpu)
		return 0;
	cpu = pcpu_of_task(task);
	now = bpf_ktime_get_ns();
	state = wait_of(v, task, cpu, now);
	v->woken_at = now;
	bpf_spin_lock(&v->lock);
	was_asleep = can_be_woken(v->state);
	if (is_on(v->state))
		begin_after_gap(v, state, now);
	else if (was_asleep)
		begin(v, ASLEEP, state, now);
	bpf_spin_unlock(&v->lock);
	if (was_asleep)
		wait_for(cpu, index, now);
	return 0;
}

ON_WAKEUP(on_wakeup, woken)

/* Moves a waiting vCPU to the queue of another pCPU. */
SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *task, int to)
{
	u32 index = watched_index(task->pid);
	struct pcpu *from;
	struct vcpu *v;
	u64 now, since, running;
	u32 state;

	if (index == NO_VCPU)
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
	since = wait_no_more(v->pcpu, index);
	end_unlisted(v, now);
	running = running_on(from, v->pcpu);
	if (state == READY && since && now > since && running)
		charge(index, running, now - since);
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

	if (index == NO_VCPU)
		return 0;
	/* The number may be reused soon. */
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

static __always_inline u32 current_index(void)
{
	return watched_index((u32)bpf_get_current_pid_tgid());
}

static __always_inline void count_link(u32 from, u32 to, struct link more)
{
	struct link_key key = { .from = from, .to = to };
	struct lost *lost;
	struct link *link;
	u32 zero = 0;
	void *map;

	if (key.from == NO_VCPU || to == NO_VCPU || key.from == to)
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
		if (more.wakes)
			__sync_fetch_and_add(&link->wakes, more.wakes);
		if (more.ipis)
			__sync_fetch_and_add(&link->ipis, more.ipis);
		if (more.yields)
			__sync_fetch_and_add(&link->yields, more.yields);
		if (more.yields_made)
			__sync_fetch_and_add(&link->yields_made, more.yields_made);
		if (more.costops)
			__sync_fetch_and_add(&link->costops, more.costops);
		if (more.costop_time)
			__sync_fetch_and_add(&link->costop_time, more.costop_time);
		return;
	}
	lost = losses();
	if (lost)
		__sync_fetch_and_add(&lost->links, 1);
}

/* Returns the length of the part of a time span after `since`. */
static __always_inline u64 part_after(u64 from, u64 until, u64 since)
{
	if (from < since)
		from = since;
	return until > from ? until - from : 0;
}

/*
 * Co-stop: a sleep of `to` that a sibling ends would have ended earlier, had that sibling not waited for a pCPU meanwhile. Counts the
 * sibling's last wait, and the last co-stop of the sibling itself, so that chains of siblings lead to the vCPU that
 * waited. This is a lower-bound estimate: other delays of the sibling are not seen, and `to` may have had
 * no work.
 */
static __always_inline void end_sleep(u32 to, u32 from)
{
	u64 now, since, waited = 0, handed = 0, slept;
	struct vcpu *v = vcpu_of(to);
	struct vcpu *by = from == NO_VCPU || from == to ? 0 : vcpu_of(from);

	if (!v || v->state != ASLEEP)
		return;
	v->costop_since = 0;
	v->costop_until = 0;
	if (!by || by->vm != v->vm)
		return;
	now = bpf_ktime_get_ns();
	/* No other waker ends this sleep: the kernel holds the sleeper's pi_lock. */
	since = v->since;
	waited = part_after(by->waits_since, by->waited_until, since);
	handed = part_after(by->costop_since, by->costop_until, since);
	if (!waited && !handed)
		return;
	bpf_spin_lock(&v->lock);
	slept = now > v->since ? now - v->since : 0;
	if (v->state != ASLEEP || waited + handed > slept) {
		waited = 0;
		handed = 0;
	} else {
		v->time[COSTOP] += waited + handed;
		v->time[ASLEEP] += slept - waited - handed;
		v->since = now;
	}
	bpf_spin_unlock(&v->lock);
	if (waited)
		count_link(from, to, (struct link){ .costops = 1, .costop_time = waited });
	if (handed)
		count_link(by->costop_for, to, (struct link){ .costops = 1, .costop_time = handed });
	/* The longer of the two, for vCPUs that `to` will wake. */
	if (waited && waited >= handed) {
		v->costop_since = by->waits_since > since ? by->waits_since : since;
		v->costop_until = by->waited_until;
		v->costop_for = from;
	} else if (handed) {
		v->costop_since = by->costop_since > since ? by->costop_since : since;
		v->costop_until = by->costop_until;
		v->costop_for = by->costop_for;
	}
}

static __always_inline int waking(struct task_struct *task, bool is_own)
{
	u32 to = watched_index(task->pid), from;

	if (to == NO_VCPU)
		return 0;
	from = is_own ? current_index() : NO_VCPU;
	count_link(from, to, (struct link){ .wakes = 1 });
	end_sleep(to, from);
	return 0;
}

ON_WAKING(on_waking, waking)

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

/* PVM, KVM's back end for hosts without VT-x or AMD-V, has neither tracepoint. */
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

/* Returns KVM's maximum polling time: fentry precedes its own checks (kvm_vcpu_max_halt_poll_ns, kvm_arch_no_poll). */
static __always_inline u64 longest_poll(struct kvm_vcpu *vcpu)
{
	u64 longest = BPF_CORE_READ(vcpu, halt_poll_ns), most = ~0ull;
	struct settings *told;
	struct kvm *kvm = 0;
	u32 zero = 0;

	/* The guest may have disabled host polling. */
	if (bpf_core_field_exists(vcpu->arch.msr_kvm_poll_control) && !(BPF_CORE_READ(vcpu, arch.msr_kvm_poll_control) & 1))
		return 0;
	if (bpf_core_field_exists(kvm->override_halt_poll_ns) && BPF_CORE_READ(vcpu, kvm, override_halt_poll_ns)) {
		most = BPF_CORE_READ(vcpu, kvm, max_halt_poll_ns);
	} else {
		told = bpf_map_lookup_elem(&settings, &zero);
		if (told)
			most = told->max_poll;
	}
	return longest < most ? longest : most;
}

SEC("fentry/kvm_vcpu_halt")
int BPF_PROG(on_halt, struct kvm_vcpu *vcpu)
{
	struct vcpu *v = current_vcpu();
	u64 longest;

	if (!v)
		return 0;
	if (!sees_halts)
		sees_halts = 1;
	longest = longest_poll(vcpu);
	if (longest) {
		v->poll_until = bpf_ktime_get_ns() + longest;
		turn_to(v, POLL);
	}
	return 0;
}

/* Polling timed out, and the vCPU is about to sleep. If the compiler inlined this function, `poll_until` serves instead. */
SEC("fentry/kvm_vcpu_block")
int BPF_PROG(on_block)
{
	struct vcpu *v = current_vcpu();

	if (v && v->mode == POLL)
		turn_to(v, mode_in_kvm());
	return 0;
}

/*
 * A halt ended, after `ns`. If on_halt saw its start, POLL is already counted, or ends now. Without on_halt, the time that the vCPU
 * spent on its pCPU since the start of the halt was polling; it is moved from RUN or VMM to POLL.
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

/* Runs in the context of the sender. An APIC id equals the number of its vCPU, unless the guest changed it. */
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
		count_link(current_index(), *to, (struct link){ .ipis = 1 });
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
	count_link(current_index(), to, (struct link){ .yields = 1, .yields_made = made > 0 });
	return 0;
}

/* Runs after a quota was refilled, under the lock of the queue's pCPU. */
SEC("fexit/unthrottle_cfs_rq")
int BPF_PROG(on_unthrottle, struct cfs_rq *queue)
{
	u32 cpu = BPF_CORE_READ(queue, rq, cpu);
	struct pcpu *p = pcpu_of(cpu);

	if (p && p->count)
		charge_all(cpu, bpf_ktime_get_ns(), 0);
	return 0;
}

/* Ends a vCPU whose thread number belongs to another thread. */
static __always_inline void end_mismatched(struct vcpu *v, u32 tid)
{
	bpf_map_delete_elem(&watched, &tid);
	bpf_spin_lock(&v->lock);
	v->state = ENDED;
	bpf_spin_unlock(&v->lock);
}

/*
 * Verifies the start times of the watched threads, and sets the states of those without an event so far. Also finds the running
 * tasks of pCPUs without a switch so far.
 */
SEC("iter/task")
int find_out(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	bool waits = false;
	struct pcpu *p;
	struct vcpu *v;
	u32 index, cpu, state;
	u64 now, queue;

	if (!task)
		return 0;
	cpu = pcpu_of_task(task);
	if (task->on_cpu) {
		p = pcpu_of(cpu);
		if (p && !p->task)
			p->found = (u64)task;
	}
	index = watched_index(task->pid);
	if (index == NO_VCPU)
		return 0;
	v = vcpu_of(index);
	if (!v)
		return 0;
	if (!v->is_found) {
		if (task->start_boottime < v->born_from || task->start_boottime >= v->born_to) {
			end_mismatched(v, task->pid);
			return 0;
		}
		v->is_found = 1;
	}
	if (v->state != UNKNOWN)
		return 0;
	now = bpf_ktime_get_ns();
	queue = queue_of(task);
	state = task->on_cpu ? v->mode : sleeps(false, task) ? ASLEEP : READY;
	bpf_spin_lock(&v->lock);
	if (v->state == UNKNOWN) {
		if (state == READY) {
			waits = true;
			v->task = (u64)task;
			v->cfs_rq = queue;
			v->pcpu = cpu;
			v->waits_since = v->since;
		}
		begin(v, state, state, now);
	}
	bpf_spin_unlock(&v->lock);
	/* Without the run queue's lock. If it already runs, this entry is stale, and the next switch there removes it. */
	if (waits)
		wait_for(cpu, index, now);
	return 0;
}

static u32 next_pcpu;

/* Charges the waits for the next pCPU. Before it reads, user space runs it once for each pCPU, and once more to wrap around. */
SEC("tc")
int settle(struct __sk_buff *ctx)
{
	u32 cpu = next_pcpu;
	struct pcpu *p = pcpu_of(cpu);

	next_pcpu = p ? cpu + 1 : 0;
	if (p && p->count)
		charge_all(cpu, bpf_ktime_get_ns(), 0);
	return 0;
}
