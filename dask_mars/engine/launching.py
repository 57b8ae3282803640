"""New interpreters for worker processes and their template, and processes that are forked from that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping
from typing import Any

from dask_mars.limits import forget_fork, note_fork

# The import path comes first, so that a worker finds the client's modules, dask_mars included. `Progress` finds
# none: it records each import in the control page, so that the engine can distinguish slow from stuck.
_BOOT = """
import json, os, struct, sys

is_dask_mars_worker = True
options = json.loads(sys.argv[1])
sys.path[:] = options["path"]
if "control" not in options:
    import ctypes
    # PR_SET_PDEATHSIG: the system ends this process, which imports much, with the program.
    ctypes.CDLL(None).prctl(1, 9)
    if os.getppid() != options["parent"]:
        os._exit(1)
    from dask_mars.worker.template import serve
    options = serve(options)

class Progress:
    modules = 0

    def find_spec(self, name, path=None, target=None):
        self.modules += 1
        noted = struct.pack("=I28s", self.modules, name.encode("utf-8", "replace")[-28:])
        os.pwrite(options["control"], noted, options["starting_at"])

progress = Progress()
sys.meta_path.insert(0, progress)
from dask_mars.worker.main import main

main(options, lambda: sys.meta_path.remove(progress))
"""

_launching = threading.local()


def is_launching() -> bool:
    """Return whether this thread starts an interpreter, which needs the descriptors of the engine."""
    return getattr(_launching, "is_so", False)


def launch(
    options: Mapping[str, Any],
    environment: Mapping[str, str],
    descriptors: Collection[int],
    output: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start an interpreter for a worker process, or for a template where `options` have no "control"."""
    _launching.is_so = True
    try:
        # Not multiprocessing: its spawn imports the user's script again, and needs a guard in it.
        return subprocess.Popen(
            [
                sys.executable,
                *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                "-c",
                _BOOT,
                json.dumps(options),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            pass_fds=descriptors,
            # Ctrl-C in a terminal concerns the client alone.
            process_group=0,
        )
    finally:
        _launching.is_so = False


class ForkedProcess:
    """A child of this process that a template has forked, with a part of the methods of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        note_fork(pid)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, None while the process lives."""
        return self._collect(os.WNOHANG)

    def wait(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        code = self._collect(0)
        assert code is not None
        return code

    def _collect(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:
                # Other code has already reaped it, or the user's process ignores SIGCHLD.
                self.returncode = 0
            else:
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            if self.returncode is not None:
                forget_fork(self.pid)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send the process a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process at once."""
        self.send_signal(signal.SIGKILL)
