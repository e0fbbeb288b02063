/*
 * The layout of shared.h under this compiler, for src/shared.rs to compare with its own, and the
 * parts of the guest that calibration and tests call. Built into the host library only.
 */
#include "completion.h"
#include "compute.h"
#include "draw.h"

const u64 tandem_layout[] = {
    sizeof(struct tandem_vm),
    offsetof(struct tandem_vm, vcpu),
    sizeof(struct tandem_vcpu),
    offsetof(struct tandem_vm, params),
    offsetof(struct tandem_vcpu, fingerprint),
    offsetof(struct tandem_vcpu, tid),
    offsetof(struct tandem_vm, lock) + offsetof(struct tandem_lock, guarded),
    offsetof(struct tandem_vcpu, completion_cycles),
    TANDEM_COMPLETION_BUCKETS,
    offsetof(struct tandem_vcpu, steps),
};

/* Returns the bucket of a completion time, for src/completion.rs to compare with its own bounds. */
u32 tandem_completion_bucket(u64 cycles)
{
    return completion_bucket(cycles);
}

/* Runs `steps` steps of the chain and returns the elapsed TSC cycles, including disturbances. */
u64 tandem_time_chain(u64 steps)
{
    u64 start = platform_now();
    u64 value = chain(start, steps);
    __asm__ volatile("" : : "r"(value));
    return platform_now() - start;
}
