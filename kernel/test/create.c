// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT
/*
 * Failing vCPU creations, concurrent with flushes of the same VM.
 *
 *	gcc -O2 -static -pthread -o create kernel/test/create.c
 *	./create [CREATIONS [CREATORS [VCPUS [SECONDS]]]]	default: 100000, 3, 4, no limit
 *
 * KVM_CREATE_VCPU makes and loads a vCPU before it finds that its ID is taken, and then
 * frees it. Meanwhile KVM_HC_FLUSH_TLB reads the list of loaded vCPUs. CREATORS threads
 * request existing IDs; all VCPUS of a VM without an operating system call the hypercall
 * in a loop, with a mask that makes the host flush the whole VM. A few vCPUs with new IDs
 * are also made and run, so that the list of loaded vCPUs grows. One vCPU never touches
 * its APIC.
 *
 * KASAN and KCSAN report errors, so run it by `kernel/test/run qemu debug` (or race), with
 * kvm.pv_flush_hypercall=1. Prints a summary, and exits 0 if each creation failed with
 * EEXIST and no hypercall failed, 1 if not, 3 if the host has no such hypercall. After
 * SECONDS it ends early.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <time.h>

#include "vm.h"

const char *const program = "create";

#define MAX_VCPUS 64
#define LATE_VCPUS 4	/* made while other creations fail */

/* At SHARED; the guest code below knows these offsets. */
struct shared {
	uint64_t stop;		/* 0x00 */
	uint64_t low;		/* 0x08: the vCPUs to flush, in the hypercall's format */
	uint64_t high;		/* 0x10 */
	uint64_t unused[5];
	struct record {
		uint64_t flushes;	/* 0x00 */
		uint64_t refused;	/* 0x08: not completed by the host */
		uint64_t failed;	/* 0x10: answers below 0 */
		uint64_t answer;	/* 0x18: the last of these */
		uint64_t unused[4];
	} records[MAX_VCPUS + LATE_VCPUS];
};

/* In: r8 SHARED, r15 the vCPU's record. */
asm(".pushsection .rodata\n"
    ".global guest_code, guest_hypercall, guest_end\n"
    "guest_code:\n"
    "1:	mov $64, %eax\n"
    "	mov 0x08(%r8), %rbx\n"
    "	mov 0x10(%r8), %rcx\n"
    "	xor %edx, %edx\n"
    "	xor %esi, %esi\n"
    "guest_hypercall:\n"
    "	vmcall\n"
    "	test %rax, %rax\n"
    "	jz 2f\n"
    "	js 3f\n"
    "	incq 0x08(%r15)\n"
    "2:	incq (%r15)\n"
    "	jmp 4f\n"
    "3:	incq 0x10(%r15)\n"
    "	mov %rax, 0x18(%r15)\n"
    "4:	cmpq $0, (%r8)\n"
    "	je 1b\n"
    "5:	out %al, $0xf4\n"
    "	jmp 5b\n"
    "guest_end:\n"
    ".popsection\n");

extern const char guest_code[], guest_hypercall[], guest_end[];

static struct vm vm;
static struct vcpu vcpus[MAX_VCPUS + LATE_VCPUS];
static pthread_t threads[MAX_VCPUS + LATE_VCPUS];
static volatile struct shared *shared;
static unsigned long creations = 100000;
static unsigned int first_vcpus = 4;
static unsigned long refused, wrong;	/* creations, atomically */
static bool over;			/* atomically */

static void *run_vcpu(void *argument)
{
	struct vcpu *vcpu = argument;

	for (;;) {
		if (ioctl(vcpu->fd, KVM_RUN, 0) < 0) {
			if (errno == EINTR)
				continue;
			fail("running vCPU %td", vcpu - vcpus);
		}
		if (vcpu->run->exit_reason == KVM_EXIT_IO && vcpu->run->io.port == 0xf4)
			return NULL;
		fprintf(stderr, "create: vCPU %td: exit %u\n", vcpu - vcpus,
			vcpu->run->exit_reason);
		exit(2);
	}
}

