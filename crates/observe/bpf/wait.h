/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Lists of the vCPUs that wait for each pCPU, and charging of their waits.
 *
 * Each pCPU has a list of the watched vCPUs that wait for it. When the running thread is switched out, each entry has
 * waited for it since it was added or since the last switch; this time is charged to the pair. Several waiting vCPUs are charged
 * in full each, since each lost that time. User space runs the same charging before it reads (`settle`), so that a
 * wait is visible while it lasts.
 *
 * A vCPU that a quota throttles is in the list too, but its time is not charged.
 */
#ifndef TANDEM_WAIT_H
#define TANDEM_WAIT_H

#include "state.h"

static __always_inline struct lost *losses(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&lost, &zero);
}

static __always_inline u64 cgroup_of(struct task_struct *task)
{
	struct cgroup_subsys_state *css = 0;
	struct css_set *set;

	if (!bpf_core_enum_value_exists(enum cgroup_subsys_id, cpu_cgrp_id))
		return 0;
	set = BPF_CORE_READ(task, cgroups);
	bpf_core_read(&css, sizeof(css), &set->subsys[bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id)]);
	return css ? BPF_CORE_READ(css, cgroup, kn, id) : 0;
}

/* Fills in the culprit's identity. Concurrent callers write the same values. */
static __always_inline void name(struct edge *edge, struct task_struct *task)
{
	edge->tgid = BPF_CORE_READ(task, tgid);
	edge->cgroup = cgroup_of(task);
	BPF_CORE_READ_STR_INTO(&edge->comm, task, comm);
	edge->flags = EDGE_NAMED | (BPF_CORE_READ(task, flags) & PF_KTHREAD ? EDGE_KERNEL : 0);
}

/*
 * Returns the address of the task that runs on a pCPU. Returns 0 if it is unknown: no switch was seen there and find_out found
 * none, or the known task left unseen. It is 0 between the switch event and the switch itself, too. A running task is alive;
 * for a freed one, the read returns arbitrary data or fails.
 */
static __always_inline u64 running_on(struct pcpu *p, u32 cpu)
{
	u64 address = p->task ? p->task : p->found;
	struct task_struct *task = (struct task_struct *)address;
	struct task_struct___old *old = (struct task_struct___old *)address;
	u32 at, on_cpu = 0;

	if (!address)
		return 0;
	/* The size differs between kernels; the bytes after the field belong to others. */
	bpf_core_read(&on_cpu, bpf_core_field_size(task->on_cpu), &task->on_cpu);
	if (!on_cpu)
		return 0;
	if (bpf_core_field_exists(task->thread_info.cpu))
		at = BPF_CORE_READ(task, thread_info.cpu);
	else
		at = BPF_CORE_READ(old, cpu);
	return at == cpu ? address : 0;
}

/*
 * The verifier checks non-static functions once, independently of their callers, with scalar arguments only. So they take
 * pCPUs by number and tasks by address.
 */

/* Charges a wait of `victim` to the task at `address`. */
__noinline int charge(u32 victim, u64 address, u64 time)
{
	struct task_struct *task = (struct task_struct *)address;
	struct edge_key key = { .victim = victim, .culprit = BPF_CORE_READ(task, pid) };
	struct lost *lost;
	struct edge *edge;
	u32 zero = 0;
	void *map;

	map = bpf_map_lookup_elem(&edges, &zero);
	if (!map)
		return 0;
	edge = bpf_map_lookup_elem(map, &key);
	if (!edge) {
		struct edge fresh = { .index = watched_index(key.culprit) };

		bpf_map_update_elem(map, &key, &fresh, BPF_NOEXIST);
		edge = bpf_map_lookup_elem(map, &key);
	}
	if (edge) {
		__sync_fetch_and_add(&edge->time, time);
		if (!(edge->flags & EDGE_NAMED))
			name(edge, task);
		return 0;
	}
	lost = losses();
	if (lost) {
		__sync_fetch_and_add(&lost->edges, 1);
		__sync_fetch_and_add(&lost->edge_time, time);
	}
	return 0;
}

/* Begins a wait without a slot in the list of its pCPU, which is not charged. */
static __always_inline void begin_unlisted(u32 index, u64 now)
{
	struct vcpu *v = vcpu_of(index);
	struct lost *lost = losses();

	if (v)
		v->unlisted_since = now;
	if (lost)
		__sync_fetch_and_add(&lost->waits, 1);
}

/* Ends such a wait, or its unlisted part. */
static __always_inline void end_unlisted(struct vcpu *v, u64 now)
{
	struct lost *lost;
	u64 since = v->unlisted_since;

	if (!since)
		return;
	v->unlisted_since = 0;
	lost = losses();
	if (lost && now > since)
		__sync_fetch_and_add(&lost->wait_time, now - since);
}

