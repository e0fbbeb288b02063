/*
 * The workloads, one function each, which runs until the VM stops and counts finished items in
 * `work` of its vCPU. Parameters, units, ranges and defaults are in src/workload.rs, in the order
 * of the enumeration next to each function.
 */
#ifndef TANDEM_WORKLOAD_H
#define TANDEM_WORKLOAD_H

#include "shared.h"

void run_burn(struct tandem_vm *vm, struct tandem_vcpu *me);
void run_spinlock(struct tandem_vm *vm, struct tandem_vcpu *me);
void run_mutex(struct tandem_vm *vm, struct tandem_vcpu *me);
void run_barrier(struct tandem_vm *vm, struct tandem_vcpu *me);
void run_forkjoin(struct tandem_vm *vm, struct tandem_vcpu *me);
void run_pipeline(struct tandem_vm *vm, struct tandem_vcpu *me);
void run_shootdown(struct tandem_vm *vm, struct tandem_vcpu *me);
void run_bursty(struct tandem_vm *vm, struct tandem_vcpu *me);
void run_server(struct tandem_vm *vm, struct tandem_vcpu *me);

/* Runs the VM's workload as vCPU `index`; returns when the VM stops. */
void tandem_run(struct tandem_vm *vm, u32 index);

#endif
