"""`report`: a page about all computations within a context."""

from __future__ import annotations

import logging
import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import dask
import numpy
from dask.callbacks import Callback

from dask_mars import units
from dask_mars.engine.listeners import listeners
from dask_mars.files import replace_file
from dask_mars.locking import Lock
from dask_mars.observe import report_page
from dask_mars.observe.recorded import Recorded, recorded_of
from dask_mars.observe.recording import Recording
from dask_mars.version import __version__

logger = logging.getLogger(__name__)

#: Packages whose versions are listed if they are loaded.
_PACKAGES = ("distributed", "xarray", "zarr", "pandas", "scipy", "numba", "h5py", "pyarrow")
#: Parts of setting names whose values are secret.
_SECRET = ("password", "secret", "token", "credential")


class report(Callback):  # type: ignore[misc]  # noqa: N801
    """Writes a page about the computations of this process's engines: one self-contained file.

    It has a timeline by worker, memory over time against the limit, layers by time and bytes, spilled data,
    failures, retries and deaths of workers, versions and settings. It is a context manager; and a callback of
    Dask, by ``callbacks=[report("report.html")]`` for one computation, or by `register` for all until
    `unregister`; each of them replaces the page.

    Parameters
    ----------
    path : str or Path
        Path of the file, which is replaced. ``{pid}`` in it stands for the process id.
    title : str, optional
        Heading of the page.

    Attributes
    ----------
    path : Path
        Absolute path of the file.
    recorded : Recorded or None
        The data of the page, once it is written.

    Raises
    ------
    OSError
        The file cannot be written; this is checked when the context begins.

    Examples
    --------
    >>> import dask.array as da, dask_mars
    >>> from dask_mars.diagnostics import report
    >>> with report("report.html"):  # doctest: +SKIP
    ...     da.ones((2000, 2000), chunks=500).sum().compute(scheduler=dask_mars.get)
    """

    def __init__(self, path: str | os.PathLike[str], title: str = "dask_mars report") -> None:
        super().__init__()
        self.path = Path(os.fspath(path).replace("{pid}", str(os.getpid()))).expanduser().absolute()
        self.recorded: Recorded | None = None
        self._title = title
        self._lock = Lock()
        self._recording: Recording | None = None
        #: Number of open contexts and computations, which may be nested.
        self._depth = 0
        self._when = ""

    # -- as a context manager ---------------------------------------------------------------------------------

    def __enter__(self) -> report:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end("finished" if kind is None else f"ended by {kind.__name__}", kind is not None)

    # -- as a callback of Dask --------------------------------------------------------------------------------

    def _start(self, dsk: Mapping[Any, Any]) -> None:
        self._begin()

    def _finish(self, dsk: Any, state: Mapping[str, Any], failed: bool) -> None:
        self._end("failed" if failed else "finished", failed)

    # -- both -------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        with self._lock:
            if self._depth == 0:
                self._when = time.strftime("%Y-%m-%d %H:%M:%S")
                # An error now is better than one after hours.
                _write(self.path, report_page.placeholder(self._title, self._when))
                self._recording = Recording()
                listeners.add(self._recording)
            self._depth += 1

    def _end(self, outcome: str, has_failed: bool) -> None:
        with self._lock:
            self._depth -= 1
            recording = self._recording
            if self._depth or recording is None:
                return
            self._recording = None
            listeners.remove(recording)
            self.recorded = recorded_of(recording)
            facts = {"Versions": _versions(), "Settings": _settings()}
            try:
                _write(self.path, report_page.as_html(self.recorded, self._title, self._when, outcome, facts))
            except OSError as error:
                if not has_failed:
                    raise
                # The computation's own error is more important.
                logger.warning("%s", error)

    def __repr__(self) -> str:
        if self.recorded is None:
            return f"<report {self.path}: {'open' if self._depth else 'not begun'}>"
        chunks = units.plural(self.recorded.chunks, "chunk")
        return f"<report {self.path}: {chunks} in {units.duration(self.recorded.length_s)}>"


def _write(path: Path, text: str) -> None:
    """Replace a file."""
    if path.is_dir():
        raise IsADirectoryError(f"the report cannot be written to {path}: it is a directory, not a file")
    try:
        replace_file(path, text.encode())
    except OSError as error:
        reason = f"the report cannot be written to {path}: {error.strerror or error}"
        raise type(error)(error.errno, reason) from None


def _versions() -> dict[str, str]:
    found = {
        "dask_mars": __version__,
        "dask": dask.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    for name in _PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found


def _settings() -> dict[str, str]:
    found: dict[str, str] = {}

    def add(prefix: str, settings: Mapping[str, Any]) -> None:
        for name, value in settings.items():
            if isinstance(value, Mapping):
                add(f"{prefix}{name}.", value)
            elif not any(word in name.lower() for word in _SECRET):
                found[f"{prefix}{name}"] = "null" if value is None else str(value)

    add("dask-mars.", dask.config.get("dask-mars", {}))
    return found
