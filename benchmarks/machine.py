"""Facts about the machine and the software, without which a figure means nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from typing import Any

import psutil

from benchmarks.measure import ONE_THREAD_EACH
from benchmarks.memory import memory_kind

_PACKAGES = ("dask", "distributed", "numpy", "dask_mars")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pass
    # A source checkout that is on the path and not installed.
    try:
        module = importlib.import_module(package)
    except ImportError:
        return None
    version = getattr(module, "__version__", None)
    return None if version is None else str(version)


def machine_facts() -> dict[str, Any]:
    """Gather what a reader needs to judge the figures.

    Returns
    -------
    dict
        Plain data, ready for JSON.
    """
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu_count": os.cpu_count(),
        "cpu_usable": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "memory_figure": memory_kind(),
        "python": platform.python_version(),
        "versions": {package: _version(package) for package in _PACKAGES},
        "environment": ONE_THREAD_EACH,
    }


def describe_machine(facts: dict[str, Any]) -> str:
    """Put facts about the machine and the software into a line.

    Parameters
    ----------
    facts
        As `machine_facts` gives them.

    Returns
    -------
    str
        Without an end: what was run on it may follow.
    """
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)
    return (
        f"{facts['system']}, {facts['cpu_usable']} CPUs, {facts['memory_bytes'] / 2**30:.0f} GiB, "
        f"Python {facts['python']}, {versions}"
    )
