"""Results of simulations: tables, runs, comparisons and sweeps, and their display in notebooks."""

from __future__ import annotations

import json as _json
import os as _os
from collections.abc import Sequence
from html import escape as _escape
from typing import Any, Optional, Union

from . import _native

#: Maximum number of rows of a table in a notebook.
_SHOWN = 10


class Table:
    """Figures in long form: a row for each figure of each VM and run, a column for each varied parameter.

    Columns: ``cell`` (of sweeps only), ``scenario``, ``combination``, one for each parameter, ``seed``, ``vm`` (empty: the host),
    ``metric``, ``unit``, ``value``. It supports the Arrow PyCapsule interface: ``pyarrow.table(t)`` and
    ``polars.DataFrame(t)`` do not copy it.
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
        """Returns a column as a list, without another library."""
        return self._native.column(name)

    def to_dict(self) -> dict[str, list[Any]]:
        """Returns all columns as lists by name, without another library."""
        return {name: self.column(name) for name in self.columns}

    def _repr_html_(self) -> str:
        columns = self.to_dict()
        head = "".join(f"<th>{_escape(name)}</th>" for name in columns)
        first = zip(*(column[:_SHOWN] for column in columns.values()))
        body = "".join("<tr>" + "".join(f"<td>{_escape(_short(value))}</td>" for value in row) + "</tr>" for row in first)
        more = f"<caption>{min(_SHOWN, len(self))} of {len(self)} rows</caption>"
        return f"<table>{more}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def to_arrow(self) -> Any:
        """Returns a ``pyarrow.Table``, without copying; needs pyarrow."""
        import pyarrow

        return pyarrow.table(self)

    def to_pandas(self) -> Any:
        """Returns a ``pandas.DataFrame``; needs pandas."""
        try:
            return self.to_arrow().to_pandas()
        except ImportError:
            import pandas

            return pandas.DataFrame(self.to_dict())

    def to_polars(self) -> Any:
        """Returns a ``polars.DataFrame``, without copying; needs polars."""
        import polars

        return polars.DataFrame(self)


class Picture:
    """An SVG picture, which notebooks show."""

    def __init__(self, svg: str) -> None:
        self._svg = svg

    @property
    def svg(self) -> str:
        """The SVG text."""
        return self._svg

    def save(self, path: Union[str, "_os.PathLike[str]"]) -> None:
        """Writes it to a file that ends in ``.svg`` or, if the program ``rsvg-convert`` is installed, in ``.png``."""
        name = _os.fspath(path)
        if name.lower().endswith(".svg"):
            content = self._svg.encode()
        elif name.lower().endswith(".png"):
            content = self._png()
        else:
            raise ValueError(f"{name} cannot be a picture: name a file that ends in .svg or .png")
        # Opened last, so that an error keeps an existing file.
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
    """The results of one run."""

    def __init__(self, native: _native.Run) -> None:
        self._native = native

    @property
    def table(self) -> Table:
        """A row for each figure."""
        return Table(self._native.table())

    def json(self) -> str:
        """Returns all results, as ``tandem-sim run --json`` writes them (docs/schemas/sim-run-1.json)."""
        return self._native.json()

    def to_dict(self) -> dict[str, Any]:
        """Returns the same as a dictionary."""
        read: dict[str, Any] = _json.loads(self.json())
        return read

    @property
    def decisions(self) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """The observations and decisions of the host's controller, by period; empty unless ``run(..., decisions=True)``."""
        return [(host, decisions) for host, decisions in _json.loads(self._native.decided())]

    def html(self) -> str:
        """Returns a page with charts, which opens offline."""
        return self._native.html("tandem_sched.run(…)")

    def __str__(self) -> str:
        return self._native.text()

    def _repr_html_(self) -> str:
        return _frame(self.html())


class Comparison:
    """Every metric of every VM under every combination. Its text is the output of ``tandem-sim compare``."""

    def __init__(self, native: _native.Comparison) -> None:
        self._native = native

    @property
    def table(self) -> Table:
        """A row for each figure of each run."""
        return Table(self._native.table())

    def json(self) -> str:
        """Returns means with intervals, as ``tandem-sim compare --json`` writes them (docs/schemas/sim-compare-1.json)."""
        return self._native.json()

    def to_dict(self) -> dict[str, Any]:
        """Returns the same as a dictionary."""
        read: dict[str, Any] = _json.loads(self.json())
        return read

    def text(self, metrics: Optional[Sequence[str]] = None) -> str:
        """Returns a table of these metrics for a terminal."""
        return self._native.text(_names(metrics))

    def html(self, metrics: Optional[Sequence[str]] = None) -> str:
        """Returns a page with charts of these metrics, which opens offline."""
        return self._native.html("tandem_sched.compare(…)", _names(metrics))

    def svg(self, metrics: Optional[Sequence[str]] = None) -> str:
        """Returns an SVG picture: lines over a varied number, else bars relative to the first combination."""
        return self._native.svg(_names(metrics))

    def picture(self, metrics: Optional[Sequence[str]] = None) -> Picture:
        """Returns the same as an object, which notebooks show and which can be saved."""
        return Picture(self.svg(metrics))

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return _frame(self.html())


class Sweep(Table):
    """The figures of a grid, or of a shard of it: a table with comparisons and pictures."""

    def __init__(self, native: _native.Sweep) -> None:
        super().__init__(native.table())
        self._sweep = native

    @property
    def comparison(self) -> Comparison:
        """The combinations with means and intervals; an error for a shard, which does not have all runs of a combination."""
        return Comparison(self._sweep.comparison())

    def picture(self, metrics: Optional[Sequence[str]] = None) -> Picture:
        """Returns a picture of these metrics: lines over a varied number, else bars relative to the first combination."""
        return self.comparison.picture(metrics)


def _names(metrics: Optional[Sequence[str]]) -> Optional[str]:
    return metrics if metrics is None or isinstance(metrics, str) else ",".join(metrics)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _frame(page: str) -> str:
    """Embeds a page in a notebook without changes of the notebook's styles."""
    return f'<iframe srcdoc="{_escape(page)}" style="width:100%;height:640px;border:0"></iframe>'
