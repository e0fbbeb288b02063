/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Fuzzer of APLE and HVS: random events under sanitizers, with checked invariants.
 *
 *	fuzz SEED SECONDS
 *
 * Each case has its own seed, which a failure reports: `fuzz CASE 0` repeats that
 * case alone. Prints the number of cases and exits with 0, or aborts.
 *
 * APLE: all kinds of settings, including invalid ones and changes during the run;
 * exits, epochs and counters of every magnitude. Invariants: the threshold
 * equals that of 128-bit arithmetic over a list of the round's epochs, bounds
 * hold, an epoch ends exactly after its exits.
 *
 * HVS: events in any order on up to 1,100 records, some of them overwritten with
 * noise; choices by the array form and by the form without an array. Invariants:
 * the chosen vCPU is on a list and is not the spinner, no other ranks before it
 * in a table of the orders, only its mark changes, records from the 1,025th on
 * are ignored.
 *
 * Non-goal: the quality of the choice, which the simulator measures.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "aple.h"
#include "hvs.h"

__extension__ typedef unsigned __int128 u128;

static u64 current_case;

#define CHECK(condition)                                                    \
	do {                                                                \
		if (!(condition)) {                                         \
			fprintf(stderr,                                     \
				"%s:%d: case %" PRIu64 ": %s does not hold\n", \
				__FILE__, __LINE__, current_case, #condition); \
			abort();                                            \
		}                                                           \
	} while (0)

/* PCG XSH RR 64/32, O'Neill 2014. */
struct random {
	u64 state;
};

static u32 random_u32(struct random *r)
{
	u64 old = r->state;
	u32 shifted = (u32)(((old >> 18) ^ old) >> 27);
	u32 rotation = (u32)(old >> 59);

	r->state = old * 6364136223846793005u + 1442695040888963407u;
	return (shifted >> rotation) | (shifted << ((0u - rotation) & 31));
}

static u64 random_u64(struct random *r)
{
	u64 high = random_u32(r);

	return high << 32 | random_u32(r);
}

static u32 below(struct random *r, u32 bound)
{
	return (u32)(((u64)random_u32(r) * bound) >> 32);
}

static bool once_in(struct random *r, u32 times)
{
	return below(r, times) == 0;
}

/* Numbers of every magnitude, and neighbours of powers of two. */
static u64 any_size(struct random *r)
{
	switch (below(r, 4)) {
	case 0:
		return random_u64(r);
	case 1:
		return below(r, 8);
	case 2:
		return ((u64)1 << below(r, 64)) + below(r, 3) - 1;
	default:
		return random_u64(r) >> below(r, 64);
	}
}

/* Reference model of APLE. */
struct model {
	struct tandem_aple_config cfg;
	u32 base, threshold, exits;
	u128 handling;
	u64 seen;
	u32 epochs;
	struct {
		u32 threshold;
		u64 cost, consumed;
	} round[3];
};

static u32 within(const struct tandem_aple_config *cfg, s64 threshold)
{
	if (threshold > cfg->upper)
		threshold = cfg->upper;
	if (threshold < cfg->lower)
		threshold = cfg->lower;
	return (u32)threshold;
}

static bool smallest(const struct model *m, int i)
{
	int j;

	for (j = 0; j < 3; j++)
		if ((u128)m->round[j].cost * m->round[i].consumed <
		    (u128)m->round[i].cost * m->round[j].consumed)
			return false;
	return true;
}

static void model_epoch(struct model *m, u64 vm_cycles)
{
	u128 cost = m->handling > UINT64_MAX ? UINT64_MAX : m->handling;
	u64 before = m->seen;
	s64 base = m->base;
	int i, winners = 0;
	u32 winner = 0;

	cost += (u128)m->threshold * m->exits;
	if (cost > UINT64_MAX)
		cost = UINT64_MAX;
	m->seen = vm_cycles;
	m->handling = 0;
	if (!m->exits || vm_cycles <= before) {
		m->exits = 0;
		m->threshold = within(&m->cfg, m->threshold);
		return;
	}
	m->exits = 0;
	m->round[m->epochs].threshold = m->threshold;
	m->round[m->epochs].cost = (u64)cost;
	m->round[m->epochs].consumed = vm_cycles - before;
	m->epochs++;
	if (m->epochs == 1) {
		m->threshold = within(&m->cfg, base + m->cfg.step);
		return;
	}
	if (m->epochs == 2) {
		m->threshold = within(&m->cfg, base - m->cfg.step);
		return;
	}
	for (i = 0; i < 3; i++) {
		if (smallest(m, i)) {
			winners++;
			/* E1 ran at the former T_d, even if the bounds have changed. */
			winner = i ? m->round[i].threshold : m->base;
		}
	}
	m->base = within(&m->cfg, winners == 1 ? winner : m->base);
	m->threshold = m->base;
	m->epochs = 0;
}

static struct tandem_aple_config random_config(struct random *r)
{
	struct tandem_aple_config cfg = {
		.initial = TANDEM_APLE_INITIAL,
		.lower = TANDEM_APLE_LOWER,
		.upper = TANDEM_APLE_UPPER,
		.step = TANDEM_APLE_STEP,
		.epoch_exits = 1 + below(r, 20),
	};

	if (once_in(r, 2)) {
		cfg.initial = (u32)any_size(r);
		cfg.lower = (u32)any_size(r);
		cfg.upper = (u32)any_size(r);
		cfg.step = (u32)any_size(r);
		if (once_in(r, 8))
			cfg.epoch_exits = (u32)any_size(r);
	}
	return cfg;
}

static void fuzz_aple(struct random *r)
{
	struct model m = { .cfg = random_config(r), .seen = any_size(r) };
	u32 epochs = below(r, 60), e, i;
	struct tandem_aple a;

	memset(&a, (int)below(r, 256), sizeof(a));
	tandem_aple_init(&a, &m.cfg, m.seen);
	m.base = within(&m.cfg, m.cfg.initial);
	m.threshold = m.base;
	for (e = 0; e < epochs; e++) {
		bool plain = once_in(r, 2);
		u32 exits = below(r, 24);
		u64 next = once_in(r, 4) ? any_size(r) : m.seen + any_size(r);

		if (once_in(r, 32))
			m.cfg = random_config(r);
		if (once_in(r, 64)) {
			/* Simulate many earlier exits. */
			a.exits = UINT32_MAX - below(r, 24);
			m.exits = a.exits;
		}
		for (i = 0; i < exits; i++) {
			/* Small numbers, so that ties occur. */
			u64 handling = plain ? below(r, 2) : any_size(r);
			bool over = tandem_aple_exit(&a, &m.cfg, handling);

			m.handling += handling;
			m.exits += m.exits != UINT32_MAX;
			CHECK(a.exits == m.exits);
			CHECK(over == (m.exits >= m.cfg.epoch_exits));
		}
		if (plain && once_in(r, 2)) {
			/* Consume as much as is wasted, or twice that. */
			u64 wasted = (u64)m.threshold * m.exits +
				     (u64)m.handling;

			next = m.seen + (wasted << below(r, 2));
		}
		model_epoch(&m, next);
		CHECK(tandem_aple_epoch(&a, &m.cfg, next) == m.threshold);
		CHECK(tandem_aple_threshold(&a) == m.threshold);
		CHECK(a.base == m.base);
		CHECK(a.threshold >= m.cfg.lower);
		CHECK(a.threshold <= m.cfg.upper || m.cfg.lower > m.cfg.upper ||
		      a.threshold == m.cfg.lower);
		CHECK(a.exits == 0 && a.handling == 0);
		CHECK(a.phase == m.epochs);
	}
	CHECK(tandem_aple_config_ok(&m.cfg) ==
	      (m.cfg.lower && m.cfg.step && m.cfg.epoch_exits &&
	       m.cfg.lower <= m.cfg.initial && m.cfg.initial <= m.cfg.upper));
}

static void fuzz_arithmetic(struct random *r)
{
	u64 a = any_size(r), b = any_size(r), c = any_size(r), d = any_size(r);
	u128 left = (u128)a * d, right = (u128)c * b;
	int order = tandem_compare_fractions(a, b, c, d);
	u128 ppm = b ? (u128)a * 1000000 / b : UINT32_MAX;
	u32 ours = tandem_parts_per_million(a, b);

	CHECK(tandem_multiply_high(a, b) == (u64)((u128)a * b >> 64));
	CHECK(order == (left > right) - (left < right));
	CHECK(a >> 44 || ours == (ppm > UINT32_MAX ? UINT32_MAX : (u32)ppm));
}

#define MOST_RECORDS 1100

/*
 * Reference model of HVS: for each order its lists, best first, and whether the
 * latest of a list comes first. Negative: @a is chosen before @b.
 */
static int described(u32 order, const struct tandem_hvs_vcpu *a,
		     const struct tandem_hvs_vcpu *b)
{
	static const struct {
		u8 list;
		bool latest;
	} orders[4][3] = {
		{ { 1, true }, { 2, false }, { 3, false } },
		{ { 1, false }, { 2, false }, { 3, false } },
		{ { 1, true }, { 2, true }, { 3, false } },
		{ { 2, false }, { 1, true }, { 3, false } },
	};
	u32 which = order < 4 ? order : 0, i;

	for (i = 0; i < 3; i++) {
		u8 list = orders[which][i].list;

		if (a->list != list && b->list != list)
			continue;
		if (a->list != list || b->list != list)
			return a->list == list ? -1 : 1;
		if (a->preempted_at == b->preempted_at)
			return 0;
		return (a->preempted_at > b->preempted_at) ==
				       orders[which][i].latest ?
			       -1 :
			       1;
	}
	return 0;
}

static void check_choice(const struct tandem_hvs_vcpu *before,
			 const struct tandem_hvs_vcpu *after, u32 count,
			 u32 spinner, u32 order, int chosen)
{
	struct tandem_hvs_search search;
	u32 seen = count < TANDEM_HVS_MOST_VCPUS ? count : TANDEM_HVS_MOST_VCPUS;
	bool has_candidate = false;
	u32 i;

	tandem_hvs_begin(&search, order, spinner);
	for (i = 0; i < seen; i++)
		tandem_hvs_consider(&search, i, &before[i]);
	CHECK(search.chosen == chosen);
	CHECK(chosen >= -1 && chosen < (int)seen);
	for (i = 0; i < count; i++) {
		bool on_list = before[i].list >= TANDEM_HVS_RESOURCE_WAITER &&
			       before[i].list <= TANDEM_HVS_YIELDED;

		has_candidate |= on_list && i < seen && i != spinner;
		CHECK(after[i].list == before[i].list);
		CHECK(after[i].preempted_at == before[i].preempted_at);
		if ((int)i == chosen) {
			CHECK(on_list && i != spinner);
			CHECK(after[i].yielded == 1);
			continue;
		}
		CHECK(after[i].yielded == before[i].yielded);
		if (chosen < 0 || i >= seen || i == spinner)
			continue;
		CHECK(described(order, &before[chosen], &before[i]) <=
		      (i > (u32)chosen ? 0 : -1));
		CHECK(tandem_hvs_better(order, &before[i], &before[chosen]) ==
		      (described(order, &before[i], &before[chosen]) < 0));
		CHECK(tandem_hvs_better(order, &before[chosen], &before[i]) ==
		      (described(order, &before[chosen], &before[i]) < 0));
	}
	CHECK(has_candidate == (chosen >= 0));
}

static void fuzz_hvs(struct random *r)
{
	static struct tandem_hvs_vcpu before[MOST_RECORDS];
	u32 count = once_in(r, 64) ? below(r, MOST_RECORDS + 1) : below(r, 20);
	u32 events = below(r, 200), order = below(r, 5), e, i;
	bool noisy = once_in(r, 4);
	struct tandem_hvs_vcpu *v;
	u64 now = any_size(r);

	/* Allocate the exact size, so that sanitizers detect an access beyond it. */
	v = malloc((count ? count : 1) * sizeof(*v));
	CHECK(v);
	memset(v, (int)below(r, 256), (count ? count : 1) * sizeof(*v));
	for (i = 0; i < count; i++)
		tandem_hvs_init(&v[i]);
	for (e = 0; e < events; e++) {
		u32 which = count ? below(r, count) : 0;
		u32 spinner = once_in(r, 8) ? random_u32(r) : which;
		u32 cause = below(r, 4);
		int chosen;

		now = once_in(r, 32) ? any_size(r) : now + below(r, 3);
		if (count && once_in(r, 3)) {
			bool marked = v[which].yielded;

			tandem_hvs_preempted(&v[which], cause, now);
			CHECK(v[which].preempted_at == now);
			if (cause == TANDEM_HVS_SPINNING ||
			    cause == TANDEM_HVS_DISPLACED) {
				CHECK(v[which].list ==
				      (cause == TANDEM_HVS_SPINNING ?
					       TANDEM_HVS_LOCK_WAITER :
					       TANDEM_HVS_YIELDED));
				CHECK(v[which].yielded == marked ||
				      v[which].yielded > 1);
			} else {
				CHECK(v[which].list ==
				      (marked ? TANDEM_HVS_YIELDED :
						TANDEM_HVS_RESOURCE_WAITER));
				CHECK(!v[which].yielded);
			}
		} else if (count && once_in(r, 4)) {
			if (once_in(r, 2))
				tandem_hvs_running(&v[which]);
			else
				tandem_hvs_blocked(&v[which]);
			CHECK(v[which].list == TANDEM_HVS_NONE);
		} else if (count && noisy && once_in(r, 4)) {
			v[which].preempted_at = any_size(r);
			v[which].list = (u8)any_size(r);
			v[which].yielded = (u8)any_size(r);
		} else {
			memcpy(before, v, count * sizeof(*v));
			chosen = tandem_hvs_candidate(v, count, spinner, order);
			check_choice(before, v, count, spinner, order, chosen);
			if (chosen >= 0 && once_in(r, 2))
				tandem_hvs_running(&v[chosen]);
		}
	}
	free(v);
}

static void run_case(u64 seed)
{
	struct random r = { .state = seed * 0x9e3779b97f4a7c15u };
	u32 i;

	current_case = seed;
	random_u32(&r);
	for (i = 0; i < 64; i++)
		fuzz_arithmetic(&r);
	fuzz_aple(&r);
	fuzz_hvs(&r);
}

static u64 number(const char *text)
{
	char *end;
	u64 value = strtoull(text, &end, 10);

	if (*text < '0' || *text > '9' || *end) {
		fprintf(stderr, "fuzz: %s is no number; give SEED SECONDS\n",
			text);
		exit(2);
	}
	return value;
}

int main(int argc, char **argv)
{
	struct timespec began, now;
	u64 seed, seconds, cases = 0;
	double ran;

	if (argc != 3) {
		fprintf(stderr, "fuzz: give SEED SECONDS\n");
		return 2;
	}
	seed = number(argv[1]);
	seconds = number(argv[2]);
	clock_gettime(CLOCK_MONOTONIC, &began);
	do {
		run_case(seed + cases++);
		clock_gettime(CLOCK_MONOTONIC, &now);
		ran = (double)(now.tv_sec - began.tv_sec) +
		      (double)(now.tv_nsec - began.tv_nsec) / 1e9;
	} while (ran < (double)seconds);
	printf("cases %" PRIu64 " to %" PRIu64 ": %" PRIu64
	       " cases in %.1f s, nothing found\n",
	       seed, seed + cases - 1, cases, ran);
	return 0;
}
