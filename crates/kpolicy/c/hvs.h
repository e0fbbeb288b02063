/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * HVS: which preempted vCPU should run in place of one that spins.
 *
 * Source: Shan, Ding and Gehani, "APPLES: Efficiently Handling Spin-lock
 * Synchronization on Virtualized Platforms", TPDS 2017. A preempted vCPU of a VM
 * is on one of three lists:
 *
 *	resource-waiters	its slice ran out
 *	lock-waiters		it was preempted for spinning
 *	yielded			its slice ran out after it had been chosen here, or it
 *				gave way to one that had
 *
 * HVS takes the resource-waiter preempted LATEST: a lock holder is among them,
 * and most likely the one that just lost its pCPU. Else the lock-waiter preempted
 * EARLIEST: a ticket lock is handed on in that order. Else the yielded one
 * preempted earliest. A vCPU that is chosen is marked; when next its slice runs
 * out, the mark is taken off and it goes on the yielded list, or the same one
 * would be chosen over and over. Preempted for spinning it is a lock-waiter as
 * any other and stays marked; so it does through running and blocking. One that
 * gave way would, as a resource-waiter, be the latest of them and chosen next:
 * two vCPUs on one CPU would be exchanged to and fro, and nobody else chosen. A
 * mark that it has it keeps.
 *
 * Variants, for comparison: CPTH-R takes resource-waiters earliest first, CPTH-L
 * lock-waiters latest first, CCH lock-waiters before resource-waiters.
 *
 * The lists are a byte in each vCPU's record. A choice ranks all records by
 * (list, time) in one pass; the lowest index wins a tie. What runs, is blocked,
 * or was woken and has not run since is on no list and is never chosen.
 *
 * Times are of any one clock that does not go back; they are only compared.
 *
 * No lock is needed. A record's events come from where its vCPU is switched in
 * and out, one at a time; a choice may be made meanwhile on another CPU. It may
 * then see a list and a time that do not belong together, or its mark may be
 * lost: the choice is a worse one, which is as good as a moment earlier or later.
 * The caller checks, as for any directed yield, that who was chosen can run.
 *
 * What this does not do: preempt, yield, keep time, set the threshold (aple.h).
 * Values that are not in these enums behave as the first one of theirs.
 */
#ifndef TANDEM_HVS_H
#define TANDEM_HVS_H

#include "tandem_types.h"

/* An array form looks at so many records at most. */
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
	TANDEM_HVS_DISPLACED = 2,	/* it gave way to one chosen here */
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

/* Where a vCPU stands among the others: the smallest (rank, key) is chosen. */
struct tandem_hvs_place {
	u64 key;
	u32 rank;
};

#define TANDEM_HVS_NO_RANK 3

/* The best of those considered so far; `chosen` is its index, -1 if none. */
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

/* The vCPU could run on, but was taken off its pCPU at @now for @cause. */
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

/* The vCPU was put on a pCPU. */
TANDEM_INLINE void tandem_hvs_running(struct tandem_hvs_vcpu *v)
{
	TANDEM_STORE(v->list, TANDEM_HVS_NONE);
}

/* The vCPU has nothing to do (HLT), or is gone. */
TANDEM_INLINE void tandem_hvs_blocked(struct tandem_hvs_vcpu *v)
{
	TANDEM_STORE(v->list, TANDEM_HVS_NONE);
}

/* The vCPU is the one to run: to be called with what a search has chosen. */
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

/* Whether @a is on a list and strictly before @b. */
TANDEM_INLINE bool tandem_hvs_before(struct tandem_hvs_place a,
				     struct tandem_hvs_place b)
{
	return a.rank < b.rank ||
	       (a.rank == b.rank && a.rank != TANDEM_HVS_NO_RANK &&
		a.key < b.key);
}

/* Whether @a would rather be chosen than @b; neither than the other in a tie. */
TANDEM_INLINE bool tandem_hvs_better(u32 order, const struct tandem_hvs_vcpu *a,
				     const struct tandem_hvs_vcpu *b)
{
	return tandem_hvs_before(tandem_hvs_place(order, a),
				 tandem_hvs_place(order, b));
}

/*
 * For callers that have no array: begin, consider every vCPU that could be
 * yielded to in the order of their indices, then tandem_hvs_choose() the one
 * whose index is in `chosen`, if it is not negative. In BPF consider() goes into
 * the body of bpf_loop(), which the verifier checks once; it follows every path
 * through the loop of the array form, and gives up.
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
 * The index of whom @spinner should yield to, now marked; -1 if there is nobody.
 * Records from TANDEM_HVS_MOST_VCPUS on are not looked at. A @spinner that is
 * not below @count excludes nobody.
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
