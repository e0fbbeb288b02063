/*
 * Memory shared by the VMM and the vCPUs of one VM: parameters in, counters out, and the state of
 * the workload's locks, queues and barriers.
 *
 * The VMM reads the counters while the vCPUs run. Only one vCPU writes each counter, with whole
 * aligned 64-bit stores, so that readers never see torn values and no vCPU has to stop. The Rust
 * mirror of these structures is src/shared.rs, which compares its layout with tandem_layout
 * (layout.c). Times are TSC cycles. stubs.S includes this file only for the offsets.
 */
#ifndef TANDEM_SHARED_H
#define TANDEM_SHARED_H

/*
 * Interrupt vectors, and the two gates that CPL 3 calls with int. The gates use the vectors of
 * breakpoint and overflow: hypervisors without hardware support run the guest's CPL 3 under the
 * host's IDT, where Linux lets user code call these two.
 */
#define TANDEM_VECTOR_WAKE 0x40
#define TANDEM_VECTOR_SHOOTDOWN 0x41
#define TANDEM_GATE_HALT 3
#define TANDEM_GATE_WRMSR 4

/* The guest writes to this port after an unexpected exception, and the VMM reports it. */
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
    /* Counters, read by the VMM. */
    TANDEM_OWN_LINE u64 work; /* finished items */
    u64 halts;                /* times the vCPU went to sleep */
    u64 ipis;                 /* interrupts sent to other vCPUs */
    u64 acks;                 /* shootdown requests acknowledged */
    u64 violations;           /* broken invariants: nonzero only by a bug */
    u64 dropped;              /* bursts and requests dropped because too many were late */
    u64 draws;                /* sizes drawn from the random sequence */
    u64 fingerprint;          /* hash of the first draws: equal seeds, equal fingerprints */

    /* Interrupts. Other vCPUs write only `request` and, with threads, `pending`. */
    TANDEM_OWN_LINE u32 pending; /* a wake-up or timer since it was last cleared */
    i32 tid;                     /* threads backend: target of signals */
    u64 request;                 /* the last shootdown asked of this vCPU */
    u64 seen;                    /* the last shootdown this vCPU acknowledged */
    u64 timer;                   /* threads backend: deadline of the armed timer, or 0 */

    /* Private to the vCPU. */
    TANDEM_OWN_LINE u64 random_state;
    u64 random_stream;
    u64 chain; /* the value that runs through the dependent chain */
    u32 index;
    /* Counters read by other processes (file_name in src/shared.rs); one line, as both change constantly. */
    u64 steps; /* of the dependent chain */
    u64 spins; /* turns of a loop that waits */

    /* Completion times, read by the VMM. */
    TANDEM_OWN_LINE u64 completion_cycles;      /* all of them added up */
    u64 completions[TANDEM_COMPLETION_BUCKETS]; /* how many there were in each bucket */
};

/* vCPUs that sleep until a condition holds; bit n is vCPU n. */
struct tandem_waiters {
    TANDEM_OWN_LINE u64 mask;
};

struct tandem_lock {
    TANDEM_OWN_LINE u32 next_ticket;
    TANDEM_OWN_LINE u32 now_serving;
    TANDEM_OWN_LINE u32 locked;
    TANDEM_OWN_LINE u64 owner; /* index + 1 of the holder, to check mutual exclusion */
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
