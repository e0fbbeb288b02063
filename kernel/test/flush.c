// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT
/*
 * Does KVM_HC_FLUSH_TLB flush all its targets?
 *
 *	gcc -O2 -static -pthread -o flush kernel/test/flush.c
 *	./flush [VCPUS [FLUSHES [SEED [HOW [quiet]]]]]	default: 8, 100000, 1, hypercall
 *
 * HOW `hypercall` is the subject. The others test this program and the machine, and are
 * the baseline. With `ipi` the writer sends every other vCPU an interrupt, whose handler
 * invalidates the page, and waits for all of them, as kernels do on hardware: stale
 * accesses are then unrelated to the hypercall. With `pv` it does the same, except for
 * vCPUs whose steal time shows that they are preempted: it requests a flush before they
 * run again (KVM_FEATURE_PV_TLB_FLUSH). With `none` there is no flush: the test should
 * then fail, or else it cannot detect stale translations.
 *
 * With `quiet` the others only read and no vCPU is moved, to measure the duration of a
 * flush by the writer's TSC. The duration is always printed (median and 90th percentile).
 *
 * A VM without an operating system, on the patched kernel with
 * kvm.pv_flush_hypercall=1. vCPU 0 maps a page to another frame, flushes the
 * others' TLBs by hypercall, publishes the number of the round, and then poisons
 * the previous frame. The other vCPUs read the round and then the page: a number
 * below the round, or poison, came through a stale translation. Some of them also
 * have KVM emulate an instruction that writes to the page (from MMIO, so that KVM
 * exits to this program in between): poison that has changed when its frame is used
 * again was written through a stale translation. Meanwhile this program moves the
 * vCPUs' threads between CPUs and wakes halted vCPUs, at random with a seed. With
 * more vCPUs than CPUs, vCPUs are also preempted.
 *
 * Prints a summary and exits 0 if no access was stale, 1 if one was, 3 if the host
 * has no such hypercall. Not tested: nested guests, shadow paging, the guest side in
 * Linux.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define MAX_VCPUS 128
#define MEMORY (4u << 20)
#define TIMED 0x10000	/* The guest code knows this number, and CYCLES. */

/* Guest physical addresses, which are mapped to themselves below MEMORY. */
enum {
	CODE = 0x1000,
	SHARED = 0x5000,
	IDT = 0x6000,
	GDT = 0x5800,
	PML4 = 0x7000,
	PDPT = 0x8000,
	PD_LOW = 0x9000,
	PD_HIGH = 0xa000,
	PT_HIGH = 0xb000,
	RECORDS = 0xc000,	/* a struct record for each vCPU */
	STEALS = 0xe000,	/* a struct kvm_steal_time for each vCPU */
	FRAMES = 0x10000,	/* two of them */
	STACKS = 0x100000,	/* a page for each vCPU */
	CYCLES = 0x200000,	/* the durations of the last flushes */
	NOTHING = 0x10000000,	/* no memory: an access is emulated */
};

/* The page that is remapped, and one that leads to NOTHING. */
#define PAGE 0x40000000ul
#define DEVICE 0x40001000ul

/* At SHARED. The guest code below knows these offsets. */
struct shared {
	uint64_t published;	/* 0x00 */
	uint64_t low;		/* 0x08: the vCPUs to flush, in the hypercall's format */
	uint64_t high;		/* 0x10 */
	uint64_t limit;		/* 0x18 */
	uint64_t stale_reads;	/* 0x20 */
	uint64_t stale_writes;	/* 0x28 */
	uint64_t retries;	/* 0x30: flushes that the host could not do at once */
	uint64_t error;		/* 0x38 */
	uint64_t stop;		/* 0x40 */
	uint64_t reads;		/* 0x48 */
	uint64_t asked;		/* 0x50: `ipi`: the round whose flush is requested */
	uint64_t none;		/* 0x58: no flush at all */
	uint64_t last;		/* 0x60: the last vCPU's number, for `ipi`; or 0 */
	uint64_t unused_id;	/* 0x68: a number that no vCPU has; or 0 */
	uint64_t answer;	/* 0x70: and the host's answer to its flush */
	uint64_t pv;		/* 0x78: `pv` */
};

