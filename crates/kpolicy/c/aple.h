/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * APLE: adapts the pause-loop threshold (PLE_window) of a VM by trials.
 *
 * Source: Shan, Ding and Gehani, "APPLES: Efficiently Handling Spin-lock
 * Synchronization on Virtualized Platforms", TPDS 2017. A low threshold wastes
 * cycles on exits, a high one on spinning. The waste of an epoch:
 *
 *	inefficiency = (threshold x exits + cycles spent handling them)
 *		       / cycles that the VM consumed
 *
 * An epoch ends after epoch_exits pause-loop exits of the VM. A round is three:
 *
 *	E1 at T_d,  E2 at min(T_u, T_d + step),  E3 at max(T_l, T_d - step)
 *
 * and T_d becomes the threshold of the smallest inefficiency. On a tie for the
 * smallest, T_d stays, as no direction is better. A VM that stops exiting ends
 * no epoch and so keeps its threshold.
 *
 * Units: thresholds and times are cycles of one clock (the TSC).
 *
 * One struct tandem_aple for each VM. On each pause-loop exit, once it has been
 * handled:
 *
 *	if (tandem_aple_exit(a, cfg, cycles_from_exit_to_entry))
 *		window = tandem_aple_epoch(a, cfg, cycles_the_vm_consumed_so_far);
 *
 * so that the VM's cycles are summed only at the end of an epoch.
 *
 * Non-goals: locking (calls for one VM must not overlap), reading clocks,
 * writing the VMCS, choosing the target of a yield (hvs.h).
 *
 * Every input is valid. A config that fails tandem_aple_config_ok() still gives
 * thresholds within its bounds, of which `lower` takes precedence. The config
 * may change between calls. Sums saturate.
 */
#ifndef TANDEM_APLE_H
#define TANDEM_APLE_H

#include "tandem_types.h"

/* Values of the paper; steps from 512 to 2048 work. */
#define TANDEM_APLE_INITIAL	8192
#define TANDEM_APLE_LOWER	4096
#define TANDEM_APLE_UPPER	32768
#define TANDEM_APLE_STEP	1024
#define TANDEM_APLE_EPOCH_EXITS	1000

struct tandem_aple_config {
	u32 initial;		/* T_0, cycles */
	u32 lower;		/* T_l, cycles */
	u32 upper;		/* T_u, cycles */
	u32 step;		/* distance of trials above and below, cycles */
	u32 epoch_exits;	/* pause-loop exits of the VM in an epoch */
};

enum tandem_aple_phase {
	TANDEM_APLE_AT_BASE = 0,	/* E1 */
	TANDEM_APLE_ABOVE = 1,		/* E2 */
	TANDEM_APLE_BELOW = 2,		/* E3 */
};

struct tandem_aple {
	u64 vm_cycles;		/* cycles that the VM had consumed at the epoch's start */
	u64 handling;		/* cycles spent handling this epoch's exits */
	u64 best_cost;		/* smallest inefficiency of the round so far: */
	u64 best_consumed;	/*   best_cost / best_consumed */
	u64 rounds;		/* rounds done, for tracing */
	u64 discarded;		/* epochs that could not be measured, for tracing */
	u32 base;		/* T_d */
	u32 threshold;		/* current threshold */
	u32 choice;		/* next T_d if the round ended now */
	u32 exits;		/* so far in this epoch */
	u32 inefficiency_ppm;	/* of the last epoch measured, for tracing */
	u32 phase;		/* enum tandem_aple_phase */
};

TANDEM_INLINE u64 tandem_add_saturating(u64 a, u64 b)
{
	u64 sum = a + b;

	return sum < a ? ~(u64)0 : sum;
}

/* a x b in 128 bits; the lower half is the product modulo 2^64. */
TANDEM_INLINE u64 tandem_multiply_high(u64 a, u64 b)
{
	u64 a_low = (u32)a, a_high = a >> 32;
	u64 b_low = (u32)b, b_high = b >> 32;
	/* No sum overflows: (2^32 - 1)^2 + 2 x (2^32 - 1) = 2^64 - 1. */
	u64 middle = a_high * b_low + ((a_low * b_low) >> 32);
	u64 carry = a_low * b_high + (u32)middle;

	return a_high * b_high + (middle >> 32) + (carry >> 32);
}

/* Compares a / b with c / d: negative, zero or positive; b, d not 0. */
TANDEM_INLINE int tandem_compare_fractions(u64 a, u64 b, u64 c, u64 d)
{
	u64 left = tandem_multiply_high(a, d);
	u64 right = tandem_multiply_high(c, b);

	if (left == right) {
		left = a * d;
		right = c * b;
	}
	return left < right ? -1 : left > right;
}

/*
 * a / b in parts per million, at most U32_MAX; b not 0. If a million times a
 * overflows, both lose their lowest bits: 44 bits of a remain.
 */
TANDEM_INLINE u32 tandem_parts_per_million(u64 a, u64 b)
{
	const u64 million = 1000000;
	u64 quotient;
	u32 i;

	for (i = 0; i < 20 && a >> 44; i++) {
		a >>= 1;
		b >>= 1;
	}
	if (!b)
		return ~(u32)0;
	quotient = tandem_div64(a * million, b);
	return quotient >> 32 ? ~(u32)0 : (u32)quotient;
}

