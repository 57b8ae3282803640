"""The functions that tasks of the soak call in worker processes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray


class OnPurpose(Exception):
    """What a task raises because it was told to."""


class Unsendable:
    """A value that no other process can have."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.lock = threading.Lock()


def digest(value: Any) -> int:
    """Turn what a task returned into a number that depends on all of it."""
    if isinstance(value, Unsendable):
        return value.value
    if isinstance(value, dict):
        return sum(digest(part) for part in value.values())
    if isinstance(value, np.ndarray):
        weights = np.arange(1, value.size + 1, dtype=np.int64)
        return int((value.astype(np.int64).ravel() * weights % 1_000_003).sum() % 1_000_003)
    return len(value) if isinstance(value, str) else int(value)


def mix(number: int, length: int, *inputs: Any) -> NDArray[np.int64]:
    """Return an array that depends on all inputs."""
    start = number + sum(digest(value) for value in inputs)
    return np.arange(start, start + length, dtype=np.int64) % 10_007


def mix_object(number: int, length: int, *inputs: Any) -> dict[str, Any]:
    """Return an object of several buffers that depends on all inputs."""
    made = mix(number, length, *inputs)
    return {"made": made, "half": made[: length // 2], "text": "é" * (length % 1000), "number": number}


def mix_unsendable(number: int, length: int, *inputs: Any) -> Unsendable:
    """Return what cannot leave the process, and depends on all inputs."""
    return Unsendable(digest(mix(number, min(length, 1000), *inputs)))


def take(number: int, size_bytes: int, *inputs: Any) -> int:
    """Take memory that nobody is asked for, in steps, and some that is; return what depends on all inputs."""
    parts = [bytearray(1 << 20) for _ in range(size_bytes >> 20)]
    texts = [str(value) for value in range(size_bytes >> 10)]
    return digest(mix(number, (size_bytes >> 5) + 1, *inputs)) + len(parts) + len(texts[-1] if texts else "")


def fail(*inputs: Any) -> None:
    """Raise."""
    raise OnPurpose(sum(digest(value) for value in inputs))


def frame(part: int, rows: int) -> Any:
    """Return a part of a dataframe."""
    import pandas as pd

    numbers = np.arange(part * rows, (part + 1) * rows)
    return pd.DataFrame(
        {"x": np.sin(numbers), "y": numbers * 7919 % 1000, "key": numbers % 11, "name": (numbers % 5).astype(str)}
    )
