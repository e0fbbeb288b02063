/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * HVS: selects the preempted vCPU that should run in place of a spinning one.
 *
 * Source: Shan, Ding and Gehani, "APPLES: Efficiently Handling Spin-lock
 * Synchronization on Virtualized Platforms", TPDS 2017. A preempted vCPU of a VM
 * is on one of three lists:
 *
 *	resource-waiters	its slice ran out
 *	lock-waiters		it was preempted for spinning
 *	yielded			its slice ran out after it was chosen here, or it was
 *				displaced by a chosen one
 *
 * HVS takes the resource-waiter preempted LATEST: a lock holder is among them,
 * most likely the one that just lost its pCPU. Else the lock-waiter preempted
 * EARLIEST: a ticket lock is handed on in that order. Else the yielded one
 * preempted earliest.
 *
 * A chosen vCPU is marked. When its slice next runs out, the mark is cleared and
 * it goes on the yielded list, or the same vCPU would be chosen over and over.
 * Preempted for spinning, it is an ordinary lock-waiter and stays marked, as it
 * does through running and blocking. A displaced vCPU goes on the yielded list
 * and keeps its mark: as a resource-waiter it would be the latest one and chosen
 * next, and two vCPUs on one CPU would alternate forever.
 *
 * Variants, for comparison: CPTH-R takes resource-waiters earliest first, CPTH-L
 * lock-waiters latest first, CCH lock-waiters before resource-waiters.
 *
 * The lists are a byte in each vCPU's record. A choice ranks all records by
 * (list, time) in one pass; the lowest index wins a tie. A vCPU that runs, is
 * blocked, or has not run since its wake-up is on no list and is never chosen.
 *
 * Times are of one monotonic clock; they are only compared.
 *
 * No lock is needed. The events of a record are serialized, as they occur where
 * its vCPU is switched in and out; another CPU may make a choice concurrently.
 * The choice may then see a list and a time that do not belong together, or its
 * mark may be lost. That results in a slightly worse choice, like one made a
 * moment earlier or later. The caller checks, as for any directed yield, that
 * the chosen vCPU can run.
 *
 * Non-goals: preempting, yielding, reading clocks, setting the threshold (aple.h).
 * Invalid enum values behave like the first value.
 */
#ifndef TANDEM_HVS_H
#define TANDEM_HVS_H

#include "tandem_types.h"

/* Maximum number of records in the array form. */
#define TANDEM_HVS_MOST_VCPUS 1024

enum tandem_hvs_list {
	TANDEM_HVS_NONE = 0,
	TANDEM_HVS_RESOURCE_WAITER = 1,
	TANDEM_HVS_LOCK_WAITER = 2,
	TANDEM_HVS_YIELDED = 3,
};

enum tandem_hvs_cause {
	TANDEM_HVS_SLICE = 0,		/* its slice ran out */
	TANDEM_HVS_SPINNING = 1,	/* it was in a pause loop */
	TANDEM_HVS_DISPLACED = 2,	/* a vCPU chosen here displaced it */
};

enum tandem_hvs_order {
	TANDEM_HVS = 0,
	TANDEM_HVS_CPTH_R = 1,
	TANDEM_HVS_CPTH_L = 2,
	TANDEM_HVS_CCH = 3,
};

/* All zero: on no list, not marked. */
struct tandem_hvs_vcpu {
	u64 preempted_at;
	u8 list;		/* enum tandem_hvs_list */
	u8 yielded;		/* chosen, and its slice has not run out since */
	u8 reserved[6];
};

/* Sort key of a vCPU: the smallest (rank, key) is chosen. */
struct tandem_hvs_place {
	u64 key;
	u32 rank;
};

#define TANDEM_HVS_NO_RANK 3

/* Best vCPU considered so far; `chosen` is its index, -1 if none. */
struct tandem_hvs_search {
	struct tandem_hvs_place best;
	u32 order;
	u32 spinner;
	int chosen;
};

TANDEM_INLINE void tandem_hvs_init(struct tandem_hvs_vcpu *v)
{
	v->preempted_at = 0;
	v->list = TANDEM_HVS_NONE;
	v->yielded = 0;
}

/* The vCPU was preempted at @now for @cause. */
TANDEM_INLINE void tandem_hvs_preempted(struct tandem_hvs_vcpu *v, u32 cause,
					u64 now)
{
	u8 list = TANDEM_HVS_RESOURCE_WAITER;

	if (cause == TANDEM_HVS_SPINNING) {
		list = TANDEM_HVS_LOCK_WAITER;
	} else if (cause == TANDEM_HVS_DISPLACED) {
		list = TANDEM_HVS_YIELDED;
	} else if (TANDEM_LOAD(v->yielded)) {
		TANDEM_STORE(v->yielded, 0);
		list = TANDEM_HVS_YIELDED;
	}
	TANDEM_STORE(v->preempted_at, now);
	TANDEM_STORE(v->list, list);
}

