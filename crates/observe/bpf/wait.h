/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Who waits for a pCPU, and who is charged with it.
 *
 * Each pCPU has a list of the watched vCPUs that wait for it. When the thread that runs there is switched out, each of them has
 * waited for it since it came, or since the last switch: that is charged to the pair. Several that wait at once are charged
 * each in full, for each of them lost that time. User space has the same done before it reads (`settle`), so that a wait
 * that lasts is seen while it lasts.
 *
 * A vCPU that is kept off by a quota is in the list too, but waits for nobody.
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

/* Says who the culprit is. Several may do so at once: they say the same. */
static __always_inline void name(struct edge *edge, struct task_struct *task)
{
	edge->tgid = BPF_CORE_READ(task, tgid);
	edge->cgroup = cgroup_of(task);
	BPF_CORE_READ_STR_INTO(&edge->comm, task, comm);
	edge->flags = EDGE_NAMED | (BPF_CORE_READ(task, flags) & PF_KTHREAD ? EDGE_KERNEL : 0);
}

/*
 * Functions that are not static are verified once, whatever calls them, and may be given only numbers: so pCPUs go by number and
 * tasks by address.
 */

/* `task` is the culprit's address, or 0 where only its number is known. */
__noinline int charge(u32 victim, u32 tid, u64 task, u64 time)
{
	struct edge_key key = { .victim = victim, .culprit = tid };
	struct lost *lost;
	struct edge *edge;
	u32 zero = 0;
	void *map;

	map = bpf_map_lookup_elem(&edges, &zero);
	if (!map)
		return 0;
	edge = bpf_map_lookup_elem(map, &key);
	if (!edge) {
		struct edge fresh = { .index = watched_index(tid) };

		bpf_map_update_elem(map, &key, &fresh, BPF_NOEXIST);
		edge = bpf_map_lookup_elem(map, &key);
	}
	if (edge) {
		__sync_fetch_and_add(&edge->time, time);
		if (task && !(edge->flags & EDGE_NAMED))
			name(edge, (struct task_struct *)task);
		return 0;
	}
	lost = losses();
	if (lost) {
		__sync_fetch_and_add(&lost->edges, 1);
		__sync_fetch_and_add(&lost->edge_time, time);
	}
	return 0;
}

static __always_inline void count_lost_wait(void)
{
	struct lost *lost = losses();

	if (lost)
		__sync_fetch_and_add(&lost->waits, 1);
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
		/* In its place already: left there by who had this index before. */
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
		count_lost_wait();
	return 0;
}

/* Takes a vCPU off the list; up to when its wait was charged, or `now` if it was not in it. Under the run queue's lock. */
__noinline u64 wait_no_more(u32 cpu, u32 index, u64 now)
{
	struct pcpu *p = pcpu_of(cpu);
	u64 since = now;
	u32 count, i;

	if (!p || !p->count)
		return now;
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

/* Takes an entry off the list; the last one gets its place. Under the run queue's lock. */
static __always_inline void take_off(struct pcpu *p, u32 place)
{
	u32 last;

	bpf_spin_lock(&p->lock);
	last = p->count - 1;
	if (place < MAX_WAITING && last < MAX_WAITING) {
		p->waiting[place].vcpu = p->waiting[last].vcpu;
		p->waiting[place].since = p->waiting[last].since;
		p->count = last;
	}
	bpf_spin_unlock(&p->lock);
}

/* Ends a quota's hold on a vCPU that waits, or begins it. */
static __always_inline void limit(struct vcpu *v, bool limited, u64 now)
{
	bpf_spin_lock(&v->lock);
	if (v->state == READY || v->state == LIMITED)
		begin(v, READY, limited ? LIMITED : READY, now);
	bpf_spin_unlock(&v->lock);
}

/*
 * Who is at this place in the list has waited for `tid` up to now. If `task`, the culprit's address, is known, the caller is on
 * that pCPU and holds its run queue's lock.
 *
 * An entry is stale if its vCPU does not wait here: its thread is not watched any more. It is taken off under the lock of the
 * run queue only: else its vCPU could have come back between two looks.
 */
__noinline int charge_one(u32 cpu, u32 place, u32 tid, u64 task, u64 now)
{
	struct pcpu *p = pcpu_of(cpu);
	u32 index = NOBODY, state;
	u64 since = now;
	struct vcpu *v;
	bool limited;

	if (!p)
		return 0;
	bpf_spin_lock(&p->lock);
	if (place < p->count && place < MAX_WAITING) {
		index = p->waiting[place].vcpu;
		since = p->waiting[place].since;
		if (now > since)
			p->waiting[place].since = now;
	}
	bpf_spin_unlock(&p->lock);
	v = index == NOBODY ? 0 : vcpu_of(index);
	if (!v)
		return 0;
	state = v->state;
	if ((state != READY && state != LIMITED && state != UNKNOWN) || v->pcpu != cpu) {
		if (task)
			take_off(p, place);
		return 0;
	}
	if (state == READY && now > since)
		charge(index, tid, task, now - since);
	limited = is_limited(v->cfs_rq);
	if (limited != (state == LIMITED))
		limit(v, limited, now);
	return 0;
}

/* From the last place to the first: who takes the place of one that is taken off was charged already. */
__noinline int charge_all(u32 cpu, u32 tid, u64 task, u64 now)
{
	struct pcpu *p = pcpu_of(cpu);
	u32 place;

	for (place = MAX_WAITING; p && place > 0; place--) {
		/* Without the lock: who comes meanwhile has not waited yet. */
		if (place <= *(volatile u32 *)&p->count)
			charge_one(cpu, place - 1, tid, task, now);
	}
	return 0;
}

#endif
