"""The C extensions: which are missing, the consequences, and the remedy."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import warnings
from pathlib import Path

from dask_mars.errors import MissingExtensionWarning
from dask_mars.import_locks import is_loaded

#: Consequence of each missing extension.
_WITHOUT = {
    "dask_mars.store._arena": (
        "results are copied into shared memory, and workers that take too much memory are ended instead of waiting"
    ),
    "dask_mars.expressions._native": "chains of elementwise functions take several times as long",
    "dask_mars.expressions._pcg64": "random numbers take several times as long",
}


@functools.cache
def missing_extensions() -> tuple[str, ...]:
    """Return the names of the extensions that cannot be imported."""
    return tuple([name for name in _WITHOUT if not has_extension(name)])


@functools.cache
def warn_of_missing_extensions() -> None:
    """Warn, once in this process, if extensions are missing."""
    missing = missing_extensions()
    if missing:
        lost = "; ".join(f"without {name} {_WITHOUT[name]}" for name in missing)
        warnings.warn(
            f"dask_mars has no C extensions in {Path(__file__).parent}: {lost}. If that is a clone in which "
            "Python has been started, and not the installed package, start it elsewhere, or install the clone "
            "with --editable. Else install a C compiler and Python's headers "
            "(gcc and python3-dev on Debian and Ubuntu, gcc and python3-devel on Fedora, Xcode's tools on macOS), "
            "and then dask_mars again (pip install --force-reinstall --no-deps). To do without: "
            'warnings.filterwarnings("ignore", category=dask_mars.errors.MissingExtensionWarning)',
            MissingExtensionWarning,
            stacklevel=3,
        )


@functools.cache
def has_extension(name: str) -> bool:
    """Return whether an extension can be imported; before NumPy is imported, whether its file is there."""
    if not is_loaded("numpy"):
        return importlib.util.find_spec(name) is not None
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True
