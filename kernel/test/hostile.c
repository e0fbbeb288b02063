// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT
/*
 * KVM_HC_FLUSH_TLB, called by a malicious guest.
 *
 *	gcc -O2 -static -pthread -o hostile kernel/test/hostile.c
 *	./hostile [CALLS [VCPUS [SEED]]]	default: 200000, 12, 1
 *
 * First the rules, with one calling vCPU: availability of the hypercall, its targets, and
 * its answers to invalid masks.
 *
 * Then the storm: VCPUS vCPUs make CALLS hypercalls in loops, each with the next of 4096
 * masks: all bits, none, only itself, the maximum number of vCPUs, random ones; from ID 0,
 * the last one, those after it, and numbers that overflow. Every third vCPU instead makes
 * accesses that this program emulates slowly: flushes that wait for them must give up.
 * Meanwhile a thread per CPU sleeps for 1 ms in a loop, and the worst delay is printed but
 * not checked, as it depends on the machine. The kernel's complaints (stalls, lockups,
 * KASAN) are in dmesg: run it by `kernel/test/run qemu`, with kvm.pv_flush_hypercall=1.
 *
 * Prints a summary, and exits 0 if all answers were valid, 1 if not, 3 if the host has no
 * such hypercall.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <time.h>

#include "vm.h"

const char *const program = "hostile";

#define MAX_VCPUS 128
#define MASKS 4096
#define TABLE (SHARED + 0x10000)	/* the masks, for the guest */
#define NOT_THERE (-1000)		/* -KVM_ENOSYS */
#define NO_SUCH_ID (-95)		/* -KVM_EOPNOTSUPP */
#define ELSEWHERE 0x4fffffff		/* an unused leaf of CPUID */
#define RULE_CALLS 50

/* At SHARED; the guest code below knows these offsets. */
struct shared {
	uint64_t stop;			/* 0x00 */
	uint64_t unused[7];
	struct record {
		uint64_t done;		/* 0x00: answers: all targets were flushed */
		uint64_t refused;	/* 0x08: some targets could not be flushed */
		uint64_t no_such_id;	/* 0x10 */
		uint64_t bad;		/* 0x18: any other answer */
		uint64_t answer;	/* 0x20: the last of these */
		uint64_t longest;	/* 0x28: cycles of the TSC */
		uint64_t accesses;	/* 0x30: to no memory */
		uint64_t unused;
	} records[MAX_VCPUS];
};

struct mask {
	uint64_t low, high, min, unused;
};

/*
 * guest_once: the hypercall with the registers as they are. guest_storm: r8 SHARED,
 * r14 TABLE, r15 the vCPU's record, r9 the mask to begin with. guest_access: r8, r15,
 * rbp DEVICE.
 */
asm(".pushsection .rodata\n"
    ".global guest_code, guest_storm, guest_access, guest_once_hypercall\n"
    ".global guest_storm_hypercall, guest_end\n"
    "guest_code:\n"
    "guest_once_hypercall:\n"
    "	vmcall\n"
    "1:	out %al, $0xf4\n"
    "	jmp 1b\n"
    "guest_storm:\n"
    "1:	inc %r9\n"
    "	mov %r9d, %r12d\n"
    "	and $0xfff, %r12d\n"
    "	shl $5, %r12\n"
    "	add %r14, %r12\n"
    "	rdtsc\n"
    "	shl $32, %rdx\n"
    "	lea (%rax,%rdx), %r10\n"
    "	mov (%r12), %rbx\n"
    "	mov 8(%r12), %rcx\n"
    "	mov 16(%r12), %rdx\n"
    "	mov $64, %eax\n"
    "	xor %esi, %esi\n"
    "guest_storm_hypercall:\n"
    "	vmcall\n"
    "	mov %rax, %r11\n"
    "	rdtsc\n"
    "	shl $32, %rdx\n"
    "	add %rdx, %rax\n"
    "	sub %r10, %rax\n"
    "	cmp 0x28(%r15), %rax\n"
    "	jbe 2f\n"
    "	mov %rax, 0x28(%r15)\n"
    "2:	test %r11, %r11\n"
    "	jnz 3f\n"
    "	incq (%r15)\n"
    "	jmp 6f\n"
    "3:	cmp $-95, %r11\n"
    "	jne 4f\n"
    "	incq 0x10(%r15)\n"
    "	jmp 6f\n"
    /* At most 128 targets may be left, one per bit. Unsigned. */
    "4:	cmp $128, %r11\n"
    "	ja 5f\n"
    "	incq 0x08(%r15)\n"
    "	jmp 6f\n"
    "5:	incq 0x18(%r15)\n"
    "	mov %r11, 0x20(%r15)\n"
    "6:	cmpq $0, (%r8)\n"
    "	je 1b\n"
    "7:	out %al, $0xf4\n"
    "	jmp 7b\n"
    "guest_access:\n"
    "1:	mov (%rbp), %al\n"
    "	incq 0x30(%r15)\n"
    "	cmpq $0, (%r8)\n"
    "	je 1b\n"
    "2:	out %al, $0xf4\n"
    "	jmp 2b\n"
    "guest_end:\n"
    ".popsection\n");

