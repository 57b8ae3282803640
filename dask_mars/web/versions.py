"""Versions that must be equal in the processes that pickle and unpickle."""

from __future__ import annotations

import platform

import dask

from dask_mars.version import __version__


def versions() -> dict[str, str]:
    """Return the versions by package."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"dask_mars": __version__, "dask": dask.__version__, "python": python}
