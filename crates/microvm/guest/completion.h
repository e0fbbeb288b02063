/*
 * Completion times: time from the scheduled start of a burst or request to its end.
 *
 * The scheduled start follows from the workload's plan. The time therefore includes timer delay,
 * wake-up, waiting for a pCPU, preemption, earlier late bursts, and the work itself. Dropped bursts
 * (`dropped`) have no completion time.
 *
 * Times are TSC cycles, in log-linear buckets: one for all below 2^TANDEM_COMPLETION_FROM, then eight
 * of equal width for each factor of two, and one for all from 2^TANDEM_COMPLETION_TO on. A bucket is at
 * most an eighth as wide as its times. The reading side is src/completion.rs.
 */
#ifndef TANDEM_COMPLETION_H
#define TANDEM_COMPLETION_H

#include "platform.h"
#include "sync.h"

static inline u32 completion_bucket(u64 cycles)
{
    if (cycles < 1ull << TANDEM_COMPLETION_FROM)
        return 0;
    if (cycles >= 1ull << TANDEM_COMPLETION_TO)
        return TANDEM_COMPLETION_BUCKETS - 1;
    u32 power = 63 - (u32)__builtin_clzll(cycles);
    u32 eighth = (u32)(cycles >> (power - 3)) & 7;
    return 1 + (power - TANDEM_COMPLETION_FROM) * 8 + eighth;
}

/* Counts the completion of a burst or request that was due at TSC `due`. */
static inline void count_completion(struct tandem_vcpu *me, u64 due)
{
    u64 now = platform_now();
    u64 cycles = now > due ? now - due : 0;
    count(&me->completions[completion_bucket(cycles)]);
    store(&me->completion_cycles, me->completion_cycles + cycles);
}

#endif
