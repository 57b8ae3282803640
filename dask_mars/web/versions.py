"""The versions that whoever pickles and whoever reads pickles must have in common."""

from __future__ import annotations

import platform

import dask

from dask_mars.version import __version__


def versions() -> dict[str, str]:
    """Return them by the names of what they are of."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"dask_mars": __version__, "dask": dask.__version__, "python": python}
