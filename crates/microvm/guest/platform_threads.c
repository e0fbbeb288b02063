/*
 * The platform of a plain thread: futex for halt, a real-time signal for shootdowns, the futex's
 * timeout for the timer. Built into the host library only.
 *
 * Direct system calls keep this file freestanding like the guest's, and async-signal-safe.
 */
#include "platform.h"
#include "sync.h"
#include "workload.h"

#define SYS_FUTEX 202
#define SYS_TGKILL 234
#define FUTEX_WAIT_PRIVATE 128
#define FUTEX_WAKE_PRIVATE 129
#define MAX_SLEEP (3600ull * 1000 * 1000 * 1000)

struct timeout {
    int64_t seconds;
    int64_t nanoseconds;
};

static long system_call(long number, long a, long b, long c, long d)
{
    long result;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                     : "rcx", "r11", "memory");
    return result;
}

static __thread struct tandem_vcpu *this_vcpu;

void platform_halt(struct tandem_vm *vm, struct tandem_vcpu *me)
{
    while (__atomic_load_n(&me->pending, __ATOMIC_ACQUIRE) == 0 && !stopping(vm)) {
        struct timeout timeout;
        u64 nanoseconds = MAX_SLEEP;
        if (me->timer != 0) {
            if (platform_now() >= me->timer) {
                me->timer = 0;
                __atomic_store_n(&me->pending, 1, __ATOMIC_RELAXED);
                return;
            }
            nanoseconds = platform_nanoseconds_until(vm, me->timer, MAX_SLEEP);
        }
        timeout.seconds = (int64_t)(nanoseconds / 1000000000);
        timeout.nanoseconds = (int64_t)(nanoseconds % 1000000000);
        count(&me->halts);
        system_call(SYS_FUTEX, (long)&me->pending, FUTEX_WAIT_PRIVATE, 0, (long)&timeout);
    }
}

static void set_pending(struct tandem_vcpu *vcpu)
{
    if (__atomic_exchange_n(&vcpu->pending, 1, __ATOMIC_SEQ_CST) == 0)
        system_call(SYS_FUTEX, (long)&vcpu->pending, FUTEX_WAKE_PRIVATE, 1, 0);
}

void platform_wake(struct tandem_vm *vm, struct tandem_vcpu *me, u32 target)
{
    set_pending(&vm->vcpu[target]);
    count(&me->ipis);
}

/* `seen` distinguishes the signal from one of another sender. */
void tandem_shootdown_signal(int signal)
{
    (void)signal;
    struct tandem_vcpu *me = this_vcpu;
    u64 request = me != NULL ? load(&me->request) : 0;
    if (me != NULL && request != me->seen) {
        count(&me->acks);
        store(&me->seen, request);
    }
}

static void send_shootdown(const struct tandem_vm *vm, const struct tandem_vcpu *target)
{
    system_call(SYS_TGKILL, vm->process, target->tid, vm->shootdown_signal, 0);
}

void platform_shootdown(struct tandem_vm *vm, struct tandem_vcpu *me, u32 target)
{
    send_shootdown(vm, &vm->vcpu[target]);
    count(&me->ipis);
}

void platform_arm_timer(struct tandem_vm *vm, struct tandem_vcpu *me, u64 deadline)
{
    (void)vm;
    me->timer = deadline;
}

/* Runs vCPU `index` on the calling host thread; returns when the VM stops. */
void tandem_thread_main(struct tandem_vm *vm, u32 index)
{
    this_vcpu = &vm->vcpu[index];
    /* An earlier shootdown may have arrived before the handler knew its vCPU: send it again. */
    send_shootdown(vm, this_vcpu);
    tandem_run(vm, index);
    this_vcpu = NULL;
}

/* Ends every vCPU's sleep, after the VMM has set `stop`. */
void tandem_thread_wake_all(struct tandem_vm *vm)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    for (u32 index = 0; index < vm->vcpus; index++)
        set_pending(&vm->vcpu[index]);
}
