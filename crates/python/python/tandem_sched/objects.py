"""Scenarios of objects instead of TOML, with completion in editors.

>>> from tandem_sched.objects import Host, Machine, Role, Vm, Workload, scenario
>>> cache = Workload("cache", objects={"hash": "mutex"}, roles=[Role("1 per vcpu", [{"forever": [{"compute": "exp(2us)"}, "work"]}])])
>>> scenario(Machine(4), [Vm("web", 4, cache), Vm("burn", 4, "burn")], Host(scheduler="cfs"), duration="300ms", warmup="50ms")

Arguments have the names of a scenario's keys (docs/reference/scenarios.md of Tandem); a key without its own argument is accepted by name.
Checks happen when the scenario is made; any error raises :class:`tandem_sched.ScenarioError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from ._keys import Keys as _Keys
from ._scenario import Scenario

__all__ = ["Host", "Machine", "Role", "Vm", "Workload", "scenario"]


class Machine(_Keys):
    """The physical machine: its pCPUs and costs."""

    def __init__(
        self,
        pcpus: int,
        *,
        pcpus_per_llc: Optional[int] = None,
        mode: Optional[str] = None,
        costs: Optional[Mapping[str, int]] = None,
        **more: Any,
    ) -> None:
        super().__init__(pcpus=pcpus, pcpus_per_llc=pcpus_per_llc, mode=mode, costs=costs, **more)


class Host(_Keys):
    """The host's scheduler and hypervisor. Times are texts with a unit, such as ``"4ms"``."""

    def __init__(
        self,
        scheduler: Optional[str] = None,
        *,
        tick: Optional[str] = None,
        placement: Optional[str] = None,
        together: Optional[str] = None,
        cap: Optional[bool] = None,
        halt_poll: Optional[str] = None,
        apicv: Optional[bool] = None,
        pause_loop: Optional[Mapping[str, Any]] = None,
        **more: Any,
    ) -> None:
        super().__init__(
            scheduler=scheduler,
            tick=tick,
            placement=placement,
            together=together,
            cap=cap,
            halt_poll=halt_poll,
            apicv=apicv,
            pause_loop=pause_loop,
            **more,
        )


class Role(_Keys):
    """Threads that run the same program, a list of steps."""

    def __init__(
        self,
        threads: Union[int, str],
        program: Sequence[Any],
        *,
        name: Optional[str] = None,
        weight: Optional[int] = None,
        working_set: Optional[str] = None,
        **more: Any,
    ) -> None:
        super().__init__(name=name, threads=threads, program=program, weight=weight, working_set=working_set, **more)


class Workload(_Keys):
    """A program of VMs: its threads by roles, and their shared objects."""

    is_shared = True

    def __init__(
        self,
        name: str,
        *,
        roles: Sequence[Role],
        objects: Optional[Mapping[str, Any]] = None,
        unit: Optional[str] = None,
        about: Optional[str] = None,
        **more: Any,
    ) -> None:
        super().__init__(name=name, about=about, unit=unit, objects=objects, role=list(roles), **more)


class Vm(_Keys):
    """A VM, or ``count`` of them. Its workload is an object, or the name of a workload in the scenario or a built-in one."""

    def __init__(
        self,
        name: str,
        vcpus: Optional[int],
        workload: Union[str, Workload],
        *,
        count: Optional[int] = None,
        weight: Optional[int] = None,
        pins: Union[None, str, Sequence[str]] = None,
        policies: Optional[Sequence[str]] = None,
        scheduler: Optional[str] = None,
        idle: Optional[str] = None,
        **more: Any,
    ) -> None:
        super().__init__(
            name=name,
            vcpus=vcpus,
            workload=workload,
            count=count,
            weight=weight,
            pins=pins,
            policies=policies,
            scheduler=scheduler,
            idle=idle,
            **more,
        )


def scenario(
    machine: Machine,
    vms: Sequence[Vm],
    host: Optional[Host] = None,
    *,
    duration: str,
    warmup: Optional[str] = None,
    seed: Optional[int] = None,
    policies: Union[None, Sequence[str], Mapping[str, Any]] = None,
    about: Optional[str] = None,
    name: str = "scenario",
    **more: Any,
) -> Scenario:
    """Makes a scenario of objects; the workload objects of VMs become part of it."""
    keys = _Keys(
        name=name,
        about=about,
        seed=seed,
        duration=duration,
        warmup=warmup,
        policies=policies,
        machine=machine,
        host=host,
        vm=list(vms),
        **more,
    )
    return Scenario.from_dict(keys.keys, f"{name}.toml")
