"""Scenarios of objects instead of TOML, with completion in editors.

>>> from tandem_sched.objects import Host, Machine, Role, Vm, Workload, scenario
>>> cache = Workload("cache", objects={"hash": "mutex"}, roles=[Role("1 per vcpu", [{"forever": [{"compute": "exp(2us)"}, "work"]}])])
>>> scenario(Machine(4), [Vm("web", 4, cache), Vm("burn", 4, "burn")], Host(scheduler="cfs"), duration="300ms", warmup="50ms")

Arguments have the names of a scenario's keys (docs/reference/scenarios.md of Tandem); a key without its own argument is accepted by name.
Checks happen when the scenario is made; any error raises :class:`tandem_sched.ScenarioError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

if TYPE_CHECKING:
    from ._scenario import Scenario

__all__ = ["Host", "Machine", "Role", "Vm", "Workload", "scenario"]


class _Keys:
    """A table of a scenario: keys with their values, without those that are None."""

    def __init__(self, **keys: Any) -> None:
        self.keys = {key: value for key, value in keys.items() if value is not None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.keys.items())})"


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
    from ._scenario import Scenario

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


def plain(value: Any) -> Any:
    """Converts objects to dictionaries and lists; a workload within a VM becomes one of the scenario."""
    workloads: dict[str, Any] = {}
    made = _plain(value, workloads)
    if workloads and isinstance(made, dict):
        own = list(made.get("workload", ()))
        made["workload"] = own + [workload for workload in workloads.values() if workload not in own]
    return made


def _plain(value: Any, workloads: dict[str, Any]) -> Any:
    if isinstance(value, Workload):
        name, made = value.keys["name"], _plain(value.keys, workloads)
        if workloads.setdefault(name, made) != made:
            raise ValueError(f"two workloads are called {name!r}: names must differ")
        return name
    if isinstance(value, _Keys):
        return _plain(value.keys, workloads)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, workloads) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, workloads) for inner in value]
    return value