/* Of each reader; the guest code knows these offsets. */
struct record {
	uint64_t flushed;	/* 0x00: `ipi`: the last round with a flush */
	uint64_t stale;		/* 0x08: stale reads */
	uint64_t round;		/* 0x10: the round of the last one */
	uint64_t seen;		/* 0x18: and the value read */
	uint64_t still;		/* 0x20: those still stale when read again */
	uint64_t unused[3];
};

/* The periodic action of a reader; the guest code knows these numbers. */
enum habit { READ, CPUID, USERSPACE, EMULATED, HALT, HABITS };

static const char *const habit_names[HABITS] = {
	"only reads", "exits to KVM", "exits to userspace",
	"has instructions emulated", "halts",
};

/*
 * In: r8 SHARED, rbx RECORDS, r12 the page table entry, r13 FRAMES, r14 PAGE. The
 * hypercalls are patched for the processor. r9 counts rounds, r15 is the frame, r10
 * when the flush began.
 */
asm(".pushsection .rodata\n"
    ".global guest_code, guest_writer, guest_reader, guest_nmi, guest_ipi, guest_fault\n"
    ".global guest_hypercall, guest_hypercall_unused_id, guest_end\n"
    "guest_code:\n"
    "guest_writer:\n"
    "	xor %r9d, %r9d\n"
    "guest_round:\n"
    "	inc %r9\n"
    "	mov %r9, %r15\n"
    "	and $1, %r15\n"
    "	shl $12, %r15\n"
    "	add %r13, %r15\n"
    /* Is the poison unchanged? */
    "	mov $0x7e7e7e7e7e7e7e7e, %rax\n"
    "	cmp %rax, 64(%r15)\n"
    "	je 2f\n"
    "	incq 0x28(%r8)\n"
    "2:	mov %r9, (%r15)\n"
    "	movq $0, 64(%r15)\n"
    /* Accessed and dirty already, so no CPU writes to the entry. */
    "	lea 0x63(%r15), %rax\n"
    "	mov %rax, (%r12)\n"
    "	invlpg (%r14)\n"
    "	rdtsc\n"
    "	shl $32, %rdx\n"
    "	lea (%rax,%rdx), %r10\n"
    "	cmpq $0, 0x60(%r8)\n"
    "	jne 7f\n"
    "	cmpq $0, 0x58(%r8)\n"
    "	jne 4f\n"
    "3:	mov $64, %eax\n"
    "	mov 0x08(%r8), %rbx\n"
    "	mov 0x10(%r8), %rcx\n"
    "	xor %edx, %edx\n"
    "	xor %esi, %esi\n"
    "guest_hypercall:\n"
    "	vmcall\n"
    "	test %rax, %rax\n"
    "	jz 4f\n"
    "	js 6f\n"
    "	incq 0x30(%r8)\n"
    "	jmp 3b\n"
    "4:	rdtsc\n"
    "	shl $32, %rdx\n"
    "	add %rdx, %rax\n"
    "	sub %r10, %rax\n"
    "	mov %r9, %rdx\n"
    "	and $0xffff, %edx\n"
    "	mov %rax, 0x200000(,%rdx,8)\n"
    "	mov %r9, (%r8)\n"
    "	xor $0x1000, %r15\n"
    "	movq $0, (%r15)\n"
    "	mov $0x7e7e7e7e7e7e7e7e, %rax\n"
    "	mov %rax, 64(%r15)\n"
    "	cmp 0x18(%r8), %r9\n"
    "	jb guest_round\n"
    /* No vCPU has this number: the host must not report a flush. */
    "	cmpq $0, 0x68(%r8)\n"
    "	je 5f\n"
    "	mov $64, %eax\n"
    "	mov $1, %ebx\n"
    "	xor %ecx, %ecx\n"
    "	mov 0x68(%r8), %rdx\n"
    "	xor %esi, %esi\n"
    "guest_hypercall_unused_id:\n"
    "	vmcall\n"
    "	mov %rax, 0x70(%r8)\n"
    "5:	movq $1, 0x40(%r8)\n"
    "	out %al, $0xf4\n"
    "	jmp 5b\n"
    "6:	mov %rax, 0x38(%r8)\n"
    "	jmp 5b\n"
    /* Sends each an interrupt, by the x2APIC's command register: fixed, vector 0x40. */
    "7:	mov %r9, 0x50(%r8)\n"
    "	mfence\n"
    "	mov 0x60(%r8), %rdx\n"
    "	mov $0x830, %ecx\n"
    "1:	cmpq $0, 0x78(%r8)\n"
    "	je 2f\n"
    /* If it is preempted, requests a flush before it runs again. */
    "	mov %rdx, %r11\n"
    "	shl $6, %r11\n"
    "	movzbl 0x2010(%rbx,%r11), %eax\n"
    "	test $1, %al\n"
    "	jz 2f\n"
    "	mov %eax, %esi\n"
    "	or $2, %esi\n"
    "	lock cmpxchg %sil, 0x2010(%rbx,%r11)\n"
    "	jne 2f\n"
    "	mov %r9, (%rbx,%r11)\n"
    "	jmp 3f\n"
    "2:	mov $0x4040, %eax\n"
    "	wrmsr\n"
    "3:	dec %edx\n"
    "	jnz 1b\n"
    /* Waits for all of them. */
    "	mov 0x60(%r8), %rdx\n"
    "1:	mov %rdx, %rax\n"
    "	shl $6, %rax\n"
    "2:	pause\n"
    "	cmp %r9, (%rbx,%rax)\n"
    "	jb 2b\n"
    "	dec %rdx\n"
    "	jnz 1b\n"
    "	jmp 4b\n"
    /* r10 habit, r11 reads until it shows, rbp DEVICE, r15 the vCPU's record */
    "guest_reader:\n"
    "	xor %r9d, %r9d\n"
    "1:	mov (%r8), %rax\n"
    "	mov (%r14), %rdx\n"
    "	cmp %rax, %rdx\n"
    "	jae 2f\n"
    "	lock incq 0x20(%r8)\n"
    "	incq 0x08(%r15)\n"
    "	mov %rax, 0x10(%r15)\n"
    "	mov %rdx, 0x18(%r15)\n"
    "	cmp %rax, (%r14)\n"
    "	jae 2f\n"
    "	incq 0x20(%r15)\n"
    "2:	inc %r9\n"
    "	cmpq $0, 0x40(%r8)\n"
    "	jne 9f\n"
    "	mov %r9, %rax\n"
    "	and %r11, %rax\n"
    "	jnz 1b\n"
    "	cmp $1, %r10\n"
    "	je 3f\n"
    "	cmp $2, %r10\n"
    "	je 4f\n"
    "	cmp $3, %r10\n"
    "	je 5f\n"
    "	cmp $4, %r10\n"
    "	je 6f\n"
    "	pause\n"
    "	jmp 1b\n"
    "3:	xor %eax, %eax\n"
    "	cpuid\n"
    "	jmp 1b\n"
    "4:	out %al, $0xf5\n"
    "	jmp 1b\n"
    "5:	mov %rbp, %rsi\n"
    "	lea 64(%r14), %rdi\n"
    "	movsb\n"
    "	jmp 1b\n"
    "6:	hlt\n"
    "	jmp 1b\n"
    "9:	lock add %r9, 0x48(%r8)\n"
    "8:	out %al, $0xf4\n"
    "	jmp 8b\n"
    /* An unexpected exception or interrupt: the program prints the vCPU's state. */
    "guest_fault:\n"
    "	out %al, $0xf6\n"
    "	jmp guest_fault\n"
    /* Wakes a halted reader. */
    "guest_nmi:\n"
    "	iretq\n"
    /* Flushes a reader's TLB, and ends the interrupt at its x2APIC. */
    "guest_ipi:\n"
    "	push %rax\n"
    "	push %rcx\n"
    "	push %rdx\n"
    "	mov 0x50(%r8), %rax\n"
    "	invlpg (%r14)\n"
    "	mov %rax, (%r15)\n"
    "	mov $0x80b, %ecx\n"
    "	xor %eax, %eax\n"
    "	xor %edx, %edx\n"
    "	wrmsr\n"
    "	pop %rdx\n"
    "	pop %rcx\n"
    "	pop %rax\n"
    "	iretq\n"
    "guest_end:\n"
    ".popsection\n");

