"""A sweep in shards on the workers of a Dask cluster.

A shard is a task: it runs on one thread of a worker, which returns the bytes of its Parquet file. This process checks their hash, writes
them to a file next to the other shards, and rejects a file of another sweep. So workers need the wheel and, if the scenario is a file, that
file, but no shared folder. When all shards exist, they are merged into the file that a single machine would write. Existing shards are not
run again, so that an interrupted sweep can resume.

If a worker dies, Dask runs its shard again. Any other error, and Ctrl-C, cancels the shards that have not started.
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

#: The arguments of a grid: scenario, policies, varied settings, runs.
Asked = tuple[Scenario, list[str], list[str], int]


def sweep(
    client: Any,
    asked: Asked,
    out: Path,
    shards: Optional[int],
    force: bool,
    listener: Optional[Callable[[float, float, str], object]],
) -> None:
    """Runs the missing shards on the cluster and merges all of them into ``out``."""
    import distributed

    # It has no types.
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
        # After a success there is nothing to cancel.
        client.cancel(list(futures))
    # The merged file and its name are on disk before the shards are removed.
    grid.merge(out, files)
    for file in files:
        Path(file).unlink()
    try:
        folder.rmdir()
    except OSError:
        # The folder contains files of others.
        pass


def shard(asked: Asked, shard: str, fingerprint: str) -> tuple[bytes, str]:
    """Runs a shard on a worker; returns its file and the hash of it."""
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
    """Checks a shard's file and stores it atomically."""
    if hashlib.sha256(content).hexdigest() != digest:
        raise RuntimeError(f"shard {shard} was damaged on its way from the worker: run the sweep again")
    path = Path(path)
    # A unique name, even if another machine writes into this folder; the mode is the default of this user.
    partial = path.with_name(f".{secrets.token_hex(8)}.{path.name}")
    try:
        with open(partial, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # Raises an error if it is of another sweep.
        grid.is_done(partial, shard)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Makes the names in a folder survive a loss of power."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    except OSError as error:
        # EINVAL: the file system does not support it.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(opened)


def _grid(asked: Asked) -> _native.Grid:
    scenario, policies, vary, runs = asked
    return _native.Grid(scenario._native, policies, vary, runs)