__noinline int wait_for(u32 cpu, u32 index, u64 now)
{
	struct pcpu *p = pcpu_of(cpu);
	u32 count, place;

	if (!p)
		return 0;
	bpf_spin_lock(&p->lock);
	count = p->count;
	for (place = 0; place < MAX_WAITING && place < count; place++) {
		/* Already listed: a stale entry of the index's previous thread, or its own entry (find_out). */
		if (p->waiting[place].vcpu == index)
			break;
	}
	if (place < MAX_WAITING) {
		barrier_var(place);
		p->waiting[place % MAX_WAITING].vcpu = index;
		p->waiting[place % MAX_WAITING].since = now;
		if (place == count)
			p->count = count + 1;
	}
	bpf_spin_unlock(&p->lock);
	if (place >= MAX_WAITING)
		begin_unlisted(index, now);
	return 0;
}

/* Removes a vCPU from the list. Returns the time up to which it was charged, or 0 if it was not listed. Under the run queue's lock. */
__noinline u64 wait_no_more(u32 cpu, u32 index)
{
	struct pcpu *p = pcpu_of(cpu);
	u64 since = 0;
	u32 count, i;

	if (!p || !p->count)
		return 0;
	bpf_spin_lock(&p->lock);
	count = p->count;
	for (i = 0; i < MAX_WAITING && i < count; i++) {
		if (p->waiting[i].vcpu == index) {
			u32 last = (count - 1) % MAX_WAITING;

			since = p->waiting[i].since;
			p->waiting[i].vcpu = p->waiting[last].vcpu;
			p->waiting[i].since = p->waiting[last].since;
			p->count = count - 1;
			break;
		}
	}
	bpf_spin_unlock(&p->lock);
	return since;
}

/* Removes an entry if it is still there, and moves the last entry into its slot. Under the run queue's lock. */
static __always_inline void take_off(struct pcpu *p, u32 place, u32 index)
{
	u32 last;

	bpf_spin_lock(&p->lock);
	last = p->count - 1;
	if (place < MAX_WAITING && last < MAX_WAITING && p->waiting[place].vcpu == index) {
		p->waiting[place].vcpu = p->waiting[last].vcpu;
		p->waiting[place].since = p->waiting[last].since;
		p->count = last;
	}
	bpf_spin_unlock(&p->lock);
}

/* Begins or ends throttling of a vCPU that waits. */
static __always_inline void limit(struct vcpu *v, bool limited, u64 now)
{
	bpf_spin_lock(&v->lock);
	if (v->state == READY || v->state == LIMITED)
		begin(v, READY, limited ? LIMITED : READY, now);
	bpf_spin_unlock(&v->lock);
}

#define IS_LOCKED 1u		/* the caller holds the lock of the pCPU's run queue */
#define IS_GAP 2u		/* a switch was missed, so the thread that ran is unknown. Under that lock only */

/*
 * Charges the wait of the entry in this slot up to now to the running task, if that is known.
 *
 * An entry is stale if its vCPU does not wait here: its thread is no longer watched, or find_out added it too late. A stale entry is not
 * charged. It is removed under the run queue's lock only, since otherwise its vCPU could have been added again meanwhile.
 */
__noinline int charge_one(u32 cpu, u32 place, u64 now, u32 how)
{
	struct pcpu *p = pcpu_of(cpu);
	u32 index = NO_VCPU, state;
	u64 task, since = now;
	struct vcpu *v;
	bool limited;

	if (!p)
		return 0;
	task = how & IS_GAP ? 0 : running_on(p, cpu);
	/* The next switch knows the task, and charges the whole time. */
	if (!task && !(how & IS_GAP))
		return 0;
	bpf_spin_lock(&p->lock);
	if (place < p->count && place < MAX_WAITING)
		index = p->waiting[place].vcpu;
	bpf_spin_unlock(&p->lock);
	v = index == NO_VCPU ? 0 : vcpu_of(index);
	if (!v)
		return 0;
	state = v->state;
	if ((state != READY && state != LIMITED) || v->pcpu != cpu) {
		if (how & IS_LOCKED)
			take_off(p, place, index);
		return 0;
	}
	bpf_spin_lock(&p->lock);
	if (place < p->count && place < MAX_WAITING && p->waiting[place].vcpu == index && now > p->waiting[place].since) {
		since = p->waiting[place].since;
		p->waiting[place].since = now;
	}
	bpf_spin_unlock(&p->lock);
	if (state == READY && now > since && task)
		charge(index, task, now - since);
	limited = is_limited(v->task, v->cfs_rq);
	if (limited != (state == LIMITED))
		limit(v, limited, now);
	return 0;
}

/*
 * Charges all entries of the list. Waits without a slot are counted in `lost`.
 *
 * The order is from the last slot to the first. Under the run queue's lock, only this function removes entries, and the last entry,
 * which moves into a freed slot, was already charged. Without the lock (`settle`), others may remove entries meanwhile: the last
 * entry then moves to a slot that was already charged, like the entry itself, or to one that is still to come. A second
 * charge of an entry adds no time. Entries that are added meanwhile have not waited yet.
 */
__noinline int charge_all(u32 cpu, u64 now, u32 how)
{
	struct pcpu *p = pcpu_of(cpu);
	u32 place;

	for (place = MAX_WAITING; p && place > 0; place--) {
		if (place <= *(volatile u32 *)&p->count)
			charge_one(cpu, place - 1, now, how);
	}
	return 0;
}

#endif
