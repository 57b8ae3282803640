"""Which layer each chunk of a graph belongs to, and what is known of layers: added up when somebody asks."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Collection, Sequence
from itertools import islice

import numpy as np
from dask.utils import key_split

from dask_mars.client.records import LayerCounts
from dask_mars.graph.chunks import Key

#: Beyond so many, layers of the same label are counted together.
_MOST_LAYERS = 500
#: How many chunks are looked at between two looks at the clock.
_STEP = 10_000
#: Chunks that are no tasks have none.
NO_LAYER = -1


def label_of(name: str) -> str:
    """Return what to call a layer: its name without what tells it from others of its kind.

    >>> label_of("sum-b89ad269cb258249afb99235e331261b"), label_of("finalize-hlgfinalizecompute")
    ('sum', 'finalize')
    """
    # Dask names the last step of all after two of its own classes.
    return str(key_split(name)).removesuffix("-hlgfinalizecompute")


class LayerIndex:
    """Which layer each chunk of a graph belongs to, found out as far as there is time.

    Tasks whose keys are no tuples, those of `dask.delayed`, make layers by the names of their functions.

    Parameters
    ----------
    keys : sequence of key
        Of all chunks.
    operand_of : sequence of int
        Negative for chunks that are known from the start.

    Attributes
    ----------
    names : list of str
        Of layers, by their numbers.
    keys : sequence of key
        As given.
    numbers : array
        Of the layer of each chunk that has been looked at, or `NO_LAYER`.
    """

    def __init__(self, keys: Sequence[Key], operand_of: Sequence[int]) -> None:
        self.names: list[str] = []
        self.numbers = array("i")
        self.keys = keys
        self._operand_of = operand_of
        self._by_head: dict[Key, int] = {}
        self._by_name: dict[str, int] = {}
        self._lock = threading.Lock()

    def look(self, seconds: float | None = None) -> bool:
        """Go on for some time, or to the end. Return whether all chunks have been looked at."""
        end_s = None if seconds is None else time.perf_counter() + seconds
        with self._lock:
            count = len(self.keys)
            while len(self.numbers) < count:
                self._look_at(len(self.numbers), len(self.numbers) + _STEP)
                if end_s is not None and time.perf_counter() >= end_s:
                    break
            return len(self.numbers) == count

    def _look_at(self, start: int, stop: int) -> None:
        found = []
        last: object = self
        number = NO_LAYER
        for key, operand in zip(self.keys[start:stop], islice(self._operand_of, start, stop), strict=True):
            if operand < 0:
                found.append(NO_LAYER)
                continue
            head = key[0] if type(key) is tuple and key else key
            # Those of a layer have the very same name, and mostly follow each other.
            if head is not last:
                known = self._by_head.get(head)
                number = self._number(head, head is key) if known is None else known
                last = head
            found.append(number)
        self.numbers.extend(found)

    def _number(self, head: Key, is_whole: bool) -> int:
        # The names of functions are few, those of single tasks as many as there are.
        by_label = is_whole or len(self.names) >= _MOST_LAYERS
        name = str(key_split(head)) if by_label else str(head)
        number = self._by_name.get(name)
        if number is None:
            number = self._by_name[name] = len(self.names)
            self.names.append(name)
        if len(self._by_head) < _STEP:
            self._by_head[head] = number
        return number

    def count(
        self,
        durations_s: array[float],
        stored_bytes: array[int],
        running: Collection[int] = (),
        failed: Collection[int] = (),
    ) -> list[LayerCounts]:
        """Add up by layer what is known of chunks, as far as they have been looked at."""
        numbers = np.array(self.numbers)
        known, layers = len(numbers), len(self.names)
        durations = np.asarray(durations_s)[:known]
        is_task = numbers >= 0
        done = is_task & (durations >= 0)
        of_done = numbers[done]
        columns = (
            np.bincount(numbers[is_task], minlength=layers),
            np.bincount(of_done, minlength=layers),
            self._count(running, layers),
            self._count(failed, layers),
            np.bincount(of_done, weights=durations[done], minlength=layers),
            np.bincount(of_done, weights=np.asarray(stored_bytes)[:known][done], minlength=layers),
        )
        return [
            LayerCounts(name, label_of(name), total, finished, active, bad, seconds, int(stored))
            for name, total, finished, active, bad, seconds, stored in zip(
                self.names, *[column.tolist() for column in columns], strict=False
            )
        ]

    def _count(self, chunks: Collection[int], layers: int) -> np.ndarray:
        found = [self.numbers[chunk] for chunk in chunks if chunk < len(self.numbers)]
        return np.bincount([number for number in found if number >= 0] or [0], minlength=layers) * bool(found)


__all__ = ["NO_LAYER", "LayerIndex", "label_of"]
