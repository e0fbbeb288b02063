"""Policies written in Python, for prototypes: slow, but complete.

A policy is a function (or an object with ``__call__``) that receives an observation of the host at the end of a period and returns decisions:

>>> def favour_the_first(host):
...     return [set_weight(vm, 4096 if vm["vm"] == 0 else 1024) for vm in host["vms"]]
>>> tandem_sched.run(scenario, policy=favour_the_first)

``host`` is a dictionary with ``period`` (ns), ``elapsed`` (ns, if the time since the last observation differs from the period), ``idle``
(idle time of each pCPU, ns in the period, by its number as a text), ``knobs`` and ``vms``. Each VM has ``vm`` (its number in the scenario,
from 0), ``weight`` (the configured one), ``in_force`` (current values) and ``vcpus``. Each vCPU has ``vcpu``, ``allowed`` (pCPUs in the
kernel's list format), ``ran`` and ``waited`` (ns in the period), ``runnable`` and ``in_force``. The daemon's own policies receive the same
observation. Values are rounded to the ranges and steps of the knobs; unchanged values are not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional, Union

__all__ = ["set_affinity", "set_idle", "set_nice", "set_slice", "set_weight"]

#: A VM of the observation, or its number.
Vm = Union[int, Mapping[str, Any]]
#: A vCPU of the observation, or its number.
Vcpu = Union[int, Mapping[str, Any]]


def set_weight(
    vm: Vm, weight: float, vcpu: Optional[Vcpu] = None, *, because: Optional[Mapping[str, Any]] = None
) -> dict[str, Any]:
    """Sets the weight of a VM, or of a vCPU within it.

    ``because`` is a reason in the daemon's format, such as ``{"reason": "keep-sum"}``, for ports of its policies; the default is a generic
    reason.
    """
    decision = _decision("set-weight", target=_target(vm, vcpu), weight=float(weight))
    return {**decision, "because": dict(because)} if because else decision


def set_idle(vm: Vm, idle: bool, vcpu: Optional[Vcpu] = None) -> dict[str, Any]:
    """Sets or clears the idle class of a VM or a vCPU, in which it receives only otherwise unused CPU time."""
    return _decision("set-idle", target=_target(vm, vcpu), idle=bool(idle))


def set_nice(vm: Vm, vcpu: Vcpu, nice: int) -> dict[str, Any]:
    """Sets the nice value of a vCPU, -20 (highest priority) to 19."""
    return _decision("set-nice", vm=_vm(vm), vcpu=_vcpu(vcpu), nice=nice)


def set_slice(vm: Vm, vcpu: Vcpu, nanoseconds: Optional[int]) -> dict[str, Any]:
    """Sets the EEVDF slice of a vCPU; None resets it to the scheduler's default."""
    return _decision("set-slice", vm=_vm(vm), vcpu=_vcpu(vcpu), slice=nanoseconds)


def set_affinity(vm: Vm, vcpu: Vcpu, pcpus: str) -> dict[str, Any]:
    """Restricts a vCPU to these pCPUs, in the kernel's list format: ``"0-3,7"``."""
    return _decision("set-affinity", vm=_vm(vm), vcpu=_vcpu(vcpu), pcpus=pcpus)


def _decision(action: str, **more: Any) -> dict[str, Any]:
    return {"action": action, **more, "because": {"reason": "outside"}}


def _target(vm: Vm, vcpu: Optional[Vcpu]) -> dict[str, Any]:
    return {"vm": _vm(vm)} if vcpu is None else {"vcpu": [_vm(vm), _vcpu(vcpu)]}


def _vm(vm: Vm) -> int:
    return vm if isinstance(vm, int) else int(vm["vm"])


def _vcpu(vcpu: Vcpu) -> int:
    return vcpu if isinstance(vcpu, int) else int(vcpu["vcpu"])
