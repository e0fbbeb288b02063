"""A sweep in shards on the workers of a Dask cluster.

A shard is a task: it runs on one thread of a worker, which sends the bytes of its Parquet file back. Here they are checked against their
hash, put beside the others under a name of their own once they are whole, and read: a file that is not of this sweep is refused. So
workers need the wheel and, if the scenario is a file, that file; they share no folder. When all are there, the files are joined into
the one that a single machine would have written. Shards that are there already are not run again, so a sweep that broke off goes on.

Dask runs a shard again whose worker died. Any other error, and Ctrl-C, cancels what has not begun.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, Optional

from . import _native
from ._scenario import Scenario

#: The arguments that make a grid: a scenario, policies, what is varied, runs.
Asked = tuple[Scenario, list[str], list[str], int]


def sweep(
    client: Any,
    asked: Asked,
    out: Path,
    shards: Optional[int],
    force: bool,
    listener: Optional[Callable[[float, float, str], object]],
) -> None:
    """Has the file ``out`` made."""
    import distributed

    # Its types are unknown.
    as_completed: Any = distributed.as_completed
    grid = _grid(asked)
    folder = Path(f"{out}.shards")
    files, missing = grid.divide(out, shards, force)
    folder.mkdir(exist_ok=True)
    said = "shards"
    total, done = len(files), len(files) - len(missing)
    tell = listener or (lambda *_: None)
    tell(float(done), float(total), said)
    futures = {}
    for number in missing:
        future = client.submit(shard, asked, f"{number}/{total}", grid.fingerprint, pure=False)
        futures[future] = number
    try:
        for future in as_completed(list(futures)):
            content, digest = future.result()
            number = futures.pop(future)
            keep(grid, content, digest, files[number - 1], f"{number}/{total}")
            done += 1
            tell(float(done), float(total), said)
    finally:
        # Nothing is left where all went well.
        client.cancel(list(futures))
    # It is on the disk, and its name too, before the shards go.
    grid.merge(out, files)
    for file in files:
        Path(file).unlink()
    try:
        folder.rmdir()
    except OSError:
        # Something else is in it, which is not ours.
        pass


def shard(asked: Asked, shard: str, fingerprint: str) -> tuple[bytes, str]:
    """On a worker: a shard's file, and its hash."""
    grid = _grid(asked)
    if grid.fingerprint != fingerprint:
        raise RuntimeError(
            f"this worker has another sweep ({grid.fingerprint} instead of {fingerprint}): it needs the same version of tandem-sched and, "
            "if the scenario is a file, the same file"
        )
    with tempfile.TemporaryDirectory(prefix="tandem-") as folder:
        path = os.path.join(folder, "shard.parquet")
        grid.run(1, path, shard)
        with open(path, "rb") as file:
            content = file.read()
    return content, hashlib.sha256(content).hexdigest()


def keep(grid: _native.Grid, content: bytes, digest: str, path: Path, shard: str) -> None:
    """Puts a shard's file in its place, whole or not at all, if it is what it should be."""
    if hashlib.sha256(content).hexdigest() != digest:
        raise RuntimeError(f"shard {shard} was damaged on its way from the worker: run the sweep again")
    path = Path(path)
    # A name of its own, also where another machine writes into this folder; with the mode that any file of this user gets.
    partial = path.with_name(f".{secrets.token_hex(8)}.{path.name}")
    try:
        with open(partial, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # Raises where it is of another sweep.
        grid.is_done(partial, shard)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Sees to it that the names in a folder outlast a loss of power."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    except OSError as error:
        # File systems that cannot do it say so.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(opened)


def _grid(asked: Asked) -> _native.Grid:
    scenario, policies, vary, runs = asked
    return _native.Grid(scenario._native, policies, vary, runs)
