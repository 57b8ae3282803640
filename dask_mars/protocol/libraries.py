"""The libraries that a template of worker processes imports after the program has imported them.

They start no threads and open no files at import, with `QUIET`; the template's fork checks that. The import of
dask_mars loads this module, so it imports little.
"""

from __future__ import annotations

import sys

#: Modules, and packages of which subpackages that the program imports count as well.
_MODULES = frozenset(
    {"bottleneck", "cftime", "dask.bag", "dask.dataframe", "dask_array", "flox", "fsspec", "numba", "numbagg"}
    | {"numcodecs", "numpy_groupies", "pandas", "xarray", "zarr"}
)
_PACKAGES = frozenset({"pyarrow", "scipy", "skimage", "sklearn"})
_NOT_FOR_USERS = frozenset({"conftest", "testing", "tests"})
#: Folders of installed packages: modules elsewhere are the user's own, which may change. Parsing paths would take
#: 10 ms at the first computation.
SITE_FOLDERS = ("/site-packages/", "/dist-packages/")
#: Environment in which these libraries start no threads at import: Arrow's allocator starts one otherwise.
QUIET = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}


def is_library(name: str) -> bool:
    """Return whether a module is, by its name, one that a template may import."""
    if name in _MODULES or name in _PACKAGES:
        return True
    package, _, part = name.partition(".")
    return package in _PACKAGES and "." not in part and part[:1] not in ("_", "") and part not in _NOT_FOR_USERS


def name_in_pickles(name: str) -> bytes:
    """Return the text by which pickles refer to a library: its package, as functions import other parts of it."""
    return (name if name.startswith("dask") else name.partition(".")[0]).encode()


def installed_at(name: str) -> str | None:
    """Return the file of an imported module, None unless it is among installed packages."""
    origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
    is_installed = type(origin) is str and any(folder in origin for folder in SITE_FOLDERS)
    return origin if is_installed else None


def imported() -> dict[str, str]:
    """Return the files of the libraries that this process has imported, in the order of their imports."""
    names = [name for name in sys.modules.copy() if is_library(name)]
    return {name: origin for name in names if (origin := installed_at(name)) is not None}
