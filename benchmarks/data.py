"""Makes the files that workloads read, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.workload import Workload
from benchmarks.workloads import CATALOGUE

_LAST_CHARACTERS = 1_000


class DataNotMade(RuntimeError):
    """The files of a workload could not be made."""


def make_data(name: str, scale: float, directory: Path) -> None:
    """Make what a workload reads, unless it is there.

    Parameters
    ----------
    name
        A key of `CATALOGUE`.
    scale
        As of `Job`.
    directory
        Where to.

    Raises
    ------
    DataNotMade
        With what is said on standard error.
    """
    subject = CATALOGUE[name]
    if not isinstance(subject, Workload) or subject.make is None:
        return
    # Apart, so that this process, which lives on, does not keep what libraries leave in memory.
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.data", name, str(scale), str(directory)],
        cwd=Path(__file__).resolve().parent.parent,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise DataNotMade(f"the data of {name}: {done.stderr[-_LAST_CHARACTERS:].strip()}")


def main(name: str, scale: str, directory: str) -> None:
    """Make the files here."""
    subject = CATALOGUE[name]
    assert isinstance(subject, Workload)
    assert subject.make is not None
    subject.make(float(scale), Path(directory))


if __name__ == "__main__":
    main(*sys.argv[1:])