extern const char guest_code[], guest_storm[], guest_access[], guest_end[];
extern const char guest_once_hypercall[], guest_storm_hypercall[];

static const char *const hypercalls[] = {
	guest_once_hypercall, guest_storm_hypercall, NULL,
};

static struct vm vm;
static struct vcpu vcpus[MAX_VCPUS];
static pthread_t threads[MAX_VCPUS];
static unsigned int count = 12;
static unsigned int broken;	/* rules */
static volatile struct shared *shared;
static bool over;		/* atomically */

static bool accesses(unsigned int i)
{
	return i % 3 == 2;
}

/* Lets the vCPU make the hypercall once, and returns the answer. */
static int64_t call(struct vcpu *vcpu, uint64_t low, uint64_t high, uint64_t min)
{
	struct kvm_regs regs = {
		.rip = guest_address(guest_code, guest_once_hypercall), .rflags = 2,
		.rax = HC_FLUSH_TLB, .rbx = low, .rcx = high, .rdx = min,
	};

	sure(ioctl(vcpu->fd, KVM_SET_REGS, &regs), "KVM_SET_REGS");
	sure(ioctl(vcpu->fd, KVM_RUN, 0), "KVM_RUN");
	if (vcpu->run->exit_reason != KVM_EXIT_IO || vcpu->run->io.port != 0xf4) {
		fprintf(stderr, "hostile: exit %u\n", vcpu->run->exit_reason);
		exit(2);
	}
	sure(ioctl(vcpu->fd, KVM_GET_REGS, &regs), "KVM_GET_REGS");
	return regs.rax;
}

/* Reads one of the VM's counters in debugfs. */
static unsigned long figure(const char *name)
{
	unsigned long value;
	char path[128];
	FILE *file;

	snprintf(path, sizeof(path), "/sys/kernel/debug/kvm/%d-%d/%s", getpid(), vm.fd, name);
	file = fopen(path, "r");
	if (!file || fscanf(file, "%lu", &value) != 1)
		fail("%s", path);
	fclose(file);
	return value;
}

static void rule(bool holds, const char *what, long got)
{
	if (!holds) {
		printf("hostile: rule broken: %s: %ld\n", what, got);
		broken++;
	}
}

/*
 * Makes the same call RULE_CALLS times, which must answer 0. Checks whether the caller's own
 * TLB was flushed each time or never, apart from KVM's own flushes.
 */
static void rule_flush(const char *what, uint64_t low, uint64_t high, bool flushes_caller)
{
	unsigned long before, flushes;
	int64_t answer = 0;

	/* Serves pending flushes: the first entry. */
	call(&vcpus[0], 0, 0, 0);
	before = figure("tlb_flush");
	for (unsigned int i = 0; i < RULE_CALLS && !answer; i++)
		answer = call(&vcpus[0], low, high, 0);
	/* Serves the last request, at the vCPU's next entry. */
	call(&vcpus[0], 0, 0, 0);
	flushes = figure("tlb_flush") - before;
	rule(answer == 0, what, answer);
	rule(flushes_caller ? flushes >= RULE_CALLS : flushes < RULE_CALLS / 2, what, flushes);
}

static void close_vm(unsigned int made)
{
	size_t size = sure(ioctl(vm.kvm, KVM_GET_VCPU_MMAP_SIZE, 0), "mmap size");

	for (unsigned int i = 0; i < made; i++) {
		munmap(vcpus[i].run, size);
		close(vcpus[i].fd);
	}
	munmap(vm.memory, MEMORY);
	close(vm.fd);
	close(vm.kvm);
}

