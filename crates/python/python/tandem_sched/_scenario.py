"""Scenarios: of TOML, of dictionaries, of objects; and values written as TOML."""

from __future__ import annotations

import json as _json
import os as _os
import re as _re
from collections.abc import Mapping
from typing import Any, Callable, Optional, Union

from . import _native
from .objects import plain as _plain


class Scenario:
    """What is simulated: a machine, a host, VMs with their programs. It never changes; ``with_settings`` makes another.

    Whatever is wrong in it raises :class:`ScenarioError` at once, whose ``file`` and ``line`` say where.
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
        """Takes a TOML text; ``name`` is what errors call it."""
        return cls(_native.Source.from_toml(text, name), (_from_toml, (text, name), ()))

    @classmethod
    def from_dict(cls, scenario: Mapping[str, Any], name: str = "scenario.toml") -> "Scenario":
        """Takes a dictionary with the keys of a scenario's TOML; objects (:mod:`tandem_sched.objects`) may stand for the tables in it.

        Lines of errors are those of :attr:`toml`.
        """
        native = _native.Source.from_json(_json.dumps(_plain(scenario)), name)
        return cls(native, (_from_toml, (native.text or "", name), ()))

    def with_settings(self, settings: Optional[Mapping[str, Any]] = None, **more: Any) -> "Scenario":
        """The same with other values, as ``tandem-sim --set`` does: ``with_settings({"vm.0.vcpus": 8}, seed=7)``."""
        values = [(key, toml(value)) for key, value in {**(settings or {}), **more}.items()]
        make, arguments, before = self._origin
        return Scenario(self._native.with_settings(values), (make, arguments, (*before, *values)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, self._origin

    @property
    def toml(self) -> Optional[str]:
        """The text that it was made of, or that was made of a dictionary; None for a file."""
        return self._native.text

    @property
    def name(self) -> str:
        """Its name in reports."""
        return self._native.facts()[0]

    @property
    def about(self) -> str:
        """One line on what it shows."""
        return self._native.facts()[1]

    @property
    def seed(self) -> int:
        """The seed of every random stream."""
        return self._native.facts()[2]

    @property
    def duration(self) -> float:
        """How long is simulated at most, in seconds, the warm-up included."""
        return self._native.facts()[3]

    @property
    def warmup(self) -> float:
        """What happens before this is not counted, in seconds."""
        return self._native.facts()[4]

    @property
    def pcpus(self) -> int:
        """Physical CPUs of the machine."""
        return self._native.facts()[5]

    @property
    def vms(self) -> dict[str, int]:
        """The VMs by name, with their vCPUs."""
        return dict(self._native.vms())

    def __repr__(self) -> str:
        vms = ", ".join(f"{name} ({vcpus} vCPUs)" for name, vcpus in self.vms.items())
        return f"<tandem_sched.Scenario {self.name}: {self.pcpus} pCPUs, {vms}, {self.duration:g} s>"


#: How to make a scenario again, elsewhere: a function with its arguments, and the settings.
_Origin = tuple[Callable[..., Scenario], tuple[str, ...], tuple[tuple[str, str], ...]]


def _from_file(path: str) -> Scenario:
    return Scenario.from_file(path)


def _from_toml(text: str, name: str) -> Scenario:
    return Scenario.from_toml(text, name)


def _again(make: Callable[..., Scenario], arguments: tuple[str, ...], settings: tuple[tuple[str, str], ...]) -> Scenario:
    made = make(*arguments)
    return Scenario(made._native.with_settings(list(settings)), (make, arguments, settings)) if settings else made


#: Texts that are something else in TOML, or more than one value, unless they have quotes.
_NEEDS_QUOTES = _re.compile(r"true|false|[-+]?(\d[\d_.eE+-]*|0[xob].*|inf|nan)|[\[{\"'].*|.*,.*|log:.*|-?\d.*\.\..*", _re.DOTALL)


def toml(value: Any) -> str:
    """A value as TOML; a text as a bare word where that means the same."""
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
