/*
 * Stages with bounded queues between them: vCPU n is stage n, takes an item from queue n, computes,
 * and puts it into queue n + 1. The first stage makes the items, the last one uses them up. A stage
 * with nothing to take, or no room to put, sleeps. With a step each stage computes so many percent of the first one's work more
 * than the one before.
 *
 * The invariant: items are numbered, and every stage takes them in order, none lost, none twice.
 */
#include "compute.h"
#include "draw.h"
#include "sync.h"
#include "workload.h"

enum pipeline { PIPELINE_WORK, PIPELINE_CAPACITY, PIPELINE_SPIN, PIPELINE_JITTER, PIPELINE_STEP };

/* Returns 0 if the VM stopped meanwhile. */
static int take(struct tandem_vm *vm, struct tandem_vcpu *me, struct tandem_queue *queue, u64 *item)
{
    u64 head = queue->head;
    WAIT_UNTIL(vm, me, &queue->waiters, vm->params[PIPELINE_SPIN], load(&queue->tail) != head);
    if (load(&queue->tail) == head)
        return 0;
    *item = queue->slots[head % TANDEM_QUEUE_SLOTS];
    store(&queue->head, head + 1);
    wake_all(vm, me, &queue->waiters);
    return 1;
}

static int put(struct tandem_vm *vm, struct tandem_vcpu *me, struct tandem_queue *queue, u64 item)
{
    u64 capacity = vm->params[PIPELINE_CAPACITY];
    u64 tail = queue->tail;
    WAIT_UNTIL(vm, me, &queue->waiters, vm->params[PIPELINE_SPIN],
               tail - load(&queue->head) < capacity);
    if (tail - load(&queue->head) >= capacity)
        return 0;
    queue->slots[tail % TANDEM_QUEUE_SLOTS] = item;
    store(&queue->tail, tail + 1);
    wake_all(vm, me, &queue->waiters);
    return 1;
}

void run_pipeline(struct tandem_vm *vm, struct tandem_vcpu *me)
{
    int last = me->index + 1 == vm->vcpus;
    u64 work = vm->params[PIPELINE_WORK];
    work += work * vm->params[PIPELINE_STEP] / 100 * me->index;
    for (u64 expected = 0; !stopping(vm); expected++) {
        u64 item = expected;
        if (me->index != 0 && !take(vm, me, &vm->queue[me->index], &item))
            return;
        expect(me, item == expected);
        compute(vm, me, draw_size(me, work, vm->params[PIPELINE_JITTER]));
        if (stopping(vm) || (!last && !put(vm, me, &vm->queue[me->index + 1], item)))
            return;
        count(&me->work);
    }
}
