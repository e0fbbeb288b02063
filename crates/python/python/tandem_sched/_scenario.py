"""Scenarios from TOML, dictionaries and objects, and conversion of values to TOML."""

from __future__ import annotations

import json as _json
import os as _os
import re as _re
from collections.abc import Mapping
from typing import Any, Callable, Optional, Union

from . import _native
from ._keys import plain as _plain


class Scenario:
    """A scenario: a machine, a host, VMs with their programs. It is immutable; ``with_settings`` returns a new one.

    Any error in it immediately raises :class:`ScenarioError` with its ``file`` and ``line``.
    """

    def __init__(self, native: _native.Source, origin: _Origin) -> None:
        self._native = native
        self._origin = origin

    @classmethod
    def from_file(cls, path: Union[str, "_os.PathLike[str]"]) -> "Scenario":
        """Reads a TOML file."""
        name = _os.fspath(path)
        return cls(_native.Source.from_file(name), (_from_file, (_os.path.abspath(name),), ()))

    @classmethod
    def from_toml(cls, text: str, name: str = "scenario.toml") -> "Scenario":
        """Reads a TOML text; errors refer to it by ``name``."""
        return cls(_native.Source.from_toml(text, name), (_from_toml, (text, name), ()))

    @classmethod
    def from_dict(cls, scenario: Mapping[str, Any], name: str = "scenario.toml") -> "Scenario":
        """Reads a dictionary with the keys of a scenario's TOML; its tables may be objects (:mod:`tandem_sched.objects`).

        Lines of errors refer to :attr:`toml`.
        """
        native = _native.Source.from_json(_json.dumps(_plain(scenario)), name)
        return cls(native, (_from_toml, (native.text or "", name), ()))

    def with_settings(self, settings: Optional[Mapping[str, Any]] = None, **more: Any) -> "Scenario":
        """Returns a copy with other values, like ``tandem-sim --set``: ``with_settings({"vm.0.vcpus": 8}, seed=7)``."""
        values = [(key, toml(value)) for key, value in {**(settings or {}), **more}.items()]
        make, arguments, before = self._origin
        return Scenario(self._native.with_settings(values), (make, arguments, (*before, *values)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, self._origin

    @property
    def toml(self) -> Optional[str]:
        """The TOML text, which may be generated from a dictionary; None for a file."""
        return self._native.text

    @property
    def name(self) -> str:
        """Its name in reports."""
        return self._native.facts()[0]

    @property
    def about(self) -> str:
        """A line that describes its purpose."""
        return self._native.facts()[1]

    @property
    def seed(self) -> int:
        """The seed of every random stream."""
        return self._native.facts()[2]

    @property
    def duration(self) -> float:
        """The maximum simulated time in seconds, including the warm-up."""
        return self._native.facts()[3]

    @property
    def warmup(self) -> float:
        """The length of the warm-up in seconds, which is not measured."""
        return self._native.facts()[4]

    @property
    def pcpus(self) -> int:
        """The number of physical CPUs of the machine."""
        return self._native.facts()[5]

    @property
    def vms(self) -> dict[str, int]:
        """The number of vCPUs of each VM, by name."""
        return dict(self._native.vms())

    def __repr__(self) -> str:
        vms = ", ".join(f"{name} ({vcpus} vCPUs)" for name, vcpus in self.vms.items())
        return f"<tandem_sched.Scenario {self.name}: {self.pcpus} pCPUs, {vms}, {self.duration:g} s>"


#: The way to make a scenario again in another process: a function with its arguments, and the settings.
_Origin = tuple[Callable[..., Scenario], tuple[str, ...], tuple[tuple[str, str], ...]]


def _from_file(path: str) -> Scenario:
    return Scenario.from_file(path)


def _from_toml(text: str, name: str) -> Scenario:
    return Scenario.from_toml(text, name)


def _again(make: Callable[..., Scenario], arguments: tuple[str, ...], settings: tuple[tuple[str, str], ...]) -> Scenario:
    made = make(*arguments)
    return Scenario(made._native.with_settings(list(settings)), (make, arguments, settings)) if settings else made


#: Texts that without quotes would have another type in TOML, or be several values.
_NEEDS_QUOTES = _re.compile(r"true|false|[-+]?(\d[\d_.eE+-]*|0[xob].*|inf|nan)|[\[{\"'].*|.*,.*|log:.*|-?\d.*\.\..*", _re.DOTALL)


def toml(value: Any) -> str:
    """Converts a value to TOML; a text becomes a bare word if that is unambiguous."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _inner(value) if _NEEDS_QUOTES.fullmatch(value) else value
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_json.dumps(str(key))} = {_inner(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_inner(inner) for inner in value) + "]"
    return str(value)


def _inner(value: Any) -> str:
    return _json.dumps(value, ensure_ascii=False) if isinstance(value, str) else toml(value)