/* Only vCPUs whose CPUID shows the hypercall have it, even without KVM_CAP_ENFORCE_PV_FEATURE_CPUID. */
static void rules_of_the_gate(void)
{
	struct kvm_cpuid_entry2 *features;
	unsigned long calls;

	make_vm(&vm, guest_code, guest_end, hypercalls);
	features = kvm_features(vm.cpuid);
	features->function = ELSEWHERE;
	make_vcpu(&vm, &vcpus[0], 0, vm.cpuid);
	switch_apic_on(&vcpus[0]);
	rule(call(&vcpus[0], 1, 0, 0) == NOT_THERE, "no such leaf of CPUID, and not refused", 0);
	features->function = KVM_FEATURES;

	features->eax &= ~(1u << FEATURE_HC_FLUSH_TLB);
	make_vcpu(&vm, &vcpus[1], 1, vm.cpuid);
	rule(call(&vcpus[1], 1, 0, 0) == NOT_THERE, "no such bit in CPUID, and not refused", 1);

	features->eax |= 1u << FEATURE_HC_FLUSH_TLB;
	make_vcpu(&vm, &vcpus[2], 2, vm.cpuid);
	features->function = ELSEWHERE;
	sure(ioctl(vcpus[2].fd, KVM_SET_CPUID2, vm.cpuid), "KVM_SET_CPUID2");
	rule(call(&vcpus[2], 1, 0, 0) == NOT_THERE, "the bit was taken away, and not refused", 2);
	features->function = KVM_FEATURES;

	calls = figure("tlb_flush_hypercalls");
	rule(calls == 0, "flushes by vCPUs that have no such hypercall", calls);
	make_vcpu(&vm, &vcpus[3], 3, vm.cpuid);
	rule(call(&vcpus[3], 1, 0, 0) == 0, "the bit is there, and yet it does not work", 3);
	close_vm(4);
}

static void rules_of_flushes(void)
{
	int64_t answer;

	make_vm(&vm, guest_code, guest_end, hypercalls);
	for (unsigned int i = 0; i < 3; i++) {
		make_vcpu(&vm, &vcpus[i], i, vm.cpuid);
		switch_apic_on(&vcpus[i]);
	}
	rule_flush("the caller alone is named", 1, 0, true);
	rule_flush("the caller and another are named", 3, 0, true);
	rule_flush("another is named", 2, 0, false);
	rule_flush("no vCPU is named", 0, 0, false);
	rule_flush("all are named", ~0ull, ~0ull, true);
	rule_flush("all but the caller are named", ~1ull, ~0ull, false);

	answer = call(&vcpus[0], 1, 0, 1ull << 63);
	rule(answer == NO_SUCH_ID, "IDs from 2^63 on", answer);
	answer = call(&vcpus[0], ~0ull, ~0ull, ~0ull);
	rule(answer == NO_SUCH_ID, "IDs from 2^64-1 on", answer);
	answer = call(&vcpus[0], ~0ull, ~0ull, 0xffffffff);
	rule(answer == NO_SUCH_ID, "IDs from 2^32-1 on", answer);
	answer = call(&vcpus[0], 8, 0, 0);
	rule(answer == 1, "an ID that no vCPU has", answer);
	close_vm(3);
}

static void fill_table(uint64_t state)
{
	struct mask *table = (struct mask *)(vm.memory + TABLE);
	const uint64_t bits[] = { 0, ~0ull, 1, 1ull << 63, 0xffffffff00000000 };
	const uint64_t mins[] = { 0, 0, 0, 0, 1, count - 1, count, 255, 0xffffffff, 1ull << 63, ~0ull };

	for (unsigned int i = 0; i < MASKS; i++) {
		unsigned int kind = next_random(&state) % 8;

		table[i].low = next_random(&state);
		table[i].high = next_random(&state);
		table[i].min = mins[next_random(&state) % (sizeof(mins) / sizeof(mins[0]))];
		if (kind < 3) {
			/* The maximum: all pCPUs, all vCPUs. */
			table[i].low = table[i].high = ~0ull;
			table[i].min = 0;
		} else if (kind < 6) {
			table[i].low = bits[next_random(&state) % 5];
			table[i].high = bits[next_random(&state) % 5];
		}
	}
}

static void *run_vcpu(void *argument)
{
	struct vcpu *vcpu = argument;
	uint64_t state = (vcpu - vcpus) | 1ull << 32;

	for (;;) {
		struct kvm_run *run = vcpu->run;
		struct timespec pause = {};

		if (ioctl(vcpu->fd, KVM_RUN, 0) < 0) {
			if (errno == EINTR)
				continue;
			fail("running vCPU %td", vcpu - vcpus);
		}
		if (run->exit_reason == KVM_EXIT_IO && run->io.port == 0xf4)
			return NULL;
		if (run->exit_reason != KVM_EXIT_MMIO) {
			fprintf(stderr, "hostile: vCPU %td: exit %u\n", vcpu - vcpus,
				run->exit_reason);
			exit(2);
		}
		memset(run->mmio.data, 0, sizeof(run->mmio.data));
		pause.tv_nsec = next_random(&state) % 3000000;
		nanosleep(&pause, NULL);
	}
}