extern const char guest_code[], guest_writer[], guest_reader[], guest_nmi[];
extern const char guest_ipi[], guest_fault[];
extern const char guest_hypercall[], guest_hypercall_unused_id[], guest_end[];

enum how { HYPERCALL, IPI, PV, NONE };

static const char *const how_names[] = { "hypercall", "ipi", "pv", "none" };
static enum how how;
static bool quiet;
static uint8_t *memory;
static volatile struct shared *shared;
static unsigned int vcpus = 8;
static pthread_t threads[MAX_VCPUS];
static unsigned int joined;	/* number of joined threads, the first ones */
static int fds[MAX_VCPUS];
static struct kvm_run *runs[MAX_VCPUS];
static uint64_t random_state;

static void fail(const char *what, ...)
{
	va_list list;

	va_start(list, what);
	fprintf(stderr, "flush: ");
	vfprintf(stderr, what, list);
	fprintf(stderr, ": %s\n", strerror(errno));
	va_end(list);
	exit(2);
}

/* xorshift64* */
static uint32_t next_random(void)
{
	random_state ^= random_state >> 12;
	random_state ^= random_state << 25;
	random_state ^= random_state >> 27;
	return (random_state * 0x2545f4914f6cdd1dull) >> 32;
}

static int sure(int result, const char *what)
{
	if (result < 0)
		fail("%s", what);
	return result;
}

