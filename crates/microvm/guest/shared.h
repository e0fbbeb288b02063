/*
 * The memory that the VMM and the vCPUs of one VM share: parameters in, counters out, and the
 * state of the workload's own locks, queues and barriers.
 *
 * The VMM reads the counters while the vCPUs run: each is written by one vCPU only and by whole
 * aligned 64-bit stores, so that no reader sees half a number and nobody has to stop. The Rust
 * mirror of these structures is src/shared.rs; tandem_layout (layout.c) lets it check that both
 * agree. Times are TSC cycles. Stubs.S includes this file for the offsets alone.
 */
#ifndef TANDEM_SHARED_H
#define TANDEM_SHARED_H

/*
 * Interrupt vectors: what the guest handles, and the two gates that CPL 3 calls with int. Those of
 * breakpoint and overflow, because hypervisors without hardware help run the guest's CPL 3 under
 * the host's own IDT, and these two Linux lets user code call.
 */
#define TANDEM_VECTOR_WAKE 0x40
#define TANDEM_VECTOR_SHOOTDOWN 0x41
#define TANDEM_GATE_HALT 3
#define TANDEM_GATE_WRMSR 4

/* A guest that meets an exception it cannot have writes here, and the VMM reports it. */
#define TANDEM_FAULT_PORT 0xf4

/* Offsets in struct tandem_vcpu that the assembly uses. */
#define TANDEM_VCPU_HALTS 8
#define TANDEM_VCPU_ACKS 24
#define TANDEM_VCPU_PENDING 64
#define TANDEM_VCPU_REQUEST 72
#define TANDEM_VCPU_SEEN 80

#ifndef __ASSEMBLER__

#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint32_t u32;
typedef int32_t i32;
typedef uint64_t u64;

#define TANDEM_MAX_VCPUS 64
#define TANDEM_MAX_PARAMS 8
#define TANDEM_QUEUE_SLOTS 64
/* Completion times (completion.h): 2^10 cycles are some tenths of a microsecond, 2^37 some tens of seconds. */
#define TANDEM_COMPLETION_FROM 10
#define TANDEM_COMPLETION_TO 37
#define TANDEM_COMPLETION_BUCKETS ((TANDEM_COMPLETION_TO - TANDEM_COMPLETION_FROM) * 8 + 2)
#define TANDEM_OWN_LINE _Alignas(64)

/* The order is that of `Workload` in src/workload.rs. */
enum tandem_workload {
    TANDEM_BURN,
    TANDEM_SPINLOCK,
    TANDEM_MUTEX,
    TANDEM_BARRIER,
    TANDEM_FORKJOIN,
    TANDEM_PIPELINE,
    TANDEM_SHOOTDOWN,
    TANDEM_BURSTY,
    TANDEM_SERVER,
};

struct tandem_vcpu {
    /* Counters, for the VMM to read. */
    TANDEM_OWN_LINE u64 work; /* finished items */
    u64 halts;                /* times the vCPU really went to sleep */
    u64 ipis;                 /* interrupts sent to other vCPUs */
    u64 acks;                 /* shootdown requests acknowledged */
    u64 violations;           /* broken invariants seen: always 0 unless there is a bug */
    u64 dropped;              /* bursts and requests given up because too many were late */
    u64 draws;                /* sizes drawn from the random sequence */
    u64 fingerprint;          /* hash of the first draws: equal seeds, equal fingerprints */

    /* Interrupts. Only `request` and, for threads, `pending` are written by others. */
    TANDEM_OWN_LINE u32 pending; /* a wake-up or timer came since it was last cleared */
    i32 tid;                     /* threads backend: whom to signal */
    u64 request;                 /* the last shootdown asked of this vCPU */
    u64 seen;                    /* the last shootdown this vCPU acknowledged */
    u64 timer;                   /* threads backend: when the armed timer fires, or 0 */

    /* The vCPU's own. */
    TANDEM_OWN_LINE u64 random_state;
    u64 random_stream;
    u64 chain; /* the value that runs through the dependent chain */
    u32 index;
    /* Counters, for whoever asks what it does (counters.rs): one line, because both change all the time. */
    u64 steps; /* of the dependent chain */
    u64 spins; /* turns of a loop that waits */

    /* Completion times, for the VMM to read. */
    TANDEM_OWN_LINE u64 completion_cycles;      /* all of them added up */
    u64 completions[TANDEM_COMPLETION_BUCKETS]; /* how many there were in each bucket */
};

/* vCPUs that sleep until a condition holds: bit n is vCPU n. */
struct tandem_waiters {
    TANDEM_OWN_LINE u64 mask;
};

struct tandem_lock {
    TANDEM_OWN_LINE u32 next_ticket;
    TANDEM_OWN_LINE u32 now_serving;
    TANDEM_OWN_LINE u32 locked;
    TANDEM_OWN_LINE u64 owner; /* index + 1 of the holder: the proof of mutual exclusion */
    u64 guarded;               /* counted without atomics, under the lock */
    struct tandem_waiters waiters;
};

struct tandem_phases {
    TANDEM_OWN_LINE u64 arrived; /* in the current phase */
    TANDEM_OWN_LINE u64 phase;   /* phases that every vCPU has finished */
    TANDEM_OWN_LINE u64 forked;  /* forkjoin: rounds whose serial part is done */
    struct tandem_waiters waiters;
    struct tandem_waiters fork_waiters;
};

/* One producer (the stage before), one consumer (the stage after). */
struct tandem_queue {
    TANDEM_OWN_LINE u64 head; /* items taken */
    TANDEM_OWN_LINE u64 tail; /* items put */
    struct tandem_waiters waiters;
    u64 slots[TANDEM_QUEUE_SLOTS];
};

struct tandem_vm {
    u32 vcpus;
    u32 workload;
    u32 stop;             /* set once by the VMM: leave at the next occasion */
    i32 process;          /* threads backend: for signals */
    i32 shootdown_signal; /* threads backend */
    u64 seed;
    u64 tsc_khz;
    u64 steps; /* of the dependent chain in 2^20 TSC cycles */
    u64 params[TANDEM_MAX_PARAMS];
    struct tandem_vcpu vcpu[TANDEM_MAX_VCPUS];
    struct tandem_lock lock;
    struct tandem_phases phases;
    struct tandem_queue queue[TANDEM_MAX_VCPUS];
};

_Static_assert(offsetof(struct tandem_vcpu, halts) == TANDEM_VCPU_HALTS, "stubs.S");
_Static_assert(offsetof(struct tandem_vcpu, acks) == TANDEM_VCPU_ACKS, "stubs.S");
_Static_assert(offsetof(struct tandem_vcpu, pending) == TANDEM_VCPU_PENDING, "stubs.S");
_Static_assert(offsetof(struct tandem_vcpu, request) == TANDEM_VCPU_REQUEST, "stubs.S");
_Static_assert(offsetof(struct tandem_vcpu, seen) == TANDEM_VCPU_SEEN, "stubs.S");

#endif
#endif