/* The vCPU starts to run. */
TANDEM_INLINE void tandem_hvs_running(struct tandem_hvs_vcpu *v)
{
	TANDEM_STORE(v->list, TANDEM_HVS_NONE);
}

/* The vCPU is idle (HLT) or was removed. */
TANDEM_INLINE void tandem_hvs_blocked(struct tandem_hvs_vcpu *v)
{
	TANDEM_STORE(v->list, TANDEM_HVS_NONE);
}

/* Marks the vCPU that a search has chosen. */
TANDEM_INLINE void tandem_hvs_choose(struct tandem_hvs_vcpu *v)
{
	TANDEM_STORE(v->yielded, 1);
}

TANDEM_INLINE struct tandem_hvs_place
tandem_hvs_place(u32 order, const struct tandem_hvs_vcpu *v)
{
	u64 at = TANDEM_LOAD(v->preempted_at);
	struct tandem_hvs_place place = { .key = at, .rank = TANDEM_HVS_NO_RANK };

	switch (TANDEM_LOAD(v->list)) {
	case TANDEM_HVS_RESOURCE_WAITER:
		place.rank = order == TANDEM_HVS_CCH ? 1 : 0;
		place.key = order == TANDEM_HVS_CPTH_R ? at : ~at;
		break;
	case TANDEM_HVS_LOCK_WAITER:
		place.rank = order == TANDEM_HVS_CCH ? 0 : 1;
		place.key = order == TANDEM_HVS_CPTH_L ? ~at : at;
		break;
	case TANDEM_HVS_YIELDED:
		place.rank = 2;
		break;
	default:
		break;
	}
	return place;
}

/* Returns true if @a is on a list and ranks strictly before @b. */
TANDEM_INLINE bool tandem_hvs_before(struct tandem_hvs_place a,
				     struct tandem_hvs_place b)
{
	return a.rank < b.rank ||
	       (a.rank == b.rank && a.rank != TANDEM_HVS_NO_RANK &&
		a.key < b.key);
}

/* Returns true if @a ranks before @b; false in a tie. */
TANDEM_INLINE bool tandem_hvs_better(u32 order, const struct tandem_hvs_vcpu *a,
				     const struct tandem_hvs_vcpu *b)
{
	return tandem_hvs_before(tandem_hvs_place(order, a),
				 tandem_hvs_place(order, b));
}

/*
 * For callers without an array: begin, consider every possible target in the
 * order of indices, then tandem_hvs_choose() the one whose index is in `chosen`,
 * if it is not negative. In BPF, consider() goes into the body of bpf_loop(),
 * which the verifier checks once; it explores every path through the loop of
 * the array form, and gives up.
 */
TANDEM_INLINE void tandem_hvs_begin(struct tandem_hvs_search *s, u32 order,
				    u32 spinner)
{
	s->best.key = 0;
	s->best.rank = TANDEM_HVS_NO_RANK;
	s->order = order;
	s->spinner = spinner;
	s->chosen = -1;
}

TANDEM_INLINE void tandem_hvs_consider(struct tandem_hvs_search *s, u32 index,
				       const struct tandem_hvs_vcpu *v)
{
	struct tandem_hvs_place place;

	if (index == s->spinner)
		return;
	place = tandem_hvs_place(s->order, v);
	if (tandem_hvs_before(place, s->best)) {
		s->best = place;
		s->chosen = (int)index;
	}
}

/*
 * Returns the index of the vCPU that @spinner should yield to, and marks it; -1
 * if there is none. Ignores records from TANDEM_HVS_MOST_VCPUS on. A @spinner
 * of at least @count excludes no vCPU.
 */
TANDEM_INLINE int tandem_hvs_candidate(struct tandem_hvs_vcpu *v, u32 count,
				       u32 spinner, u32 order)
{
	struct tandem_hvs_search search;
	u32 i;

	tandem_hvs_begin(&search, order, spinner);
	for (i = 0; i < TANDEM_HVS_MOST_VCPUS && i < count; i++)
		tandem_hvs_consider(&search, i, &v[i]);
	if (search.chosen >= 0)
		tandem_hvs_choose(&v[search.chosen]);
	return search.chosen;
}

#endif /* TANDEM_HVS_H */