static void write64(uint64_t at, uint64_t value)
{
	memcpy(memory + at, &value, sizeof(value));
}

/* 64-bit interrupt gate, selector 8. */
static void set_gate(unsigned int vector, const char *code)
{
	uint64_t handler = CODE + (code - guest_code);

	write64(IDT + vector * 16, (handler & 0xffff) | 8 << 16 | 0x8e00ull << 32 |
		(handler >> 16 & 0xffff) << 48);
	write64(IDT + vector * 16 + 8, handler >> 32);
}

static void fill_memory(uint64_t flushes)
{
	bool amd = false;
	FILE *cpuinfo = fopen("/proc/cpuinfo", "r");
	char line[256];
	unsigned int i;

	while (cpuinfo && fgets(line, sizeof(line), cpuinfo))
		amd |= !strncmp(line, "vendor_id", 9) && strstr(line, "AMD");
	if (cpuinfo)
		fclose(cpuinfo);

	memcpy(memory + CODE, guest_code, guest_end - guest_code);
	if (amd) {	/* vmmcall */
		memcpy(memory + CODE + (guest_hypercall - guest_code),
		       "\x0f\x01\xd9", 3);
		memcpy(memory + CODE + (guest_hypercall_unused_id - guest_code),
		       "\x0f\x01\xd9", 3);
	}

	write64(PML4, PDPT | 3);
	write64(PDPT, PD_LOW | 3);
	write64(PDPT + 8, PD_HIGH | 3);
	for (i = 0; i < MEMORY >> 21; i++)
		write64(PD_LOW + 8 * i, (uint64_t)i << 21 | 0x83);
	write64(PD_HIGH, PT_HIGH | 3);
	write64(PT_HIGH, FRAMES | 0x63);
	write64(PT_HIGH + 8, NOTHING | 3);
	for (i = 0; i < 2; i++)
		write64(FRAMES + 0x1000 * i + 64, 0x7e7e7e7e7e7e7e7e);

	for (i = 0; i < 256; i++)
		set_gate(i, guest_fault);
	set_gate(2, guest_nmi);
	set_gate(0x40, guest_ipi);
	/* Code and data segments, for iretq. */
	write64(GDT + 8, 0x00af9b000000ffffull);
	write64(GDT + 16, 0x00cf93000000ffffull);

	shared = (volatile struct shared *)(memory + SHARED);
	shared->limit = flushes;
	shared->none = how == NONE;
	shared->last = how == IPI || how == PV ? vcpus - 1 : 0;
	shared->pv = how == PV;
	shared->unused_id = how == HYPERCALL ? vcpus : 0;
	for (i = 1; i < vcpus; i++) {
		if (i < 64)
			shared->low |= 1ull << i;
		else
			shared->high |= 1ull << (i - 64);
	}
}

