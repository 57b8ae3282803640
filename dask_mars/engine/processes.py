"""Worker processes as the engine sees them: their start, their end and their exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Collection
from typing import ClassVar

from dask_mars.engine.worker_handle import WorkerHandle, connected
from dask_mars.protocol.ambient import worker_environment
from dask_mars.protocol.control import starting_at
from dask_mars.worker.interrupts import SIGNAL

# The import path comes first, so that a worker finds the client's modules, dask_mars included. `Progress` finds
# none: it records each import in the control page, so that the engine tells slow from stuck.
_BOOT = """
import json, os, struct, sys

options = json.loads(sys.argv[1])
sys.path[:] = options["path"]

class Progress:
    modules = 0

    def find_spec(self, name, path=None, target=None):
        self.modules += 1
        noted = struct.pack("=I28s", self.modules, name.encode("utf-8", "replace")[-28:])
        os.pwrite(options["control"], noted, options["starting_at"])

progress = Progress()
sys.meta_path.insert(0, progress)
from dask_mars.worker.main import main

main(options["socket"], options["parent"], options["modules"], lambda: sys.meta_path.remove(progress))
"""


_launching = threading.local()


def is_launching() -> bool:
    """Return whether this thread runs a worker process, whose fork needs the descriptors of the engine."""
    return getattr(_launching, "is_so", False)


class ProcessHandle(WorkerHandle):
    """One worker process. It imports its modules, and then waits for its start message."""

    is_process: ClassVar[bool] = True

    def __init__(
        self, number: int, control: int, descriptors: Collection[int], modules: Collection[str] = ()
    ) -> None:
        ours, theirs = connected()
        options = json.dumps(
            {
                "path": sys.path,
                "socket": theirs.fileno(),
                "parent": os.getpid(),
                "modules": list(modules),
                "control": control,
                "starting_at": starting_at(number),
            }
        )
        #: Its activity when it was ended for lack of progress, else None.
        self.stuck_in: str | None = None
        _launching.is_so = True
        # Not multiprocessing: its spawn imports the user's script again, and needs a guard in it.
        try:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                    "-c",
                    _BOOT,
                    options,
                ],
                stdin=subprocess.DEVNULL,
                env=worker_environment(os.environ),
                pass_fds=(theirs.fileno(), control, *descriptors),
                # Ctrl-C in a terminal concerns the client alone.
                process_group=0,
            )
        except OSError:
            ours.close()
            raise
        finally:
            _launching.is_so = False
            theirs.close()
        super().__init__(number, ours)
        self.pid = self.process.pid
        self.exit_descriptor = _watch_exit(self.pid)

    def interrupt(self) -> None:
        """Make the process check whether to interrupt its task."""
        self.process.send_signal(SIGNAL)

    def pause(self) -> None:
        """Stop the process until `resume`."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a paused process."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self.process.poll() is not None

    def close(self) -> int:
        """Collect the process, ending it if necessary, and return its exit code."""
        if self.process.poll() is None:
            self.process.kill()
        code = self.process.wait()
        self.close_descriptors()
        return code

    def close_descriptors(self) -> None:
        """Close this process's ends of everything."""
        super().close_descriptors()
        if self.exit_descriptor is not None:
            os.close(self.exit_descriptor)
            self.exit_descriptor = None


def _watch_exit(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends, where the system supports that.

    The end of the socket's stream tells it too, unless a task left a process behind that inherited the socket.
    """
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


__all__ = ["ProcessHandle", "is_launching"]
