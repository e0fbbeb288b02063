/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * A VM without an operating system, for create.c and hostile.c: 4 MiB of identity-mapped
 * memory, one page without memory behind it, and vCPUs in long mode that run code of the
 * including file.
 *
 * The including file defines `program`, its name in messages.
 */
#ifndef TANDEM_TEST_VM_H
#define TANDEM_TEST_VM_H

#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define MEMORY (4u << 20)
#define HC_FLUSH_TLB 64
#define KVM_FEATURES 0x40000001
#define FEATURE_HC_FLUSH_TLB 23

/* Guest physical addresses. */
enum {
	CODE = 0x1000,
	PML4 = 0x7000,
	PDPT = 0x8000,
	PD_LOW = 0x9000,
	PD_HIGH = 0xa000,
	SHARED = 0x10000,	/* shared by the guest code and the program */
	NOTHING = 0x10000000,	/* no memory: an access goes to userspace */
};

/* The virtual address of NOTHING. */
#define DEVICE 0x40000000ul

extern const char *const program;

struct vcpu {
	int fd;
	struct kvm_run *run;
};

struct vm {
	int kvm, fd;
	uint8_t *memory;
	struct kvm_cpuid2 *cpuid;
};

static inline void fail(const char *what, ...)
{
	int error = errno;
	va_list list;

	va_start(list, what);
	fprintf(stderr, "%s: ", program);
	vfprintf(stderr, what, list);
	fprintf(stderr, ": %s\n", strerror(error));
	va_end(list);
	exit(2);
}

static inline int sure(int result, const char *what)
{
	if (result < 0)
		fail("%s", what);
	return result;
}

/* xorshift64* */
static inline uint64_t next_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dull;
}

/* Parses a number from the command line, which must lie between @low and @high. */
static inline unsigned long number(const char *text, const char *name,
				   unsigned long low, unsigned long high)
{
	char *end;
	unsigned long value = strtoul(text, &end, 0);

	if (!*text || *end || value < low || value > high) {
		fprintf(stderr, "%s: %s is `%s`: it must be a number from %lu to %lu\n",
			program, name, text, low, high);
		exit(2);
	}
	return value;
}

static inline bool is_amd(void)
{
	FILE *cpuinfo = fopen("/proc/cpuinfo", "r");
	char line[256];
	bool amd = false;

	while (cpuinfo && fgets(line, sizeof(line), cpuinfo))
		amd |= !strncmp(line, "vendor_id", 9) && strstr(line, "AMD");
	if (cpuinfo)
		fclose(cpuinfo);
	return amd;
}

/* Returns the entry of CPUID with KVM's features, or NULL. */
static inline struct kvm_cpuid_entry2 *kvm_features(struct kvm_cpuid2 *cpuid)
{
	for (unsigned int i = 0; i < cpuid->nent; i++)
		if (cpuid->entries[i].function == KVM_FEATURES)
			return &cpuid->entries[i];
	return NULL;
}

/* Returns the CPUID that KVM supports. Exits with 3 if it lacks the hypercall. */
static inline struct kvm_cpuid2 *supported_cpuid(int kvm)
{
	struct kvm_cpuid2 *cpuid;
	struct kvm_cpuid_entry2 *features;

	cpuid = calloc(1, sizeof(*cpuid) + 256 * sizeof(cpuid->entries[0]));
	if (!cpuid)
		fail("memory");
	cpuid->nent = 256;
	sure(ioctl(kvm, KVM_GET_SUPPORTED_CPUID, cpuid), "KVM_GET_SUPPORTED_CPUID");
	features = kvm_features(cpuid);
	if (!features || !(features->eax >> FEATURE_HC_FLUSH_TLB & 1)) {
		printf("%s: no KVM_FEATURE_HC_FLUSH_TLB: is it the patched kernel, with kvm.pv_flush_hypercall=1?\n",
		       program);
		exit(3);
	}
	return cpuid;
}

static inline void write64(struct vm *vm, uint64_t at, uint64_t value)
{
	memcpy(vm->memory + at, &value, sizeof(value));
}

/* Returns the guest address of an instruction of the guest's code. */
#define guest_address(code, label) (CODE + ((label) - (code)))