static enum habit habit(unsigned int vcpu)
{
	return quiet ? READ : vcpu % HABITS;
}

static void make_vcpu(int kvm, int vm, unsigned int i, struct kvm_cpuid2 *cpuid)
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
	struct {
		struct kvm_msrs head;
		struct kvm_msr_entry entry;
	} steal = {
		.head.nmsrs = 1,
		.entry.index = 0x4b564d03,	/* MSR_KVM_STEAL_TIME */
		.entry.data = (STEALS + 64 * i) | 1,
	};
	struct kvm_regs regs = {};
	struct kvm_sregs sregs;
	size_t size;

	fds[i] = sure(ioctl(vm, KVM_CREATE_VCPU, i), "KVM_CREATE_VCPU");
	size = sure(ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0), "mmap size");
	runs[i] = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], 0);
	if (runs[i] == MAP_FAILED)
		fail("mapping vCPU %u", i);
	sure(ioctl(fds[i], KVM_SET_CPUID2, cpuid), "KVM_SET_CPUID2");

	sure(ioctl(fds[i], KVM_GET_SREGS, &sregs), "KVM_GET_SREGS");
	sregs.cs = code;
	sregs.ds = sregs.es = sregs.ss = data;
	sregs.gdt.base = GDT;
	sregs.gdt.limit = 23;
	sregs.idt.base = IDT;
	sregs.idt.limit = 0xfff;
	sregs.cr3 = PML4;
	sregs.cr4 = 1 << 5;
	sregs.cr0 = 0x80000011;
	sregs.efer = 0x500;
	if (how == IPI || how == PV)	/* an x2APIC */
		sregs.apic_base |= 0xc00;
	sure(ioctl(fds[i], KVM_SET_SREGS, &sregs), "KVM_SET_SREGS");
	if (how == PV && ioctl(fds[i], KVM_SET_MSRS, &steal) != 1)
		fail("KVM's steal time");

	regs.rip = CODE + ((i ? guest_reader : guest_writer) - guest_code);
	/* No interrupts come, but Bochs makes a guest that disables them exit for none. */
	regs.rflags = 0x202;
	regs.rsp = STACKS + 0x1000 * (i + 1);
	regs.r8 = SHARED;
	regs.rbx = RECORDS;
	regs.r15 = RECORDS + sizeof(struct record) * i;
	regs.r10 = habit(i);
	/* Emulation is slow, and a halt lasts until the next NMI. */
	regs.r11 = habit(i) == HALT ? 0xfff : 0xff;
	regs.r12 = PT_HIGH;
	regs.r13 = FRAMES;
	regs.r14 = PAGE;
	regs.rbp = DEVICE;
	sure(ioctl(fds[i], KVM_SET_REGS, &regs), "KVM_SET_REGS");
	sure(ioctl(fds[i], KVM_SET_MP_STATE, &runnable), "KVM_SET_MP_STATE");
}

/*
 * KVM finds vCPUs by APIC ID in a map that it makes when an APIC is touched, as
 * every system does when it starts its CPUs. vCPUs that are made later are not in
 * it, and the guest code above does not touch APICs. This switches them on.
 */
static void touch_apic(unsigned int i)
{
	struct kvm_lapic_state state;

	sure(ioctl(fds[i], KVM_GET_LAPIC, &state), "KVM_GET_LAPIC");
	/* The spurious interrupt's vector, and the enable bit. */
	state.regs[0xf0] = 0xff;
	state.regs[0xf1] = 1;
	sure(ioctl(fds[i], KVM_SET_LAPIC, &state), "KVM_SET_LAPIC");
}

