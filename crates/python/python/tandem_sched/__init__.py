"""Tandem's simulator of vCPU scheduling: guest and host schedulers on one clock, deterministic to the byte.

>>> import tandem_sched as ts
>>> scenario = ts.Scenario.from_file("pipeline.toml")          # or from_toml(text), from_dict({...})
>>> ts.run(scenario).table.to_pandas()                         # a row for each figure
>>> comparison = ts.compare(scenario, vary={"vm.0.vcpus": "2..8:2"}, policies=["stock", "fair"], runs=5)
>>> print(comparison)                                          # what `tandem sim compare` prints

Every key of a scenario and every metric is in Tandem's docs/scenarios.md. Results are those of the command `tandem sim`: the same
scenario and seed give the same bytes on every machine, whatever the number of workers.
"""

from __future__ import annotations

import json as _json
import os as _os
import re as _re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, Optional, Union

from . import _native, policy
from ._native import ScenarioError
from ._progress import Bar as _Bar

__all__ = ["Comparison", "Run", "Scenario", "ScenarioError", "Table", "compare", "policy", "run", "sweep"]
__version__ = _native.VERSION

#: Values of one key: a list, or a text such as ``"2..16:2"`` or ``"cfs,eevdf"``.
Values = Union[str, Iterable[Any]]
#: What is varied: values by key.
Vary = Mapping[str, Values]
#: A policy: from what the host shows at the end of a period to decisions (see :mod:`tandem_sched.policy`).
Policy = Callable[[dict[str, Any]], Iterable[Mapping[str, Any]]]
#: A function of simulated seconds done, of all, and what is being done; or whether to show a bar.
Progress = Union[bool, Callable[[float, float, str], object]]


class Table:
    """Figures in long form: a row for each figure of each VM and run, a column for each parameter that was varied.

    Columns: ``cell`` (of sweeps only), ``scenario``, ``combination``, one for each parameter, ``seed``, ``vm`` (empty: the host),
    ``metric``, ``unit``, ``value``. It speaks the Arrow PyCapsule interface: ``pyarrow.table(t)`` and ``polars.DataFrame(t)``
    take it without copying.
    """

    def __init__(self, native: _native.Table) -> None:
        self._native = native

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._native.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._native.__arrow_c_schema__()

    def __len__(self) -> int:
        return len(self._native)

    def __repr__(self) -> str:
        return f"<tandem_sched.Table: {len(self)} rows, {', '.join(self.columns)}>"

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in their order."""
        return self._native.column_names

    def column(self, name: str) -> list[Any]:
        """A column as a list; needs no other library."""
        return self._native.column(name)

    def to_dict(self) -> dict[str, list[Any]]:
        """All columns as lists, by name; needs no other library."""
        return {name: self.column(name) for name in self.columns}

    def to_arrow(self) -> Any:
        """As a ``pyarrow.Table``, without copying; needs pyarrow."""
        import pyarrow

        return pyarrow.table(self)

    def to_pandas(self) -> Any:
        """As a ``pandas.DataFrame``; needs pandas."""
        try:
            return self.to_arrow().to_pandas()
        except ImportError:
            import pandas

            return pandas.DataFrame(self.to_dict())

    def to_polars(self) -> Any:
        """As a ``polars.DataFrame``, without copying; needs polars."""
        import polars

        return polars.DataFrame(self)


class Scenario:
    """What is simulated: a machine, a host, VMs with their programs. It never changes; ``with_settings`` makes another.

    Whatever is wrong in it raises :class:`ScenarioError` at once, whose ``file`` and ``line`` say where.
    """

    def __init__(self, native: _native.Source) -> None:
        self._native = native

    @classmethod
    def from_file(cls, path: Union[str, "_os.PathLike[str]"]) -> "Scenario":
        """Reads a TOML file."""
        return cls(_native.Source.from_file(_os.fspath(path)))

    @classmethod
    def from_toml(cls, text: str, name: str = "scenario.toml") -> "Scenario":
        """Takes a TOML text; ``name`` is what errors call it."""
        return cls(_native.Source.from_toml(text, name))

    @classmethod
    def from_dict(cls, scenario: Mapping[str, Any], name: str = "scenario.toml") -> "Scenario":
        """Takes a dictionary with the keys of a scenario's TOML. Lines of errors are those of :attr:`toml`."""
        return cls(_native.Source.from_json(_json.dumps(scenario), name))

    def with_settings(self, settings: Optional[Mapping[str, Any]] = None, **more: Any) -> "Scenario":
        """The same with other values, as ``tandem sim --set`` does: ``with_settings({"vm.0.vcpus": 8}, seed=7)``."""
        values = {**(settings or {}), **more}
        return Scenario(self._native.with_settings([(key, _toml(value)) for key, value in values.items()]))

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


class Run:
    """What one run measured."""

    def __init__(self, native: _native.Run) -> None:
        self._native = native

    @property
    def table(self) -> Table:
        """A row for each figure."""
        return Table(self._native.table())

    def json(self) -> str:
        """All that was measured, as ``tandem sim run --json`` writes it (docs/schemas/sim-run-1.json)."""
        return self._native.json()

    def to_dict(self) -> dict[str, Any]:
        """The same as a dictionary."""
        return _json.loads(self.json())

    @property
    def decisions(self) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """What the host's controller saw and decided, period by period; empty unless ``run(..., decisions=True)``."""
        return [(host, decisions) for host, decisions in _json.loads(self._native.decided())]

    def html(self) -> str:
        """A page with charts that opens offline."""
        return self._native.html("tandem_sched.run(…)")

    def __str__(self) -> str:
        return self._native.text()

    def _repr_html_(self) -> str:
        return _frame(self.html())