/*
 * Makes a VM with the code from @code to @end. Each of @hypercalls, a NULL-terminated
 * list, is a `vmcall`, which is patched to `vmmcall` on AMD.
 */
static inline void make_vm(struct vm *vm, const char *code, const char *end,
			   const char *const *hypercalls)
{
	struct kvm_userspace_memory_region region = { .memory_size = MEMORY };
	bool amd = is_amd();

	vm->kvm = sure(open("/dev/kvm", O_RDWR | O_CLOEXEC), "/dev/kvm");
	vm->cpuid = supported_cpuid(vm->kvm);
	vm->fd = sure(ioctl(vm->kvm, KVM_CREATE_VM, 0), "KVM_CREATE_VM");
	ioctl(vm->fd, KVM_SET_TSS_ADDR, 0xfffbd000);
	sure(ioctl(vm->fd, KVM_CREATE_IRQCHIP, 0), "KVM_CREATE_IRQCHIP");
	vm->memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (vm->memory == MAP_FAILED)
		fail("guest memory");
	region.userspace_addr = (uintptr_t)vm->memory;
	sure(ioctl(vm->fd, KVM_SET_USER_MEMORY_REGION, &region), "guest memory");

	memcpy(vm->memory + CODE, code, end - code);
	for (; amd && *hypercalls; hypercalls++)
		memcpy(vm->memory + guest_address(code, *hypercalls),
		       "\x0f\x01\xd9", 3);
	write64(vm, PML4, PDPT | 3);
	write64(vm, PDPT, PD_LOW | 3);
	write64(vm, PDPT + 8, PD_HIGH | 3);
	for (unsigned int i = 0; i < MEMORY >> 21; i++)
		write64(vm, PD_LOW + 8 * i, (uint64_t)i << 21 | 0x83);
	write64(vm, PD_HIGH, NOTHING | 0x83);
}

/* Makes a vCPU in long mode with paging; the caller sets the other registers. */
static inline void make_vcpu(struct vm *vm, struct vcpu *vcpu, unsigned int id,
			     struct kvm_cpuid2 *cpuid)
{
	struct kvm_mp_state runnable = { .mp_state = KVM_MP_STATE_RUNNABLE };
	struct kvm_segment code = {
		.limit = 0xffffffff, .selector = 8, .type = 11, .present = 1,
		.s = 1, .l = 1, .g = 1,
	};
	struct kvm_segment data = {
		.limit = 0xffffffff, .selector = 16, .type = 3, .present = 1,
		.s = 1, .db = 1, .g = 1,
	};
	struct kvm_sregs sregs;
	size_t size;

	vcpu->fd = sure(ioctl(vm->fd, KVM_CREATE_VCPU, id), "KVM_CREATE_VCPU");
	size = sure(ioctl(vm->kvm, KVM_GET_VCPU_MMAP_SIZE, 0), "mmap size");
	vcpu->run = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu->fd, 0);
	if (vcpu->run == MAP_FAILED)
		fail("mapping vCPU %u", id);
	sure(ioctl(vcpu->fd, KVM_SET_CPUID2, cpuid), "KVM_SET_CPUID2");

	sure(ioctl(vcpu->fd, KVM_GET_SREGS, &sregs), "KVM_GET_SREGS");
	sregs.cs = code;
	sregs.ds = sregs.es = sregs.ss = data;
	sregs.cr3 = PML4;
	sregs.cr4 = 1 << 5;
	sregs.cr0 = 0x80000011;
	sregs.efer = 0x500;
	sure(ioctl(vcpu->fd, KVM_SET_SREGS, &sregs), "KVM_SET_SREGS");
	sure(ioctl(vcpu->fd, KVM_SET_MP_STATE, &runnable), "KVM_SET_MP_STATE");
}

/* Switches the vCPU's APIC on, which adds it to KVM's map of APIC IDs. */
static inline void switch_apic_on(struct vcpu *vcpu)
{
	struct kvm_lapic_state state;

	sure(ioctl(vcpu->fd, KVM_GET_LAPIC, &state), "KVM_GET_LAPIC");
	/* The spurious interrupt's vector, and the enable bit. */
	state.regs[0xf0] = 0xff;
	state.regs[0xf1] = 1;
	sure(ioctl(vcpu->fd, KVM_SET_LAPIC, &state), "KVM_SET_LAPIC");
}

#endif