/* Returns the worst delay of 1 ms sleeps on one CPU. */
static void *sleep_on(void *argument)
{
	const struct timespec pause = { .tv_nsec = 1000000 };
	struct timespec begin, end;
	uintptr_t longest = 0;
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET((uintptr_t)argument, &set);
	pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
	while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
		uintptr_t us;

		clock_gettime(CLOCK_MONOTONIC, &begin);
		nanosleep(&pause, NULL);
		clock_gettime(CLOCK_MONOTONIC, &end);
		us = (end.tv_sec - begin.tv_sec) * 1000000 + (end.tv_nsec - begin.tv_nsec) / 1000;
		if (us > longest)
			longest = us;
	}
	return (void *)longest;
}

static struct record sum(void)
{
	struct record all = {};

	for (unsigned int i = 0; i < count; i++) {
		volatile struct record *record = &shared->records[i];

		all.done += record->done;
		all.refused += record->refused;
		all.no_such_id += record->no_such_id;
		all.bad += record->bad;
		all.accesses += record->accesses;
		if (record->bad)
			all.answer = record->answer;
		if (record->longest > all.longest)
			all.longest = record->longest;
	}
	return all;
}

/* Returns whether all answers were valid. */
static bool storm(unsigned long calls, uint64_t seed)
{
	const struct timespec pause = { .tv_nsec = 10000000 };
	pthread_t sleepers[CPU_SETSIZE];
	unsigned int asleep = 0;
	struct record all;
	uintptr_t latest = 0;
	cpu_set_t allowed;
	void *us;
	int khz;

	make_vm(&vm, guest_code, guest_end, hypercalls);
	shared = (volatile struct shared *)(vm.memory + SHARED);
	fill_table(seed);
	for (unsigned int i = 0; i < count; i++) {
		struct kvm_regs regs = {
			.rip = guest_address(guest_code, accesses(i) ? guest_access : guest_storm),
			.rflags = 2, .rbp = DEVICE, .r8 = SHARED, .r9 = i * MASKS / count,
			.r14 = TABLE,
			.r15 = SHARED + offsetof(struct shared, records) + i * sizeof(struct record),
		};

		make_vcpu(&vm, &vcpus[i], i, vm.cpuid);
		/* vCPU 1 is not in KVM's map of APIC IDs. */
		if (i != 1)
			switch_apic_on(&vcpus[i]);
		sure(ioctl(vcpus[i].fd, KVM_SET_REGS, &regs), "KVM_SET_REGS");
	}
	for (unsigned int i = 0; i < count; i++)
		if (pthread_create(&threads[i], NULL, run_vcpu, &vcpus[i]))
			fail("thread of vCPU %u", i);
	sure(sched_getaffinity(0, sizeof(allowed), &allowed), "this process's CPUs");
	for (uintptr_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &allowed) &&
		    pthread_create(&sleepers[asleep++], NULL, sleep_on, (void *)cpu))
			fail("a thread that sleeps");

	do {
		nanosleep(&pause, NULL);
		all = sum();
	} while (!all.bad && all.done + all.refused + all.no_such_id < calls);
	shared->stop = 1;
	__atomic_store_n(&over, true, __ATOMIC_RELAXED);
	for (unsigned int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	for (unsigned int i = 0; i < asleep; i++) {
		pthread_join(sleepers[i], &us);
		if ((uintptr_t)us > latest)
			latest = (uintptr_t)us;
	}

	all = sum();
	khz = sure(ioctl(vcpus[0].fd, KVM_GET_TSC_KHZ), "KVM_GET_TSC_KHZ");
	printf("hostile: %u vCPUs on %u CPUs made %llu hypercalls: %llu done, %llu refused, %llu for IDs that cannot be, %llu with a wrong answer; the longest took %.1f ms; %lu pCPUs were sent an IPI; %llu accesses were emulated meanwhile; the latest of those that slept for 1 ms came back after %.1f ms\n",
	       count, asleep,
	       (unsigned long long)(all.done + all.refused + all.no_such_id + all.bad),
	       (unsigned long long)all.done, (unsigned long long)all.refused,
	       (unsigned long long)all.no_such_id, (unsigned long long)all.bad,
	       (double)all.longest / khz, figure("tlb_flush_ipis"),
	       (unsigned long long)all.accesses, latest / 1e3);
	if (all.bad)
		printf("hostile: the last wrong answer: %lld\n", (long long)all.answer);
	return !all.bad;
}

int main(int argc, char **argv)
{
	unsigned long calls = 200000, seed = 1;

	if (argc > 1)
		calls = number(argv[1], "CALLS", 1, 1000000000);
	if (argc > 2)
		count = number(argv[2], "VCPUS", 2, MAX_VCPUS);
	if (argc > 3)
		seed = number(argv[3], "SEED", 0, ~0ul);

	rules_of_the_gate();
	rules_of_flushes();
	printf("hostile: %u rules broken\n", broken);
	if (!storm(calls, seed | 1ull << 32))
		broken++;
	return broken ? 1 : 0;
}
