/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Exports the headers' inline functions as symbols for Rust.
 *
 * tandem_ffi_*_layout() return sizes and offsets in the order of the Rust
 * declarations, for a test to compare; U32_MAX after the last one.
 */
#include <stddef.h>

#include "aple.h"
#include "hvs.h"

bool tandem_ffi_aple_config_ok(const struct tandem_aple_config *cfg);
void tandem_ffi_aple_init(struct tandem_aple *a,
			  const struct tandem_aple_config *cfg, u64 vm_cycles);
bool tandem_ffi_aple_exit(struct tandem_aple *a,
			  const struct tandem_aple_config *cfg,
			  u64 handling_cycles);
u32 tandem_ffi_aple_epoch(struct tandem_aple *a,
			  const struct tandem_aple_config *cfg, u64 vm_cycles);
u32 tandem_ffi_aple_threshold(const struct tandem_aple *a);
int tandem_ffi_compare_fractions(u64 a, u64 b, u64 c, u64 d);
u32 tandem_ffi_parts_per_million(u64 a, u64 b);
void tandem_ffi_hvs_init(struct tandem_hvs_vcpu *v);
void tandem_ffi_hvs_preempted(struct tandem_hvs_vcpu *v, u32 cause, u64 now);
void tandem_ffi_hvs_running(struct tandem_hvs_vcpu *v);
void tandem_ffi_hvs_blocked(struct tandem_hvs_vcpu *v);
bool tandem_ffi_hvs_better(u32 order, const struct tandem_hvs_vcpu *a,
			   const struct tandem_hvs_vcpu *b);
int tandem_ffi_hvs_candidate(struct tandem_hvs_vcpu *v, u32 count, u32 spinner,
			     u32 order);
u32 tandem_ffi_aple_config_layout(u32 field);
u32 tandem_ffi_aple_layout(u32 field);
u32 tandem_ffi_hvs_vcpu_layout(u32 field);

bool tandem_ffi_aple_config_ok(const struct tandem_aple_config *cfg)
{
	return tandem_aple_config_ok(cfg);
}

void tandem_ffi_aple_init(struct tandem_aple *a,
			  const struct tandem_aple_config *cfg, u64 vm_cycles)
{
	tandem_aple_init(a, cfg, vm_cycles);
}

bool tandem_ffi_aple_exit(struct tandem_aple *a,
			  const struct tandem_aple_config *cfg,
			  u64 handling_cycles)
{
	return tandem_aple_exit(a, cfg, handling_cycles);
}

u32 tandem_ffi_aple_epoch(struct tandem_aple *a,
			  const struct tandem_aple_config *cfg, u64 vm_cycles)
{
	return tandem_aple_epoch(a, cfg, vm_cycles);
}

u32 tandem_ffi_aple_threshold(const struct tandem_aple *a)
{
	return tandem_aple_threshold(a);
}

int tandem_ffi_compare_fractions(u64 a, u64 b, u64 c, u64 d)
{
	return tandem_compare_fractions(a, b, c, d);
}

u32 tandem_ffi_parts_per_million(u64 a, u64 b)
{
	return tandem_parts_per_million(a, b);
}

void tandem_ffi_hvs_init(struct tandem_hvs_vcpu *v)
{
	tandem_hvs_init(v);
}

void tandem_ffi_hvs_preempted(struct tandem_hvs_vcpu *v, u32 cause, u64 now)
{
	tandem_hvs_preempted(v, cause, now);
}

void tandem_ffi_hvs_running(struct tandem_hvs_vcpu *v)
{
	tandem_hvs_running(v);
}

void tandem_ffi_hvs_blocked(struct tandem_hvs_vcpu *v)
{
	tandem_hvs_blocked(v);
}

bool tandem_ffi_hvs_better(u32 order, const struct tandem_hvs_vcpu *a,
			   const struct tandem_hvs_vcpu *b)
{
	return tandem_hvs_better(order, a, b);
}

int tandem_ffi_hvs_candidate(struct tandem_hvs_vcpu *v, u32 count, u32 spinner,
			     u32 order)
{
	return tandem_hvs_candidate(v, count, spinner, order);
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

u32 tandem_ffi_aple_config_layout(u32 field)
{
	static const u32 layout[] = {
		sizeof(struct tandem_aple_config),
		_Alignof(struct tandem_aple_config),
		offsetof(struct tandem_aple_config, initial),
		offsetof(struct tandem_aple_config, lower),
		offsetof(struct tandem_aple_config, upper),
		offsetof(struct tandem_aple_config, step),
		offsetof(struct tandem_aple_config, epoch_exits),
		TANDEM_APLE_INITIAL,
		TANDEM_APLE_LOWER,
		TANDEM_APLE_UPPER,
		TANDEM_APLE_STEP,
		TANDEM_APLE_EPOCH_EXITS,
	};

	return field < COUNT(layout) ? layout[field] : ~(u32)0;
}

u32 tandem_ffi_aple_layout(u32 field)
{
	static const u32 layout[] = {
		sizeof(struct tandem_aple),
		_Alignof(struct tandem_aple),
		offsetof(struct tandem_aple, vm_cycles),
		offsetof(struct tandem_aple, handling),
		offsetof(struct tandem_aple, best_cost),
		offsetof(struct tandem_aple, best_consumed),
		offsetof(struct tandem_aple, rounds),
		offsetof(struct tandem_aple, discarded),
		offsetof(struct tandem_aple, base),
		offsetof(struct tandem_aple, threshold),
		offsetof(struct tandem_aple, choice),
		offsetof(struct tandem_aple, exits),
		offsetof(struct tandem_aple, inefficiency_ppm),
		offsetof(struct tandem_aple, phase),
		TANDEM_APLE_AT_BASE,
		TANDEM_APLE_ABOVE,
		TANDEM_APLE_BELOW,
	};

	return field < COUNT(layout) ? layout[field] : ~(u32)0;
}

u32 tandem_ffi_hvs_vcpu_layout(u32 field)
{
	static const u32 layout[] = {
		sizeof(struct tandem_hvs_vcpu),
		_Alignof(struct tandem_hvs_vcpu),
		offsetof(struct tandem_hvs_vcpu, preempted_at),
		offsetof(struct tandem_hvs_vcpu, list),
		offsetof(struct tandem_hvs_vcpu, yielded),
		offsetof(struct tandem_hvs_vcpu, reserved),
		TANDEM_HVS_NONE,
		TANDEM_HVS_RESOURCE_WAITER,
		TANDEM_HVS_LOCK_WAITER,
		TANDEM_HVS_YIELDED,
		TANDEM_HVS_SLICE,
		TANDEM_HVS_SPINNING,
		TANDEM_HVS_DISPLACED,
		TANDEM_HVS,
		TANDEM_HVS_CPTH_R,
		TANDEM_HVS_CPTH_L,
		TANDEM_HVS_CCH,
		TANDEM_HVS_MOST_VCPUS,
	};

	return field < COUNT(layout) ? layout[field] : ~(u32)0;
}
