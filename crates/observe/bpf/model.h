/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Data that the programs share with user space; src/bpf/layout.rs has the same structures in Rust.
 *
 * All times are ns of CLOCK_MONOTONIC.
 */
#ifndef TANDEM_MODEL_H
#define TANDEM_MODEL_H

#include "vmlinux.h"

/* No vCPU: the result of `watched_index()` for threads that are not watched. */
#define NO_VCPU 0xffffffffu

/* Maximum number of watched vCPUs in the list of one pCPU; further waits are counted in `lost`. */
#define MAX_WAITING 32u

/* States of a vCPU. */
enum {
	RUN,		/* guest code, or indistinguishable from it */
	VMM,		/* host code for the guest, on a pCPU */
	POLL,		/* halt polling, on a pCPU */
	READY,		/* waits for a pCPU */
	LIMITED,	/* throttled by a quota */
	ASLEEP,
	UNKNOWN,	/* no event since it is watched; in `time`, time between missed events */
	ENDED,		/* the thread exited, or the slot was never used */
	COSTOP,		/* only in `time`, never a state: the part of ASLEEP that a sibling's wait added */
	STATES = 16,	/* a power of two, for the verifier's mask */
};

#define BUCKETS 32

/* A watched vCPU. `lock` guards `state`, `since` and `time`. All other fields have one writer: the holder of the run queue's
 * lock, or the thread itself. */
struct vcpu {
	struct bpf_spin_lock lock;
	u32 state;
	u64 since;		/* start of the state, or of the part not yet in `time` */
	u64 time[STATES];
	u64 woken_at;		/* time of the wake-up, 0 once it ran */
	u64 poll_until;		/* latest end of polling */
	u64 slept_at;		/* start of the last sleep, … */
	u64 slept_after;	/* … and start of the state before it */
	u64 born_from;		/* range of the thread's start time by CLOCK_BOOTTIME, … */
	u64 born_to;		/* … which excludes later threads of the same number */
	u64 task;		/* address of its task, … */
	u64 cfs_rq;		/* … and of its group's run queue, to check quotas; 0 if there is none */
	u64 waits_since;	/* start of its last wait for a pCPU … */
	u64 waited_until;	/* … and its end */
	u64 costop_since;	/* start of the last wait of a sibling that prolonged its sleep … */
	u64 costop_until;	/* … and its end; 0 if there was none since it last slept */
	u64 unlisted_since;	/* start of a wait without a slot in a list; else 0 */
	u64 runs;		/* number of times it was switched in */
	u64 exits;
	u64 user_exits;		/* of these, to user space */
	u64 halts;
	u64 ipis;		/* IPIs sent */
	u64 spins;		/* pause exits */
	u64 vm;
	u32 vcpu;
	u32 tid;
	u32 mode;		/* RUN, VMM or POLL: its state while it is on a pCPU */
	u32 pcpu;		/* the pCPU it waits for */
	u32 costop_for;		/* index of the vCPU of that wait */
	u32 is_found;		/* whether find_out verified the start time of its thread */
	u64 latency_time;	/* sum of wake-up latencies */
	u64 latency[BUCKETS];	/* wake-ups by log2 of their latency in ns */
};

struct waiting {
	u32 vcpu;
	u32 pad;
	u64 since;		/* its wait is charged up to here */
};

/* A pCPU and the vCPUs that wait for it. `lock` guards `count` and `waiting`. Only a holder of the run queue's lock removes entries. */
struct pcpu {
	struct bpf_spin_lock lock;
	u32 count;
	u64 task;		/* address of the running task; 0 until the first switch */
	u64 found;		/* until then: address of the task that find_out saw running, or 0 */
	struct waiting waiting[MAX_WAITING];
	u64 apart[5];		/* padding against false sharing between pCPUs */
};

/* A victim and its culprit. */
struct edge_key {
	u32 victim;		/* index of a vCPU */
	u32 culprit;		/* thread; 0: the pCPU was idle */
};

struct edge {
	u64 time;
	u64 cgroup;		/* of the cpu controller; 0: unknown */
	u32 index;		/* of the culprit if it is watched, else NO_VCPU */
	u32 tgid;
	u32 flags;		/* EDGE_… */
	u32 pad;
	char comm[16];
};

#define EDGE_NAMED 1u		/* the fields below `time` are valid */
#define EDGE_KERNEL 2u		/* a kernel thread */

/* From one vCPU to another. */
struct link_key {
	u32 from;
	u32 to;
};

struct link {
	u64 wakes;
	u64 ipis;
	u64 yields;
	u64 yields_made;	/* of these, the successful ones */
	u64 costops;		/* waits of `from` that prolonged a sleep of `to`, … */
	u64 costop_time;	/* … and the total prolongation */
};

struct sibling {
	u64 vm;
	u32 vcpu;
	u32 pad;
};

/* Data that was lost, mostly because maps were full. */
struct lost {
	u64 waits;		/* waits that are charged to no culprit */
	u64 wait_time;		/* ns of those waits that ended */
	u64 edges;
	u64 edge_time;		/* ns */
	u64 links;
	u64 switches;		/* missed ones: the task switched out was not the one switched in */
};

/* Settings that user space writes. */
struct settings {
	u64 max_poll;		/* KVM's maximum halt-polling time in ns, unless a VM has its own */
};

#endif
