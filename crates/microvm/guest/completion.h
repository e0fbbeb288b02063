/*
 * Completion times: how long a burst or a request took from when it was due to begin until it was done.
 *
 * Due is a point on the clock that the workload's own plan gives, so that the time until the timer fires, until the vCPU is
 * woken and gets a pCPU, while it is preempted, and behind earlier bursts that are late, all count, beside the work itself. What
 * is given up (`dropped`) was never done and is not here.
 *
 * Times are TSC cycles, in log-linear buckets: one for all below 2^TANDEM_COMPLETION_FROM, then eight of equal width for each
 * factor of two, and one for all from 2^TANDEM_COMPLETION_TO on. A bucket is so never wider than an eighth of what it holds. The
 * reading side is src/completion.rs.
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

/* Counts that what was due at TSC `due` is done now. */
static inline void count_completion(struct tandem_vcpu *me, u64 due)
{
    u64 now = platform_now();
    u64 cycles = now > due ? now - due : 0;
    count(&me->completions[completion_bucket(cycles)]);
    store(&me->completion_cycles, me->completion_cycles + cycles);
}

#endif
