"""The checkpoints in a directory, and their removal."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dask.utils import format_bytes, format_time

from dask_mars.checkpointing.directory import ComputationDirectory, computations, directory_of
from dask_mars.checkpointing.journal import Saved
from dask_mars.errors import CheckpointInUse
from dask_mars.tables import Table

_HEADINGS = ("id", "what", "age", "chunks", "size", "saves", "")


class SavedComputation(NamedTuple):
    """The checkpoint of one computation.

    Attributes
    ----------
    id : str
        Name of its directory.
    name : str
        Its last layers.
    begun_s : float
        Time of its first start, in seconds since 1970; 0 if unknown.
    attempts : int
        Number of starts.
    chunks : int
        Number of saved chunks.
    size_bytes : int
        Size on disk, in bytes.
    saves_s : float
        Work that need not be done again, in seconds.
    versions : dict
        Versions of Python and of libraries at the last start.
    in_use : bool
        Whether a process computes it now.
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
        """Remove the checkpoint.

        Raises
        ------
        CheckpointInUse
            A process computes it.
        """
        ComputationDirectory(self.path.parent, self.id).discard()


class SavedComputations(Sequence[SavedComputation]):
    """The checkpoints in a directory; ``print`` and notebooks show them as a table."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._found = [_described(each) for each in computations(directory)]

    def __getitem__(self, index: Any) -> Any:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def remove(self) -> int:
        """Remove all checkpoints that no process computes; return their number."""
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
        """Return the cells of a table."""
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
        # Not as `Table` in terminals: an id must not be broken across lines, so that users can copy it.
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
    """Return the checkpoints in a directory, with the time that each saves.

    Parameters
    ----------
    directory : str or Path
        As for `checkpoint`.

    Returns
    -------
    SavedComputations
        A sequence of `SavedComputation`, each with ``id``, ``name``, ``chunks``, ``size_bytes``, ``saves_s``,
        ``in_use`` and ``remove()``. Its own ``remove()`` removes all that no process uses.

    Raises
    ------
    CheckpointFailed
        The directory cannot be read.
    ValueError
        It is the address of a remote file system.

    Examples
    --------
    >>> import dask_mars
    >>> dask_mars.checkpoints("there-is-none")
    no checkpoints in ...there-is-none
    """
    return SavedComputations(directory_of(directory))
