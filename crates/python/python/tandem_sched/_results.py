"""What comes out of simulations: tables, runs, comparisons, sweeps, and how notebooks show them."""

from __future__ import annotations

import json as _json
import os as _os
from collections.abc import Sequence
from html import escape as _escape
from typing import Any, Optional, Union

from . import _native

#: Rows of a table that a notebook shows.
_SHOWN = 10


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

    def _repr_html_(self) -> str:
        columns = self.to_dict()
        head = "".join(f"<th>{_escape(name)}</th>" for name in columns)
        first = zip(*(column[:_SHOWN] for column in columns.values()))
        body = "".join("<tr>" + "".join(f"<td>{_escape(_short(value))}</td>" for value in row) + "</tr>" for row in first)
        more = f"<caption>{min(_SHOWN, len(self))} of {len(self)} rows</caption>"
        return f"<table>{more}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

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


class Picture:
    """A picture, SVG. Notebooks show it."""

    def __init__(self, svg: str) -> None:
        self._svg = svg

    @property
    def svg(self) -> str:
        """Its text."""
        return self._svg

    def save(self, path: Union[str, "_os.PathLike[str]"]) -> None:
        """Writes it to a file that ends in ``.svg``, or, where the program ``rsvg-convert`` is installed, in ``.png``."""
        name = _os.fspath(path)
        if name.lower().endswith(".svg"):
            content = self._svg.encode()
        elif name.lower().endswith(".png"):
            content = self._png()
        else:
            raise ValueError(f"{name} cannot be a picture: name a file that ends in .svg or .png")
        # Only now: a picture that was there is kept where there is no new one.
        with open(name, "wb") as file:
            file.write(content)

    def _png(self) -> bytes:
        import subprocess

        try:
            done = subprocess.run(["rsvg-convert", "--zoom", "2"], input=self._svg.encode(), capture_output=True)
        except FileNotFoundError:
            raise RuntimeError("a .png needs the program rsvg-convert (Debian: librsvg2-bin); save an .svg instead") from None
        if done.returncode:
            raise RuntimeError(f"rsvg-convert failed: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout

    def __repr__(self) -> str:
        return f"<tandem_sched.Picture: {len(self._svg)} bytes of SVG>"

    def _repr_svg_(self) -> str:
        return self._svg


class Run:
    """What one run measured."""

    def __init__(self, native: _native.Run) -> None:
        self._native = native

    @property
    def table(self) -> Table:
        """A row for each figure."""
        return Table(self._native.table())

    def json(self) -> str:
        """All that was measured, as ``tandem-sim run --json`` writes it (docs/schemas/sim-run-1.json)."""
        return self._native.json()

    def to_dict(self) -> dict[str, Any]:
        """The same as a dictionary."""
        read: dict[str, Any] = _json.loads(self.json())
        return read

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
    """Every metric of every VM under every combination of what was varied. Its text is what ``tandem-sim compare`` prints."""

    def __init__(self, native: _native.Comparison) -> None:
        self._native = native

    @property
    def table(self) -> Table:
        """A row for each figure of each run."""
        return Table(self._native.table())

    def json(self) -> str:
        """Means with intervals, as ``tandem-sim compare --json`` writes them (docs/schemas/sim-compare-1.json)."""
        return self._native.json()

    def to_dict(self) -> dict[str, Any]:
        """The same as a dictionary."""
        read: dict[str, Any] = _json.loads(self.json())
        return read

    def text(self, metrics: Optional[Sequence[str]] = None) -> str:
        """A table for a terminal, of these metrics."""
        return self._native.text(_names(metrics))

    def html(self, metrics: Optional[Sequence[str]] = None) -> str:
        """A page with charts that opens offline, of these metrics."""
        return self._native.html("tandem_sched.compare(…)", _names(metrics))

    def svg(self, metrics: Optional[Sequence[str]] = None) -> str:
        """A picture: lines over a number that was varied, else bars relative to the first combination."""
        return self._native.svg(_names(metrics))

    def picture(self, metrics: Optional[Sequence[str]] = None) -> Picture:
        """The same as a notebook shows it, and as it is saved."""
        return Picture(self.svg(metrics))

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return _frame(self.html())


class Sweep(Table):
    """The figures of a grid, or of a shard of it: a table that also knows what they compare."""

    def __init__(self, native: _native.Sweep) -> None:
        super().__init__(native.table())
        self._sweep = native

    @property
    def comparison(self) -> Comparison:
        """The combinations with means and intervals; not of a shard, which has not all runs of any."""
        return Comparison(self._sweep.comparison())

    def picture(self, metrics: Optional[Sequence[str]] = None) -> Picture:
        """Lines over a number that was varied, else bars relative to the first combination; of these metrics."""
        return self.comparison.picture(metrics)


def _names(metrics: Optional[Sequence[str]]) -> Optional[str]:
    return metrics if metrics is None or isinstance(metrics, str) else ",".join(metrics)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _frame(page: str) -> str:
    """A page within a notebook's, whose styles it leaves alone."""
    return f'<iframe srcdoc="{_escape(page)}" style="width:100%;height:640px;border:0"></iframe>'
