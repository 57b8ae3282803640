"""Worker processes as the engine sees them: their start, their end and their exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection
from typing import ClassVar

from dask_mars.engine.launching import ForkedProcess, launch
from dask_mars.engine.templates import templates
from dask_mars.engine.worker_handle import WorkerHandle, connected
from dask_mars.protocol.control import starting_at
from dask_mars.protocol.worker_environment import worker_environment
from dask_mars.worker.interrupts import SIGNAL


class ProcessHandle(WorkerHandle):
    """One worker process. It imports its modules, and then waits for its start message."""

    is_process: ClassVar[bool] = True

    def __init__(self, id: int, control: int, descriptors: Collection[int], modules: Collection[str] = ()) -> None:
        ours, theirs = connected()
        options = {
            "path": sys.path,
            "socket": theirs.fileno(),
            "parent": os.getpid(),
            "modules": list(modules),
            "control": control,
            "starting_at": starting_at(id),
        }
        descriptors = (theirs.fileno(), control, *descriptors)
        #: Its activity when it was ended for lack of progress, else None.
        self.stuck_in: str | None = None
        self.process: subprocess.Popen[bytes] | ForkedProcess
        try:
            environment = worker_environment(os.environ)
            pid = templates.fork(options, environment, descriptors)
            if pid is not None:
                self.process = ForkedProcess(pid)
            else:
                self.process = launch(options, environment, descriptors)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        super().__init__(id, ours)
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
    """Return a descriptor that becomes readable when the process ends, where the system supports that."""
    # The end of the socket's stream tells it too, unless a task left a process behind that inherited the socket.
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