static void start_vcpu(unsigned int i, bool apic)
{
	struct kvm_regs regs = {
		.rip = CODE, .rflags = 2, .r8 = SHARED,
		.r15 = SHARED + offsetof(struct shared, records) +
		       i * sizeof(struct record),
	};

	make_vcpu(&vm, &vcpus[i], i, vm.cpuid);
	if (apic)
		switch_apic_on(&vcpus[i]);
	sure(ioctl(vcpus[i].fd, KVM_SET_REGS, &regs), "KVM_SET_REGS");
	if (pthread_create(&threads[i], NULL, run_vcpu, &vcpus[i]))
		fail("thread of vCPU %u", i);
}

static void *create(void *argument)
{
	uint64_t state = (uintptr_t)argument | 1ull << 32;

	while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
		unsigned int id = next_random(&state) % first_vcpus;
		int fd = ioctl(vm.fd, KVM_CREATE_VCPU, id);

		if (fd < 0 && errno == EEXIST) {
			if (__atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED) >= creations)
				__atomic_store_n(&over, true, __ATOMIC_RELAXED);
			continue;
		}
		fprintf(stderr, "create: vCPU %u was made a second time, or not for another reason: %d, %s\n",
			id, fd, fd < 0 ? strerror(errno) : "");
		__atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
		return NULL;
	}
	return NULL;
}

static double seconds_since(const struct timespec *begin)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec - begin->tv_sec + (now.tv_nsec - begin->tv_nsec) / 1e9;
}

int main(int argc, char **argv)
{
	static const char *const hypercalls[] = { guest_hypercall, NULL };
	const struct timespec pause = { .tv_nsec = 10000000 };
	unsigned long seconds = 0, flushes = 0, not_all = 0, failed = 0;
	unsigned int creators = 3, count;
	struct timespec begin;
	pthread_t creator[64];
	int64_t answer = 0;

	if (argc > 1)
		creations = number(argv[1], "CREATIONS", 1, 1000000000);
	if (argc > 2)
		creators = number(argv[2], "CREATORS", 1, 64);
	if (argc > 3)
		first_vcpus = number(argv[3], "VCPUS", 2, MAX_VCPUS);
	if (argc > 4)
		seconds = number(argv[4], "SECONDS", 1, 86400);

	make_vm(&vm, guest_code, guest_end, hypercalls);
	shared = (volatile struct shared *)(vm.memory + SHARED);
	shared->low = ~0ull;
	shared->high = ~0ull;
	/* The last APIC stays off. KVM also patches its code when the last such vCPU is freed. */
	for (unsigned int i = 0; i < first_vcpus; i++)
		start_vcpu(i, i + 1 < first_vcpus);
	count = first_vcpus;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (unsigned int i = 0; i < creators; i++)
		if (pthread_create(&creator[i], NULL, create, (void *)(uintptr_t)(i + 1)))
			fail("thread of creator %u", i);
	while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
		unsigned int late = count - first_vcpus;

		nanosleep(&pause, NULL);
		if (late < LATE_VCPUS && __atomic_load_n(&refused, __ATOMIC_RELAXED) * (LATE_VCPUS + 1) >=
					 creations * (late + 1))
			start_vcpu(count++, true);
		if ((seconds && seconds_since(&begin) >= seconds) ||
		    __atomic_load_n(&wrong, __ATOMIC_RELAXED))
			__atomic_store_n(&over, true, __ATOMIC_RELAXED);
	}
	for (unsigned int i = 0; i < creators; i++)
		pthread_join(creator[i], NULL);
	shared->stop = 1;
	for (unsigned int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);

	for (unsigned int i = 0; i < count; i++) {
		flushes += shared->records[i].flushes;
		not_all += shared->records[i].refused;
		failed += shared->records[i].failed;
		if (shared->records[i].failed)
			answer = shared->records[i].answer;
	}
	printf("create: %lu vCPUs could not be made as their ID was taken, by %u threads in %.0f s; meanwhile %u vCPUs made %lu flushes (%lu of them told to send IPIs), of which %u were made late; %lu creations and %lu flushes went wrong\n",
	       refused, creators, seconds_since(&begin), count, flushes, not_all,
	       count - first_vcpus, wrong, failed);
	if (failed)
		printf("create: the hypercall failed, the last time with %lld\n", (long long)answer);
	if (!flushes)
		printf("create: there was no flush to go with\n");
	return wrong || failed || !flushes;
}
