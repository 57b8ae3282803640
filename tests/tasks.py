"""Functions for tests to run as tasks: importable, and seen from outside through files that they append to."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def note(path: str | Path, text: str = "x") -> None:
    """Append a line to a file, whole even when several processes do so at a time."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)


def notes(path: str | Path) -> list[str]:
    """Return the lines noted in a file."""
    try:
        return Path(path).read_text().splitlines()
    except FileNotFoundError:
        return []


def noted(path: str | Path, value: Any) -> Any:
    """Note a call and return the value."""
    note(path)
    return value


def note_and_grow(path: str | Path, number: int, size_bytes: int) -> int:
    """Note a number, and take memory in two steps."""
    note(path, str(number))
    arrays = [np.ones(size_bytes // 8) for _ in range(2)]
    return number * len(arrays) // 2


def note_name(path: str | Path, name: Any, *_: Any) -> Any:
    """Note a name and return it."""
    note(path, str(name))
    return name


def fail_first(path: str | Path, times: int, value: Any) -> Any:
    """Raise on the first calls, then return the value."""
    note(path)
    if len(notes(path)) <= times:
        raise OSError(f"failure {len(notes(path))}")
    return value


def fail_with(text: str, *_: Any) -> None:
    """Raise."""
    raise LookupError(text)


def die_first(path: str | Path, times: int, value: Any) -> Any:
    """Kill the process on the first calls, then return the value."""
    note(path, str(os.getpid()))
    if len(notes(path)) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def wait_for(path: str | Path, value: Any = None, timeout_s: float = 15.0) -> Any:
    """Wait until a file is there."""
    deadline = time.monotonic() + timeout_s
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(0.005)
    return value


def sum_after(begun: str | Path, path: str | Path, arrays: list[np.ndarray]) -> float:
    """Note the process, and return the sum of the first elements once a file is there."""
    note(begun, str(os.getpid()))
    wait_for(path)
    return float(sum(array[0] for array in arrays))


def large_array(megabytes: float, value: float = 1.0) -> np.ndarray:
    """Return an array of its own memory."""
    return np.full(int(megabytes * (1 << 17)), value)


def pid_of(*_: Any) -> int:
    """Return the process that this runs in."""
    return os.getpid()


def pid_after(seconds: float, *_: Any) -> int:
    """Return the process that this runs in, a while later."""
    time.sleep(seconds)
    return os.getpid()


def call_after(seconds: float, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function a while later."""
    time.sleep(seconds)
    return function(*args)


def alone(path: str | Path, lock: Any, number: int) -> int:
    """Note when a lock is taken and given back: where it locks, each pair of lines is of one task."""
    with lock:
        note(path, str(number))
        time.sleep(0.02)
        note(path, str(number))
    return os.getpid()


def linger(begun: str | Path, end: str | Path, value: Any) -> Any:
    """Note the process, and return the value once a file is there."""
    note(begun, str(os.getpid()))
    return wait_for(end, value, 60)


def held_by(lock: Any) -> int:
    """Take a lock and give it back."""
    with lock:
        return 1


def pass_on(array: np.ndarray, path: str | Path, gate: str | Path | None = None) -> np.ndarray:
    """Note the process, wait until a file is there, if one is named, and return a copy of the array."""
    note(path, str(os.getpid()))
    if gate is not None:
        wait_for(gate, timeout_s=60.0)
    return array.copy()


def block_when_let(folder: str | Path, block_id: tuple[int, ...] = ()) -> np.ndarray:
    """Return a block of a vector, once a file with its number is there."""
    print(f"block {block_id[0]} begins", flush=True)
    wait_for(Path(folder) / str(block_id[0]), timeout_s=60)
    return np.full(1, float(block_id[0]))


def fail_on_block(block: np.ndarray) -> np.ndarray:
    """Raise for a block that has a 2."""
    if (block == 2).any():
        raise ValueError("two is not allowed here")
    return block


def pass_on_slowly(array: np.ndarray, path: str | Path, seconds: float) -> np.ndarray:
    """Note the process, and return the array a while later."""
    note(path, str(os.getpid()))
    time.sleep(seconds)
    return array


#: Time after which threads that wait for each other fail, in seconds.
PATIENCE_S = 30


class Session:
    """Cannot be pickled. Its method returns once two threads are in it."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=PATIENCE_S)

    def meet(self, value: Any) -> Any:
        self._barrier.wait()
        return value


def meet_in(session: Session, value: Any) -> Any:
    return session.meet(value)
