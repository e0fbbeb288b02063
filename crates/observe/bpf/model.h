/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * What the programs keep, shared with user space: src/bpf/layout.rs says the same in Rust.
 *
 * All times are ns of CLOCK_MONOTONIC.
 */
#ifndef TANDEM_MODEL_H
#define TANDEM_MODEL_H

#include "vmlinux.h"

/* No vCPU: what `watched_index()` says of threads that are not watched. */
#define NOBODY 0xffffffffu

/* Watched vCPUs that can wait for one pCPU at a time; whoever comes later is counted in `lost`. */
#define MAX_WAITING 32u

/* What a vCPU does. */
enum {
	RUN,		/* guest code, or what cannot be told from it */
	VMM,		/* the host for the guest, on a pCPU */
	POLL,		/* the host polls after HLT, on a pCPU */
	READY,		/* waits for a pCPU */
	LIMITED,	/* kept off by a quota */
	ASLEEP,
	UNKNOWN,	/* since it is watched nothing happened to it; as an account, what is not known for want of an event */
	ENDED,		/* its thread is gone, or the slot was never used */
	COSTOP,		/* never a state, an account only: the part of ASLEEP that a sibling's wait made longer */
	STATES = 16,	/* a power of two: the verifier wants a mask */
};

#define BUCKETS 32

/* A watched vCPU. `lock` guards `state`, `since` and `time`; the rest has one writer: whoever holds the run queue's lock, or
 * the thread itself. */
struct vcpu {
	struct bpf_spin_lock lock;
	u32 state;
	u64 since;		/* when the state began, or when it was last added to `time` */
	u64 time[STATES];
	u64 woken_at;		/* when it was woken, if it did not run since; else 0 */
	u64 poll_until;		/* when polling ends at the latest */
	u64 slept_at;		/* when it last went to sleep, … */
	u64 slept_after;	/* … and when the work began that it did until then */
	u64 born_from;		/* its thread started between this … */
	u64 born_to;		/* … and this, by CLOCK_BOOTTIME: a later thread of its number did not */
	u64 task;		/* address of its task, … */
	u64 cfs_rq;		/* … and of its group's run queue, to see a quota; 0 if there is none */
	u64 waits_since;	/* its last wait for a pCPU: from when … */
	u64 waited_until;	/* … until when */
	u64 costop_since;	/* the last wait of a sibling's that made its sleep longer: from when … */
	u64 costop_until;	/* … until when; 0 if nobody's did since it last slept */
	u64 unlisted_since;	/* since when it waits without a place in a list; else 0 */
	u64 runs;		/* how often it was put on a pCPU */
	u64 exits;
	u64 user_exits;		/* of these, to user space */
	u64 halts;
	u64 ipis;		/* that it sent */
	u64 spins;		/* pause exits */
	u64 vm;
	u32 vcpu;
	u32 tid;
	u32 mode;		/* RUN, VMM or POLL: what it does when it is on a pCPU */
	u32 pcpu;		/* where it waits */
	u32 costop_for;		/* whose wait that was: index of a vCPU */
	u32 is_found;		/* whether its thread was seen to be the one that was meant */
	u64 latency_time;	/* from wake-ups until it ran, in all */
	u64 latency[BUCKETS];	/* wake-ups by log2 of the ns until it ran */
};

struct waiting {
	u32 vcpu;
	u32 pad;
	u64 since;		/* up to when its wait is charged */
};

/* A pCPU, and who waits for it. `lock` guards `count` and `waiting`. Removed from only by who holds the run queue's lock. */
struct pcpu {
	struct bpf_spin_lock lock;
	u32 count;
	u64 task;		/* address of the task that runs; 0 until the first switch */
	u64 found;		/* until then: of the one that was found running, or 0 */
	struct waiting waiting[MAX_WAITING];
	u64 apart[5];		/* so that two pCPUs never write one cache line */
};

/* A victim and whom it waited for. */
struct edge_key {
	u32 victim;		/* index of a vCPU */
	u32 culprit;		/* thread, 0: the pCPU was idle */
};

struct edge {
	u64 time;
	u64 cgroup;		/* of the cpu controller; 0: not known */
	u32 index;		/* if the culprit is watched, else NOBODY */
	u32 tgid;
	u32 flags;		/* EDGE_… */
	u32 pad;
	char comm[16];
};

#define EDGE_NAMED 1u		/* the fields below `time` are known */
#define EDGE_KERNEL 2u		/* a thread of the kernel */

/* From a vCPU to another. */
struct link_key {
	u32 from;
	u32 to;
};

struct link {
	u64 wakes;
	u64 ipis;
	u64 yields;
	u64 yields_made;	/* of these, those that made the other run */
	u64 costops;		/* waits of `from`'s that made a sleep of `to`'s longer, … */
	u64 costop_time;	/* … and by how much */
};

struct sibling {
	u64 vm;
	u32 vcpu;
	u32 pad;
};

/* What there was no room for. */
struct lost {
	u64 waits;		/* waits for which nobody will be charged */
	u64 wait_time;		/* ns of those that ended */
	u64 edges;
	u64 edge_time;		/* ns */
	u64 links;
	u64 switches;		/* that were not told: a task went that had not come */
};

/* What user space tells. */
struct settings {
	u64 most_poll;		/* ns that KVM polls at most, unless a VM has a bound of its own */
};

#endif
