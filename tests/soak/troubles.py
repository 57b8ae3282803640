"""What goes wrong during the soak: killed workers, full disks, Ctrl-C; and who notices that nothing moves."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from dask.callbacks import Callback

from dask_mars import Runtime

#: How much longer than the watchdog's thread the one without the interpreter's lock waits.
_LAST_RESORT_S = 10.0


class Cancelled(KeyboardInterrupt):
    """What Ctrl-C raises during the soak."""


class Killer:
    """Kills random workers of a runtime while something is computed."""

    def __init__(self, runtime: Runtime, seed: int, every_s: float, patience: float = 1.0) -> None:
        self._runtime, self._chance = runtime, random.Random(seed)
        #: Mean seconds between kills, and how often a worker that is not up yet is spared.
        self._every_s, self._patience = every_s, patience
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="killer")
        self._left = 0
        self.count = 0

    def _run(self) -> None:
        while not self._ended.wait(self._chance.expovariate(1 / self._every_s)):
            if self._left <= 0:
                continue
            # Where few get up the runtime gives up, and rightly.
            patient = self._chance.random() < self._patience
            workers = [it for it in list(self._runtime.engine()._registry.workers.values()) if it.is_process]
            workers = [worker for worker in workers if worker.ready or not patient]
            if workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._chance.choice(workers).pid, signal.SIGKILL)
                    self.count += 1
                    self._left -= 1

    @contextlib.contextmanager
    def at_work(self, most: int) -> Iterator[None]:
        """Let the thread kill up to this number of workers within the context."""
        self._left = most
        try:
            yield
        finally:
            self._left = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[Killer]:
        """Have its thread run while the context is open."""
        self._thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._thread.join()


@contextlib.contextmanager
def full_disk(room_bytes: int) -> Iterator[None]:
    """Make this process's disk full for spilled values while the context is open."""
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
    loop = folder / "loop"
    loop.symlink_to(loop)
    return loop / "spilled"


@contextlib.contextmanager
def interrupted(after_s: float) -> Iterator[None]:
    """Press Ctrl-C in the main thread some time after the context is opened, unless it is closed first."""
    armed = True

    def handle(number: int, frame: FrameType | None) -> None:
        if armed:
            raise Cancelled

    before = signal.signal(signal.SIGINT, handle)
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    timer = threading.Timer(after_s, signal.pthread_kill, (main_thread, signal.SIGINT))
    try:
        timer.start()
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
    """End the process with the stacks of all threads if the context is open for too long."""
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
