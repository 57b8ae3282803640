"""What goes wrong during the soak: killed workers, full disks, Ctrl-C; and who notices that nothing moves."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from dask.callbacks import Callback

from dask_mars import Runtime

Generator = np.random.Generator

#: How much longer than the watchdog's thread the one without the interpreter's lock waits.
_LAST_RESORT_S = 10.0
#: How often a kill waits for a worker that is up.
_PATIENCE = 0.8


class Cancelled(KeyboardInterrupt):
    """What Ctrl-C raises during the soak."""


class Killer:
    """Kills random workers of a runtime at random times, from a thread.

    Parameters
    ----------
    rng
        Where chance comes from.
    runtime
        Whose workers.

    Attributes
    ----------
    count : int
        How many it has killed.
    """

    def __init__(self, rng: Generator, runtime: Runtime) -> None:
        self._runtime = runtime
        # Drawn beforehand: a generator is not for several threads.
        self._delays_s: Sequence[float] = rng.exponential(0.15, int(rng.integers(1, 5)))
        self._victims: Sequence[int] = rng.integers(1 << 20, size=len(self._delays_s))
        #: Whether workers that are not up yet are spared. Where few get up the runtime gives up, and rightly.
        self._patient: Sequence[bool] = rng.random(len(self._delays_s)) < _PATIENCE
        self._ended = threading.Event()
        self.count = 0

    def _run(self) -> None:
        for delay_s, victim, patient in zip(self._delays_s, self._victims, self._patient, strict=True):
            while not self._ended.wait(delay_s):
                engine = self._runtime.engine()
                workers = [handle for handle in list(engine._registry.workers.values()) if handle.is_process]
                if workers and (workers[victim % len(workers)].ready or not patient):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(workers[victim % len(workers)].pid, signal.SIGKILL)
                        self.count += 1
                    break

    @contextlib.contextmanager
    def at_work(self) -> Iterator[Killer]:
        """Kill while the context is open."""
        thread = threading.Thread(target=self._run, name="soak-killer")
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join()


@contextlib.contextmanager
def full_disk(room_bytes: int) -> Iterator[None]:
    """Make this process's disk full for spilled values while the context is open.

    Parameters
    ----------
    room_bytes
        How much may be written first.
    """
    left = room_bytes
    writev = os.writev

    def write(descriptor: int, buffers: Sequence[Any]) -> int:
        nonlocal left
        left -= sum(map(len, buffers))
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return writev(descriptor, buffers)

    os.writev = write
    try:
        yield
    finally:
        os.writev = writev


def no_directory(folder: Path) -> Path:
    """Return a directory to spill into that cannot be made."""
    file = folder / "a-file"
    file.touch()
    return file / "spilled"


@contextlib.contextmanager
def interrupted(after_s: float) -> Iterator[None]:
    """Press Ctrl-C some time after the context is opened, unless it is closed first; call it in the main thread.

    Parameters
    ----------
    after_s
        How long after.

    Raises
    ------
    Cancelled
        It was pressed.
    """
    armed = True

    def handle(number: int, frame: FrameType | None) -> None:
        if armed:
            raise Cancelled

    before = signal.signal(signal.SIGINT, handle)
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    timer = threading.Timer(after_s, signal.pthread_kill, (main_thread, signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        armed = False
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGINT, before)


class CancelAfter(Callback):  # type: ignore[misc]
    """A callback that raises when so many tasks are done."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._left = count

    def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker_id: Any) -> None:
        self._left -= 1
        if self._left <= 0:
            raise Cancelled


@contextlib.contextmanager
def watchdog(limit_s: float, what: str, tell: Callable[[], object] = str) -> Iterator[None]:
    """End the process with the stacks of all threads if the context is open for too long.

    Parameters
    ----------
    limit_s
        How long is too long.
    what
        What to say is hanging.
    tell
        Asked for more to print. It may hang itself: that does not keep the process.
    """
    done = threading.Event()

    def watch() -> None:
        if not done.wait(limit_s):
            print(f"HANGS for {limit_s:g} s: {what}", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(all_threads=True)
            print(tell(), file=sys.stderr, flush=True)
            os._exit(3)

    thread = threading.Thread(target=watch, name="watchdog", daemon=True)
    thread.start()
    # Where the interpreter's lock is never given up no thread of Python's gets a word in.
    faulthandler.dump_traceback_later(limit_s + _LAST_RESORT_S, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        done.set()
        thread.join()