/* Prints the registers and the stack of a vCPU after an unexpected event. */
static void show_vcpu(unsigned int i)
{
	struct kvm_sregs sregs;
	struct kvm_regs regs;

	if (ioctl(fds[i], KVM_GET_REGS, &regs) || ioctl(fds[i], KVM_GET_SREGS, &sregs))
		return;
	fprintf(stderr, "flush: vCPU %u, which %s: rip %llx rsp %llx rflags %llx cr0 %llx cr2 %llx cr3 %llx efer %llx\n",
		i, i ? habit_names[habit(i)] : "writes", regs.rip, regs.rsp,
		regs.rflags, sregs.cr0, sregs.cr2, sregs.cr3, sregs.efer);
	for (uint64_t at = regs.rsp; at < STACKS + 0x1000 * (i + 1) && at >= STACKS; at += 8)
		fprintf(stderr, "flush: on its stack: %llx\n",
			*(unsigned long long *)(memory + at));
}

static void *run_vcpu(void *argument)
{
	unsigned int i = (uintptr_t)argument;
	struct kvm_run *run = runs[i];

	/* Flushes must not wait for the readers' slices. */
	if (i == 0 && !quiet)
		setpriority(PRIO_PROCESS, 0, -5);
	for (;;) {
		if (ioctl(fds[i], KVM_RUN, 0) < 0) {
			if (errno == EINTR)
				continue;
			fail("running vCPU %u", i);
		}
		switch (run->exit_reason) {
		case KVM_EXIT_IO:
			if (run->io.port == 0xf4)
				return NULL;
			if (run->io.port == 0xf6) {
				fprintf(stderr, "flush: vCPU %u: an unexpected exception or interrupt\n", i);
				show_vcpu(i);
				exit(2);
			}
			break;
		case KVM_EXIT_MMIO:
			memset(run->mmio.data, 0x11, sizeof(run->mmio.data));
			break;
		default:
			fprintf(stderr, "flush: vCPU %u: exit %u\n", i,
				run->exit_reason);
			show_vcpu(i);
			exit(2);
		}
	}
}