TANDEM_INLINE bool tandem_aple_config_ok(const struct tandem_aple_config *cfg)
{
	return cfg->lower >= 1 && cfg->lower <= cfg->initial &&
	       cfg->initial <= cfg->upper && cfg->step >= 1 &&
	       cfg->epoch_exits >= 1;
}

TANDEM_INLINE u32 tandem_aple_clamp(const struct tandem_aple_config *cfg,
				    u32 threshold)
{
	if (threshold > cfg->upper)
		threshold = cfg->upper;
	return threshold < cfg->lower ? cfg->lower : threshold;
}

TANDEM_INLINE u32 tandem_aple_above(const struct tandem_aple_config *cfg,
				    u32 base)
{
	u32 sum = base + cfg->step;

	return tandem_aple_clamp(cfg, sum < base ? ~(u32)0 : sum);
}

TANDEM_INLINE u32 tandem_aple_below(const struct tandem_aple_config *cfg,
				    u32 base)
{
	return tandem_aple_clamp(cfg, base > cfg->step ? base - cfg->step : 0);
}

/* Starts the first epoch of a VM that has consumed @vm_cycles. */
TANDEM_INLINE void tandem_aple_init(struct tandem_aple *a,
				    const struct tandem_aple_config *cfg,
				    u64 vm_cycles)
{
	a->vm_cycles = vm_cycles;
	a->handling = 0;
	a->best_cost = 0;
	a->best_consumed = 1;
	a->rounds = 0;
	a->discarded = 0;
	a->base = tandem_aple_clamp(cfg, cfg->initial);
	a->threshold = a->base;
	a->choice = a->base;
	a->exits = 0;
	a->inefficiency_ppm = 0;
	a->phase = TANDEM_APLE_AT_BASE;
}

/* Returns the current threshold, cycles. */
TANDEM_INLINE u32 tandem_aple_threshold(const struct tandem_aple *a)
{
	return a->threshold;
}

/*
 * Accounts an exit that was handled in @handling_cycles, from exit to entry,
 * including the switch. Returns true at the end of the epoch, at which the
 * caller must call tandem_aple_epoch().
 */
TANDEM_INLINE bool tandem_aple_exit(struct tandem_aple *a,
				    const struct tandem_aple_config *cfg,
				    u64 handling_cycles)
{
	a->handling = tandem_add_saturating(a->handling, handling_cycles);
	if (a->exits != ~(u32)0)
		a->exits++;
	return a->exits >= cfg->epoch_exits;
}

/* Compares the epoch at the current threshold with the round's best. */
TANDEM_INLINE void tandem_aple_judge(struct tandem_aple *a, u64 cost,
				     u64 consumed)
{
	int order = tandem_compare_fractions(cost, consumed, a->best_cost,
					     a->best_consumed);

	if (order == 0)
		a->choice = a->base;
	if (order >= 0)
		return;
	a->choice = a->threshold;
	a->best_cost = cost;
	a->best_consumed = consumed;
}

/*
 * Ends the epoch: the VM has consumed @vm_cycles since its creation. Returns the
 * new threshold.
 *
 * An epoch without exits, or without an increase of the VM's cycles (they may
 * decrease if a vCPU is removed or a counter restarts), does not measure its
 * threshold. It is discarded and repeated.
 */
TANDEM_INLINE u32 tandem_aple_epoch(struct tandem_aple *a,
				    const struct tandem_aple_config *cfg,
				    u64 vm_cycles)
{
	u64 consumed = vm_cycles > a->vm_cycles ? vm_cycles - a->vm_cycles : 0;
	/* (2^32 - 1)^2 fits in 64 bits. */
	u64 cost = tandem_add_saturating((u64)a->threshold * a->exits,
					 a->handling);
	bool measured = consumed && a->exits;

	a->vm_cycles = vm_cycles;
	a->handling = 0;
	a->exits = 0;
	if (!measured) {
		a->discarded++;
		a->threshold = tandem_aple_clamp(cfg, a->threshold);
		return a->threshold;
	}
	a->inefficiency_ppm = tandem_parts_per_million(cost, consumed);

	switch (a->phase) {
	case TANDEM_APLE_AT_BASE:
		a->best_cost = cost;
		a->best_consumed = consumed;
		a->choice = a->base;
		a->phase = TANDEM_APLE_ABOVE;
		a->threshold = tandem_aple_above(cfg, a->base);
		break;
	case TANDEM_APLE_ABOVE:
		tandem_aple_judge(a, cost, consumed);
		a->phase = TANDEM_APLE_BELOW;
		a->threshold = tandem_aple_below(cfg, a->base);
		break;
	default:
		tandem_aple_judge(a, cost, consumed);
		a->phase = TANDEM_APLE_AT_BASE;
		a->base = tandem_aple_clamp(cfg, a->choice);
		a->threshold = a->base;
		a->rounds++;
		break;
	}
	return a->threshold;
}

#endif /* TANDEM_APLE_H */
