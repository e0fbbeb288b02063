"""Tables of a scenario as objects, and their conversion to dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Keys:
    """A table of a scenario: keys with their values, without those that are None."""

    #: Whether a VM refers to it by name, and the scenario contains it once.
    is_shared = False

    def __init__(self, **keys: Any) -> None:
        self.keys = {key: value for key, value in keys.items() if value is not None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.keys.items())})"


def plain(value: Any) -> Any:
    """Converts objects to dictionaries and lists; a workload within a VM becomes one of the scenario."""
    workloads: dict[str, Any] = {}
    made = _plain(value, workloads)
    if workloads and isinstance(made, dict):
        own = list(made.get("workload", ()))
        made["workload"] = own + [workload for workload in workloads.values() if workload not in own]
    return made


def _plain(value: Any, workloads: dict[str, Any]) -> Any:
    if isinstance(value, Keys) and value.is_shared:
        name, made = value.keys["name"], _plain(value.keys, workloads)
        if workloads.setdefault(name, made) != made:
            raise ValueError(f"two workloads are called {name!r}: names must differ")
        return name
    if isinstance(value, Keys):
        return _plain(value.keys, workloads)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, workloads) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, workloads) for inner in value]
    return value
