"""Tandem's simulator of vCPU scheduling: guest and host schedulers on one clock, deterministic to the byte.

>>> import tandem_sched as ts
>>> scenario = ts.Scenario.from_file("pipeline.toml")          # or from_toml(text), from_dict({...}), objects.scenario(...)
>>> ts.run(scenario).table.to_pandas()                         # a row for each figure
>>> comparison = ts.compare(scenario, vary={"vm.0.vcpus": "2..8:2"}, policies=["stock", "fair"], runs=5)
>>> print(comparison)                                          # the output of `tandem-sim compare`

Tandem's docs/reference/scenarios.md describes all keys of scenarios and all metrics. Results are those of the command `tandem-sim`: the same
scenario and seed give the same bytes on every machine, independent of the number of workers.
"""

from __future__ import annotations

import json as _json
import os as _os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path as _Path
from tempfile import TemporaryDirectory as _TemporaryDirectory
from typing import Any, Callable, Optional, Union

from . import _native, objects, policy
from ._native import ScenarioError
from ._progress import Bar as _Bar
from ._results import Comparison, Picture, Run, Sweep, Table
from ._scenario import Scenario
from ._scenario import toml as _toml

__all__ = [
    "Comparison",
    "Picture",
    "Run",
    "Scenario",
    "ScenarioError",
    "Sweep",
    "Table",
    "compare",
    "objects",
    "policy",
    "run",
    "sweep",
]
__version__ = _native.VERSION

#: Values of one key: a list, or a text such as ``"2..16:2"`` or ``"cfs,eevdf"``.
Values = Union[str, Iterable[Any]]
#: The varied settings: values by key.
Vary = Mapping[str, Values]
#: A policy: a function from the observation of a period to decisions (see :mod:`tandem_sched.policy`).
Policy = Callable[[dict[str, Any]], Iterable[Mapping[str, Any]]]
#: A function of the progress, the total (both in simulated seconds; for a sweep on a cluster, shards) and the current step;
#: or whether to show a bar.
Progress = Union[bool, Callable[[float, float, str], object]]
#: The path of a file or folder.
PathLike = Union[str, "_os.PathLike[str]"]


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

    ``policy`` replaces the scenario's host policies: a function that is called at the end of each period with an observation of the
    host and returns decisions (:mod:`tandem_sched.policy`). With ``decisions`` the run also has the observations and decisions.
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
    With ``waits`` the page also shows the waits between VMs, from one run of each combination.
    """
    source = _with(scenario, seed, duration)._native
    with _Bar.of(progress) as listener:
        return Comparison(_native.compare(source, _texts(policies), _vary(vary), runs, workers, waits, listener))


def sweep(
    scenario: Scenario,
    vary: Optional[Vary] = None,
    policies: Sequence[str] = (),
    *,
    runs: int = 10,
    seed: Optional[int] = None,
    duration: Optional[str] = None,
    workers: Optional[int] = None,
    out: Optional[PathLike] = None,
    shard: Optional[str] = None,
    force: bool = False,
    client: Any = None,
    shards: Optional[int] = None,
    progress: Progress = False,
) -> Sweep:
    """Runs a grid, or shard ``"I/N"`` of it; the table has a column ``cell`` for the number in the grid.

    ``out`` is the file to write, with the bytes of ``tandem-sim sweep --out`` (Parquet, or CSV by its name). An existing complete Parquet
    file of this grid is read, and nothing runs (a CSV file does not identify its grid). A damaged file, or one of something else, raises
    :class:`OSError`. With ``force`` the file is always written.

    With ``client``, a ``dask.distributed.Client``, the grid runs on the workers of that cluster, in ``shards`` shards or as many as take
    about a second each. The bytes are the same. ``force`` also removes damaged or foreign files among the shards. If a worker dies, its
    shard runs again elsewhere. Completed shards are kept in the folder ``OUT.shards`` until all are complete, so the same call resumes an
    interrupted sweep. Workers need this wheel and, if the scenario is a file, that file under the same path.
    """
    source = _with(scenario, seed, duration)
    asked = (source, _texts(policies), _vary(vary), runs)
    grid = _native.Grid(source._native, *asked[1:])
    path = None if out is None else _Path(out)
    with _Bar.of(progress, "shards" if client is not None else "s") as listener:
        if path is not None and grid.is_done(path, shard, force):
            return Sweep(grid.read(path, shard))
        if client is None:
            if shards is not None:
                raise ValueError("shards are for a cluster: give a client, or run one of them with shard='I/N'")
            return Sweep(grid.run(workers, path, shard, listener))
        if shard is not None or workers is not None:
            raise ValueError("a client spreads the whole grid over its own workers: leave out shard and workers")
        from . import _dask

        if path is not None and path.suffix.lower() != ".csv":
            _dask.sweep(client, asked, path, shards, force, listener)
            return Sweep(grid.read(path))
        with _TemporaryDirectory(prefix="tandem-") as folder:
            whole = _Path(folder) / "sweep.parquet"
            _dask.sweep(client, asked, whole, shards, force, listener)
            if path is not None:
                # A CSV file does not identify its grid, so the shards are Parquet and the merged file is rewritten.
                grid.merge(path, [whole])
            return Sweep(grid.read(whole))


def _with(scenario: Scenario, seed: Optional[int], duration: Optional[str]) -> Scenario:
    if not isinstance(scenario, Scenario):
        given = type(scenario).__name__
        raise TypeError(f"a scenario is wanted, not a {given}: Scenario.from_file(path), from_toml(text) or from_dict(...) makes one")
    settings = {key: value for key, value in (("seed", seed), ("duration", duration)) if value is not None}
    return scenario.with_settings(settings) if settings else scenario


def _asked(policy: Optional[Policy]) -> Optional[Callable[[str], str]]:
    if policy is None:
        return None
    decide = policy
    return lambda host: _json.dumps([*(decide(_json.loads(host)) or ())])


def _texts(names: Sequence[str]) -> list[str]:
    """Returns a list of names; a text is one name, or several separated by commas."""
    return names.split(",") if isinstance(names, str) else list(names)


def _vary(vary: Optional[Vary]) -> list[str]:
    return [f"{key}={_values(values)}" for key, values in (vary or {}).items()]


def _values(values: Values) -> str:
    return values if isinstance(values, str) else ",".join(_toml(value) for value in values)
