"""A progress bar: tqdm's if it is installed, which also works in notebooks; else a line on a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Callable, Optional, Type, Union

Listener = Callable[[float, float, str], object]


class Bar:
    """A context manager that draws the bar; entering it returns the function to call."""

    def __init__(self, progress: Union[bool, Listener], unit: str = "s") -> None:
        self._progress = progress
        self._unit = unit
        self._bar: Any = None
        self._drawn = False

    @classmethod
    def of(cls, progress: Union[bool, Listener], unit: str = "s") -> "Bar":
        """Makes a bar from the argument of a caller: whether to draw, or a function. The unit is simulated seconds or shards."""
        return cls(progress, unit)

    def __enter__(self) -> Optional[Listener]:
        if callable(self._progress):
            return self._progress
        return self._draw if self._progress else None

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._drawn:
            print(file=sys.stderr)

    def _draw(self, done: float, total: float, what: str) -> None:
        if self._bar is None and not self._drawn:
            try:
                from tqdm.auto import tqdm
            except ImportError:
                pass
            else:
                self._bar = tqdm(total=total, desc=what, unit=self._unit, unit_scale=True)
        if self._bar is not None:
            self._bar.total = total
            self._bar.update(done - self._bar.n)
        elif sys.stderr.isatty():
            self._drawn = True
            part = done / total if total else 0.0
            unit = "simulated seconds" if self._unit == "s" else self._unit
            print(f"\r{what}: {part:4.0%} of {total:g} {unit}", end="", file=sys.stderr, flush=True)
