/*
 * Stages with bounded queues between them: vCPU n is stage n, takes an item from queue n, computes,
 * and puts it into queue n + 1. The first stage produces the items, the last one consumes them. A
 * stage sleeps if its input queue is empty or its output queue is full. With a step, the work of each
 * stage exceeds that of the one before by this percentage of the first stage's work.
 *
 * The invariant: items are numbered, and every stage takes them in order, without loss or duplicates.
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
