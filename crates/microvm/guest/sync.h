/*
 * Waiting and locking among vCPUs, written for vCPUs that may stop at any instruction.
 *
 * A vCPU sets its bit in a waiters mask before it sleeps, then checks the condition once more. A
 * vCPU that makes a condition true then checks the mask. With a full fence in between on either
 * side, at least one of them sees the other, so no wake-up is lost (as with futexes). Spinning
 * uses PAUSE, which pause-loop exiting of the hardware detects.
 */
#ifndef TANDEM_SYNC_H
#define TANDEM_SYNC_H

#include "platform.h"

#define SPIN_FOR_EVER (1ull << 62)

static inline u64 load(const u64 *from)
{
    return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

static inline void store(u64 *to, u64 value)
{
    __atomic_store_n(to, value, __ATOMIC_RELEASE);
}

/* Increments a counter with one writer: a whole store, no locked instruction. */
static inline void count(u64 *counter)
{
    __atomic_store_n(counter, *counter + 1, __ATOMIC_RELEASE);
}

static inline void expect(struct tandem_vcpu *me, int holds)
{
    if (!holds)
        count(&me->violations);
}

/*
 * Waits until `condition`, which may have a side effect when it becomes true: it is not evaluated
 * afterwards. Spins for `spin` TSC cycles, then sleeps in `sleepers`. Ends without the condition
 * only when the VM stops.
 */
#define WAIT_UNTIL(vm, me, sleepers, spin, condition)                                          \
    do {                                                                                       \
        const u64 bit_ = 1ull << (me)->index;                                                  \
        const u64 until_ = platform_now() + (spin);                                            \
        int holds_ = (condition);                                                              \
        while (!holds_ && !stopping(vm) && platform_now() < until_) {                          \
            platform_pause();                                                                  \
            count(&(me)->spins);                                                               \
            holds_ = (condition);                                                              \
        }                                                                                      \
        if (holds_)                                                                            \
            break;                                                                             \
        while (!stopping(vm)) {                                                                \
            __atomic_store_n(&(me)->pending, 0, __ATOMIC_SEQ_CST);                             \
            __atomic_fetch_or(&(sleepers)->mask, bit_, __ATOMIC_SEQ_CST);                      \
            holds_ = (condition);                                                              \
            if (holds_)                                                                        \
                break;                                                                         \
            platform_halt(vm, me);                                                             \
        }                                                                                      \
        __atomic_fetch_and(&(sleepers)->mask, ~bit_, __ATOMIC_SEQ_CST);                        \
    } while (0)

static inline void wake_all(struct tandem_vm *vm, struct tandem_vcpu *me,
                            struct tandem_waiters *waiters)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (load(&waiters->mask) == 0)
        return;
    u64 asleep = __atomic_exchange_n(&waiters->mask, 0, __ATOMIC_SEQ_CST);
    for (; asleep != 0; asleep &= asleep - 1)
        platform_wake(vm, me, (u32)__builtin_ctzll(asleep));
}

/* Wakes the next sleeper after this vCPU, round-robin, so that none starves. */
static inline void wake_one(struct tandem_vm *vm, struct tandem_vcpu *me,
                            struct tandem_waiters *waiters)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    u64 asleep;
    while ((asleep = load(&waiters->mask)) != 0) {
        u64 after = asleep & ~((2ull << me->index) - 1);
        u32 next = (u32)__builtin_ctzll(after != 0 ? after : asleep);
        u64 bit = 1ull << next;
        if (__atomic_fetch_and(&waiters->mask, ~bit, __ATOMIC_SEQ_CST) & bit) {
            platform_wake(vm, me, next);
            return;
        }
    }
}

/* Checks mutual exclusion, for both kinds of lock. */
static inline void lock_entered(struct tandem_lock *lock, struct tandem_vcpu *me)
{
    expect(me, load(&lock->owner) == 0);
    store(&lock->owner, me->index + 1);
}

static inline void lock_leaving(struct tandem_lock *lock, struct tandem_vcpu *me)
{
    store(&lock->guarded, lock->guarded + 1);
    expect(me, load(&lock->owner) == me->index + 1);
    store(&lock->owner, 0);
}

/* Ticket lock of Linux before 4.2. Returns 0 if the VM stopped meanwhile. */
static inline int ticket_lock(struct tandem_vm *vm, struct tandem_vcpu *me)
{
    struct tandem_lock *lock = &vm->lock;
    u32 ticket = __atomic_fetch_add(&lock->next_ticket, 1, __ATOMIC_RELAXED);
    while (__atomic_load_n(&lock->now_serving, __ATOMIC_ACQUIRE) != ticket) {
        if (stopping(vm))
            return 0;
        platform_pause();
        count(&me->spins);
    }
    lock_entered(lock, me);
    return 1;
}

static inline void ticket_unlock(struct tandem_vm *vm, struct tandem_vcpu *me)
{
    struct tandem_lock *lock = &vm->lock;
    lock_leaving(lock, me);
    __atomic_store_n(&lock->now_serving, lock->now_serving + 1, __ATOMIC_RELEASE);
}

static inline int mutex_try(struct tandem_lock *lock)
{
    return __atomic_load_n(&lock->locked, __ATOMIC_RELAXED) == 0 &&
           __atomic_exchange_n(&lock->locked, 1, __ATOMIC_ACQUIRE) == 0;
}

/* Spins for `spin` cycles, then sleeps until woken. Returns 0 if the VM stopped meanwhile. */
static inline int mutex_lock(struct tandem_vm *vm, struct tandem_vcpu *me, u64 spin)
{
    struct tandem_lock *lock = &vm->lock;
    int mine = 0;
    WAIT_UNTIL(vm, me, &lock->waiters, spin, mine = mutex_try(lock));
    if (mine)
        lock_entered(lock, me);
    return mine;
}

static inline void mutex_unlock(struct tandem_vm *vm, struct tandem_vcpu *me)
{
    struct tandem_lock *lock = &vm->lock;
    lock_leaving(lock, me);
    __atomic_store_n(&lock->locked, 0, __ATOMIC_SEQ_CST);
    wake_one(vm, me, &lock->waiters);
}

/* Waits until every vCPU has arrived; the last one opens the barrier and wakes the others. */
static inline void barrier_wait(struct tandem_vm *vm, struct tandem_vcpu *me, u64 spin)
{
    struct tandem_phases *phases = &vm->phases;
    u64 phase = load(&phases->phase);
    if (__atomic_add_fetch(&phases->arrived, 1, __ATOMIC_ACQ_REL) == vm->vcpus) {
        store(&phases->arrived, 0);
        store(&phases->phase, phase + 1);
        wake_all(vm, me, &phases->waiters);
    } else {
        WAIT_UNTIL(vm, me, &phases->waiters, spin, load(&phases->phase) != phase);
    }
}

#endif