/* By the VM's descriptor: a vCPU's own is busy as long as it runs. */
static void send_nmi(int vm, unsigned int vcpu)
{
	struct kvm_msi nmi = { .address_lo = 0xfee00000 | vcpu << 12, .data = 0x400 };

	sure(ioctl(vm, KVM_SIGNAL_MSI, &nmi), "KVM_SIGNAL_MSI");
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Returns a percentile of the flushes' durations, in microseconds. */
static double flush_time(unsigned int percent)
{
	uint64_t *cycles = (uint64_t *)(memory + CYCLES);
	uint64_t count = shared->published;
	int khz = sure(ioctl(fds[0], KVM_GET_TSC_KHZ), "KVM_GET_TSC_KHZ");

	/* The first flush is at 1, and TIMED at 0. */
	if (count >= TIMED)
		count = TIMED - 1;
	qsort(cycles + 1, count, sizeof(*cycles), compare);
	return count ? 1e3 * cycles[1 + count * percent / 100] / khz : 0;
}

/* Moves a thread to one of the allowed CPUs, or lets it run on all; wakes halted vCPUs. */
static void disturb(int vm, const cpu_set_t *allowed)
{
	unsigned int i = joined + next_random() % (vcpus - joined);
	cpu_set_t set = *allowed;

	if (quiet)
		return;
	if (next_random() % 4) {
		unsigned int skip = next_random() % CPU_COUNT(allowed), cpu = 0;

		while (!CPU_ISSET(cpu, allowed) || skip--)
			cpu++;
		CPU_ZERO(&set);
		CPU_SET(cpu, &set);
	}
	pthread_setaffinity_np(threads[i], sizeof(set), &set);
	for (i = HALT; i < vcpus; i += HABITS)
		if (next_random() % 2 || shared->stop)
			send_nmi(vm, i);
}

int main(int argc, char **argv)
{
	const struct timespec pause = { .tv_nsec = 500000 };
	struct kvm_userspace_memory_region region = { .memory_size = MEMORY };
	uint64_t flushes = 100000;
	cpu_set_t allowed;
	struct kvm_cpuid2 *cpuid;
	bool offered = false;
	int kvm, vm;

	if (argc > 1)
		vcpus = atoi(argv[1]);
	if (argc > 2)
		flushes = strtoull(argv[2], NULL, 0);
	random_state = argc > 3 ? strtoull(argv[3], NULL, 0) | 1ull << 32 : 1ull << 32;
	while (argc > 4 && how <= NONE && strcmp(argv[4], how_names[how]))
		how++;
	quiet = argc > 5 && !strcmp(argv[5], "quiet");
	if (vcpus < 2 || vcpus > MAX_VCPUS || !flushes || how > NONE) {
		fprintf(stderr, "usage: %s [VCPUS [FLUSHES [SEED [hypercall | ipi | pv | none [quiet]]]]], 2 to %u vCPUs\n",
			argv[0], MAX_VCPUS);
		return 2;
	}

	sure(sched_getaffinity(0, sizeof(allowed), &allowed), "this process's CPUs");
	kvm = sure(open("/dev/kvm", O_RDWR | O_CLOEXEC), "/dev/kvm");
	cpuid = calloc(1, sizeof(*cpuid) + 256 * sizeof(cpuid->entries[0]));
	if (!cpuid)
		fail("memory");
	cpuid->nent = 256;
	sure(ioctl(kvm, KVM_GET_SUPPORTED_CPUID, cpuid), "KVM_GET_SUPPORTED_CPUID");
	for (unsigned int i = 0; i < cpuid->nent; i++)
		if (cpuid->entries[i].function == 0x40000001)
			offered = cpuid->entries[i].eax >> 23 & 1;
	if (how == HYPERCALL && !offered) {
		printf("flush: no KVM_FEATURE_HC_FLUSH_TLB: is it the patched kernel, with kvm.pv_flush_hypercall=1?\n");
		return 3;
	}

	vm = sure(ioctl(kvm, KVM_CREATE_VM, 0), "KVM_CREATE_VM");
	ioctl(vm, KVM_SET_TSS_ADDR, 0xfffbd000);
	sure(ioctl(vm, KVM_CREATE_IRQCHIP, 0), "KVM_CREATE_IRQCHIP");
	memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		fail("guest memory");
	region.userspace_addr = (uintptr_t)memory;
	sure(ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region), "guest memory");
	fill_memory(flushes);

	for (unsigned int i = 0; i < vcpus; i++)
		make_vcpu(kvm, vm, i, cpuid);
	for (unsigned int i = 0; i < vcpus; i++)
		touch_apic(i);
	for (unsigned int i = 0; i < vcpus; i++)
		if (pthread_create(&threads[i], NULL, run_vcpu, (void *)(uintptr_t)i))
			fail("thread %u", i);
	while (!shared->stop) {
		disturb(vm, &allowed);
		nanosleep(&pause, NULL);
	}
	for (; joined < vcpus; joined++)
		while (pthread_tryjoin_np(threads[joined], NULL)) {
			disturb(vm, &allowed);
			nanosleep(&pause, NULL);
		}

	printf("flush: %s: %u vCPUs on %d CPUs: %llu flushes, median %.1f us, 90 %% %.1f us, %llu reads, %llu tried again, %llu stale reads, %llu stale writes\n",
	       how_names[how], vcpus, CPU_COUNT(&allowed),
	       (unsigned long long)shared->published,
	       flush_time(50), flush_time(90),
	       (unsigned long long)shared->reads,
	       (unsigned long long)shared->retries,
	       (unsigned long long)shared->stale_reads,
	       (unsigned long long)shared->stale_writes);
	for (unsigned int i = 1; i < vcpus; i++) {
		struct record *record = (struct record *)(memory + RECORDS) + i;

		if (record->stale)
			printf("flush: vCPU %u, which %s: %llu stale reads, of which %llu still were when repeated; the last %llu in round %llu\n",
			       i, habit_names[habit(i)],
			       (unsigned long long)record->stale,
			       (unsigned long long)record->still,
			       (unsigned long long)record->seen,
			       (unsigned long long)record->round);
	}
	if (shared->error) {
		printf("flush: the hypercall failed: %lld\n",
		       (long long)shared->error);
		return 3;
	}
	if (shared->unused_id && !shared->answer)
		printf("flush: the host says that it has flushed a vCPU that does not exist\n");
	return shared->stale_reads || shared->stale_writes ||
	       (shared->unused_id && !shared->answer) ||
	       shared->published != flushes;
}