class Comparison:
    """Every metric of every VM under every combination of what was varied. Its text is what ``tandem sim compare`` prints."""

    def __init__(self, native: _native.Comparison) -> None:
        self._native = native

    @property
    def table(self) -> Table:
        """A row for each figure of each run."""
        return Table(self._native.table())

    def json(self) -> str:
        """Means with intervals, as ``tandem sim compare --json`` writes them (docs/schemas/sim-compare-1.json)."""
        return self._native.json()

    def to_dict(self) -> dict[str, Any]:
        """The same as a dictionary."""
        return _json.loads(self.json())

    def text(self, metrics: Optional[Sequence[str]] = None) -> str:
        """A table for a terminal, of these metrics."""
        return self._native.text(_names(metrics))

    def html(self, metrics: Optional[Sequence[str]] = None) -> str:
        """A page with charts that opens offline, of these metrics."""
        return self._native.html("tandem_sched.compare(…)", _names(metrics))

    def svg(self, metrics: Optional[Sequence[str]] = None) -> str:
        """A picture: lines over a number that was varied, else bars relative to the first combination."""
        return self._native.svg(_names(metrics))

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return _frame(self.html())


def run(
    scenario: Scenario,
    *,
    seed: Optional[int] = None,
    duration: Optional[str] = None,
    policy: Optional[Policy] = None,
    decisions: bool = False,
    progress: Progress = False,
) -> Run:
    """Runs a scenario once. ``duration`` is a time with its unit, such as ``"200ms"``.

    ``policy`` takes the place of the scenario's host policies: a function that is called at the end of each period with what the host
    shows and gives decisions (:mod:`tandem_sched.policy`). With ``decisions`` the run also has what was seen and decided.
    """
    source = _with(scenario, seed, duration)._native
    with _Bar.of(progress) as listener:
        return Run(_native.run(source, listener, _asked(policy), decisions))


def compare(
    scenario: Scenario,
    vary: Optional[Vary] = None,
    policies: Sequence[str] = (),
    *,
    runs: int = 10,
    seed: Optional[int] = None,
    duration: Optional[str] = None,
    workers: Optional[int] = None,
    waits: bool = False,
    progress: Progress = False,
) -> Comparison:
    """Runs every combination of ``policies`` and the values of ``vary`` with ``runs`` seeds each, on all cores.

    ``vary={"host.scheduler": ["cfs", "eevdf"], "vm.0.vcpus": "2..16:2"}`` makes all combinations; the last key varies fastest.
    With ``waits`` the page also shows who waited for whom, from one run of each combination.
    """
    source = _with(scenario, seed, duration)._native
    with _Bar.of(progress) as listener:
        return Comparison(_native.compare(source, list(policies), _vary(vary), runs, workers, waits, listener))


def sweep(
    scenario: Scenario,
    vary: Optional[Vary] = None,
    policies: Sequence[str] = (),
    *,
    runs: int = 10,
    seed: Optional[int] = None,
    duration: Optional[str] = None,
    workers: Optional[int] = None,
    out: Union[None, str, "_os.PathLike[str]"] = None,
    shard: Optional[str] = None,
    force: bool = False,
    progress: Progress = False,
) -> Table:
    """Runs a grid, or shard ``"I/N"`` of it; the table has a column ``cell`` for the number in the grid.

    ``out`` is the file that ``tandem sim sweep --out`` writes, to the byte (Parquet, or CSV by its name). If it is there and complete it is
    read and nothing runs; a file of something else raises :class:`OSError` unless ``force``.
    """
    source = _with(scenario, seed, duration)._native
    path = None if out is None else _os.fspath(out)
    with _Bar.of(progress) as listener:
        return Table(
            _native.sweep(source, list(policies), _vary(vary), runs, workers, path, shard, force, listener)
        )


def _with(scenario: Scenario, seed: Optional[int], duration: Optional[str]) -> Scenario:
    settings = {key: value for key, value in (("seed", seed), ("duration", duration)) if value is not None}
    return scenario.with_settings(settings) if settings else scenario


def _asked(policy: Optional[Policy]) -> Optional[Callable[[str], str]]:
    if policy is None:
        return None
    decide = policy
    return lambda host: _json.dumps([*(decide(_json.loads(host)) or ())])


def _vary(vary: Optional[Vary]) -> list[str]:
    return [f"{key}={_values(values)}" for key, values in (vary or {}).items()]


def _values(values: Values) -> str:
    return values if isinstance(values, str) else ",".join(_toml(value) for value in values)


#: Texts that are something else in TOML, or more than one value, unless they have quotes.
_NEEDS_QUOTES = _re.compile(r"true|false|[-+]?(\d[\d_.eE+-]*|0[xob].*|inf|nan)|[\[{\"'].*|.*,.*|log:.*|-?\d.*\.\..*", _re.DOTALL)


def _toml(value: Any) -> str:
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
    return _json.dumps(value, ensure_ascii=False) if isinstance(value, str) else _toml(value)


def _names(metrics: Optional[Sequence[str]]) -> Optional[str]:
    return metrics if metrics is None or isinstance(metrics, str) else ",".join(metrics)


def _frame(page: str) -> str:
    """A page within a notebook's, whose styles it leaves alone."""
    from html import escape

    return f'<iframe srcdoc="{escape(page)}" style="width:100%;height:640px;border:0"></iframe>'
