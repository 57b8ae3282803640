"""What is in a directory of checkpoints, and its removal."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

from dask.utils import format_bytes, format_time

from dask_mars.checkpointing.directory import ComputationDirectory, computations, directory_of
from dask_mars.checkpointing.journal import Saved
from dask_mars.errors import CheckpointInUse
from dask_mars.tables import Table

_HEADINGS = ("id", "what", "age", "chunks", "size", "saves", "")


class SavedComputation(NamedTuple):
    """What is saved of a computation.

    Attributes
    ----------
    id : str
        The name of its directory.
    name : str
        The last of its layers.
    begun_s : float
        When it was begun first, in seconds since 1970; 0 if that is not known.
    attempts : int
        How often it was begun.
    chunks : int
        How many chunks are saved.
    size_bytes : int
        What that takes on disk.
    saves_s : float
        How many seconds of work need not be done again.
    versions : dict
        Of Python and of libraries, when it was begun last.
    in_use : bool
        Whether a process computes it at this moment.
    path : Path
        Its directory.
    """

    id: str
    name: str
    begun_s: float
    attempts: int
    chunks: int
    size_bytes: int
    saves_s: float
    versions: dict[str, str]
    in_use: bool
    path: Path

    def remove(self) -> None:
        """Remove it.

        Raises
        ------
        CheckpointInUse
            A process computes it.
        """
        ComputationDirectory(self.path.parent, self.id).discard()


class SavedComputations(Sequence[SavedComputation]):
    """The checkpoints in a directory; ``print`` and notebooks show them as a table.

    Parameters
    ----------
    directory : Path
        Which.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._found = [_described(each) for each in computations(directory)]

    @overload
    def __getitem__(self, index: int) -> SavedComputation: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SavedComputation]: ...
    def __getitem__(self, index: int | slice) -> SavedComputation | Sequence[SavedComputation]:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[SavedComputation]:
        return iter(self._found)

    def remove(self) -> int:
        """Remove all that no process computes at this moment; return how many that were."""
        removed = 0
        for each in self._found:
            try:
                each.remove()
            except CheckpointInUse:
                continue
            removed += 1
        self._found = [_described(each) for each in computations(self.directory)]
        return removed

    def rows(self, now_s: float) -> list[tuple[str, ...]]:
        """Return the cells of a table.

        Parameters
        ----------
        now_s : float
            The time, in seconds since 1970.
        """
        return [
            (
                each.id,
                each.name,
                format_time(max(now_s - each.begun_s, 0.0)) if each.begun_s else "?",
                f"{each.chunks:,}",
                format_bytes(each.size_bytes),
                format_time(each.saves_s),
                "in use" if each.in_use else "",
            )
            for each in self._found
        ]

    def __repr__(self) -> str:
        if not self._found:
            return f"no checkpoints in {self.directory}"
        rows = [_HEADINGS, *self.rows(time.time())]
        # Not as `Table` has it in terminals: an id is there to be copied, and may not be broken across lines.
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join([cell.ljust(width) for cell, width in zip(row, widths, strict=True)]) for row in rows]
        return "\n".join([f"checkpoints in {self.directory}", *[line.rstrip() for line in lines]])

    def _repr_html_(self) -> str:
        return Table(_HEADINGS, self.rows(time.time()), f"checkpoints in {self.directory}", texts=2).as_html()


def _described(directory: ComputationDirectory) -> SavedComputation:
    about = directory.about()
    saved: dict[Any, Saved] = directory.read()[0]
    return SavedComputation(
        directory.identity,
        str(about.get("name", "")),
        _number(about.get("begun")),
        int(_number(about.get("attempts"))),
        len(saved),
        directory.size_bytes(),
        sum([record.risk_s for record in saved.values()]),
        about["versions"] if isinstance(about.get("versions"), dict) else {},
        directory.is_in_use(),
        directory.path,
    )


def _number(found: Any) -> float:
    return float(found) if isinstance(found, int | float) else 0.0


def checkpoints(directory: str | os.PathLike[str]) -> SavedComputations:
    """Return what is saved in a directory, how much time it would save, and what removes it.

    Parameters
    ----------
    directory : str or Path
        As `checkpoint` takes it.

    Returns
    -------
    SavedComputations
        A sequence of `SavedComputation`, each with ``id``, ``name``, ``chunks``, ``size_bytes``, ``saves_s``,
        ``in_use`` and ``remove()``. Its own ``remove()`` removes all that nobody uses.

    Raises
    ------
    CheckpointFailed
        The directory cannot be read.
    ValueError
        It is the address of something that is not on a disk.

    Examples
    --------
    >>> import dask_mars
    >>> dask_mars.checkpoints("there-is-none")
    no checkpoints in ...there-is-none
    """
    return SavedComputations(directory_of(directory))


__all__ = ["SavedComputation", "SavedComputations", "checkpoints"]
