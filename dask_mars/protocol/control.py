"""The control page: shared memory in which each worker notes what it does, and the engine what it is to stop.

The engine reads there what a worker was doing when it died, whether it is in the middle of something, and in which
step of it. A worker reads there, when it gets a signal, which graph's task it is to leave, and whether it is to
give back what waits in its queue. There it has its quota of memory, asks for more, and gets its answer:
`store/_quota.h` knows the layout too.

The ids here have stage 0, which says nothing: workers are not told how deep a chunk is in its graph. Graph and
number are enough to find it; `graph.ids.SubtaskIds` makes the id that people are told.
"""

from __future__ import annotations

import os
from array import array
from typing import NamedTuple

from dask_mars.graph.ids import NO_SUBTASK, NUMBER_LIMIT, SUBTASK_ID_BYTES, SubtaskId, decode_subtask_id

#: A worker's part of the page: two cache lines, so that workers do not slow each other down.
PART_BYTES = 128
#: Where in a part the step stands, in one byte. It means nothing while no subtask is noted.
STEP_AT = SUBTASK_ID_BYTES
#: Where the engine writes the number of a graph. Four bytes of their own, which no reader sees half written.
_STOP = slice(16, 20)
#: Where it counts how often the worker was asked to give back what waits in its queue.
_RECALLS = slice(20, 24)
#: By how many bytes a worker's memory may grow while an operand runs, and by how many it wants to.
_GRANTED, _ASKED = slice(24, 32), slice(32, 40)
#: Why it does not get what it wants, one of `REFUSALS`.
_REFUSAL = slice(40, 44)
#: Whether it is to give the pages of free blocks back at once.
_EAGER = slice(44, 48)
#: What its arrays have of the arena that the store does not count.
_HELD = slice(48, 56)
#: What an operand has taken of private memory, of what was asked for.
_PRIVATE_GROWTH = slice(56, 64)
#: What was counted when it was refused: `QuotaFigures`.
_FIGURES = slice(64, 96)
#: Of a process that starts: how many modules it has begun to import, and the end of the last one's name.
_MODULES, _MODULE = slice(96, 100), slice(100, 128)

#: Behind all parts: the length of the path of the directory for spilled values, and the path.
_PATH_BYTES = 4096

#: Noted of a graph none of whose chunks it is that a worker is busy with.
NO_CHUNK = NUMBER_LIMIT - 1

#: Steps of a subtask: its operand is read, its inputs are, it is computed, its result is put into the store.
PREPARE, LOAD, COMPUTE, SEAL = range(4)
#: What they are called.
STEPS = ("prepare", "load", "compute", "seal")


#: Growth is refused for good, or the operand is to be tried again when there is more room, or it is cancelled.
REFUSED, POSTPONED, STOPPED = 1, 2, 3


class QuotaFigures(NamedTuple):
    """What was counted when growth was refused, in bytes.

    Attributes
    ----------
    limit_bytes : int
        The memory limit.
    stored_bytes : int
        Results in the store.
    reserved_bytes : int
        What others were granted.
    private_bytes : int
        What processes have for themselves.
    """

    limit_bytes: int
    stored_bytes: int
    reserved_bytes: int
    private_bytes: int


def quota_figures(part: memoryview) -> QuotaFigures:
    """Return what was counted when a worker was refused growth."""
    return QuotaFigures(*part[_FIGURES].cast("Q"))


def granted_bytes(part: memoryview) -> int:
    """Return by how many bytes a worker's memory may grow."""
    return int(part[_GRANTED].cast("Q")[0])


def page_bytes(workers: int) -> int:
    """Return the size of a control page, in whole pages of memory."""
    return -(-workers * PART_BYTES // 4096) * 4096 + _PATH_BYTES


def starting_at(worker: int) -> int:
    """Return where in the page a process that starts writes "=I28s", its modules and the last one's name."""
    return worker * PART_BYTES + _MODULES.start


def to_stop(part: memoryview) -> int:
    """Return the graph whose task a worker is to leave, 0 for none."""
    return int(part[_STOP].cast("I")[0])


def recall_attempts(part: memoryview) -> int:
    """Return how often a worker was asked to give back what waits in its queue."""
    return int(part[_RECALLS].cast("I")[0])


class ControlPage:
    """All workers' notes.

    Parameters
    ----------
    memory : memoryview
        Of `page_bytes`, shared by all processes.
    """

    def __init__(self, memory: memoryview) -> None:
        self._refer_to(memory)

    def _refer_to(self, memory: memoryview) -> None:
        self._memory = memory
        #: What workers ask for, by number; more than there are.
        self._asked = memory.cast("Q")[_ASKED.start // 8 :: PART_BYTES // 8]

    def detach(self) -> None:
        """Release the shared memory, which the last reference unmaps; readers find a copy of the last notes."""
        self._refer_to(memoryview(bytearray(self._memory)))

    @property
    def spill_directory(self) -> str | None:
        """Where workers may write results for which there is no room; None until the engine has said so."""
        field = self._memory[-_PATH_BYTES:]
        length = int(field[:4].cast("I")[0])
        return os.fsdecode(bytes(field[4 : 4 + length])) if length else None

    @spill_directory.setter
    def spill_directory(self, path: str) -> None:
        field, name = self._memory[-_PATH_BYTES:], os.fsencode(path)
        if len(name) <= _PATH_BYTES - 4:
            # The length comes last: whoever reads it reads the path.
            field[4 : 4 + len(name)] = name
            field[:4].cast("I")[0] = len(name)

    def part_of(self, worker: int) -> memoryview:
        """Return all of a worker's part."""
        return self._memory[worker * PART_BYTES :][:PART_BYTES]

    def running_id_of(self, worker: int) -> memoryview:
        """Return the part in which a worker notes a subtask's id."""
        return self._memory[worker * PART_BYTES :][:SUBTASK_ID_BYTES]

    def clear(self, worker: int) -> None:
        """Note that a worker runs nothing, and is to stop nothing."""
        self.running_id_of(worker)[:] = NO_SUBTASK
        self.stop(worker, 0)
        part = self.part_of(worker)
        for field in (_GRANTED, _ASKED, _REFUSAL, _EAGER, _HELD, _PRIVATE_GROWTH):
            part[field] = bytes(field.stop - field.start)

    def running(self, worker: int) -> SubtaskId | None:
        """Return the subtask that a worker is in the middle of, with stage 0."""
        noted = bytes(self.running_id_of(worker))
        # The task's number comes first, and says enough where a write was cut short by the end of the process.
        return None if noted.startswith(NO_SUBTASK[:4]) else decode_subtask_id(noted)

    def step(self, worker: int) -> str:
        """Return the step of the subtask that a worker is in the middle of."""
        return STEPS[self._memory[worker * PART_BYTES + STEP_AT]]

    def clear_progress(self, worker: int) -> None:
        """Note that a worker has not begun to import anything."""
        self.part_of(worker)[_MODULES.start : _MODULE.stop] = bytes(_MODULE.stop - _MODULES.start)

    def progress(self, worker: int) -> int:
        """Return how many modules a worker that starts has begun to import."""
        return int(self.part_of(worker)[_MODULES].cast("I")[0])

    def importing(self, worker: int) -> str:
        """Return the module that a worker has begun to import last; "" if it has not come so far."""
        return bytes(self.part_of(worker)[_MODULE]).rstrip(b"\0").decode("utf-8", "replace")

    def stop(self, worker: int, graph: int) -> None:
        """Note whose task a worker is to leave, 0 for none."""
        self.part_of(worker)[_STOP].cast("I")[0] = graph

    def grant(self, worker: int, size_bytes: int) -> None:
        """Let a worker's memory grow by so many bytes while an operand runs."""
        self.part_of(worker)[_GRANTED].cast("Q")[0] = size_bytes

    def asking(self) -> list[tuple[int, int]]:
        """Return the workers that wait, and by how many bytes they want to grow."""
        return [(worker, asked_bytes) for worker, asked_bytes in enumerate(self._asked.tolist()) if asked_bytes]

    def refuse(self, worker: int, reason: int, figures: QuotaFigures) -> None:
        """Tell a worker that waits why it does not get what it asks for."""
        part = self.part_of(worker)
        part[_FIGURES].cast("Q")[:] = memoryview(array("Q", figures))
        part[_REFUSAL].cast("I")[0] = reason

    def set_eager(self, worker: int, is_eager: bool) -> None:
        """Have a worker give the pages of free blocks back at once, or keep them for its next ones."""
        self.part_of(worker)[_EAGER].cast("I")[0] = is_eager

    def held_bytes(self, worker: int) -> int:
        """Return what a worker's arrays have that the store does not count."""
        return int(self.part_of(worker)[_HELD].cast("Q")[0])

    def private_growth_bytes(self, worker: int) -> int:
        """Return by how much a worker's private memory has grown while an operand runs, of what it was granted."""
        part = self.part_of(worker)
        return min(int(part[_PRIVATE_GROWTH].cast("Q")[0]), granted_bytes(part))

    def request_recall(self, worker: int) -> None:
        """Note that a worker is to give back what waits in its queue."""
        count = self.part_of(worker)[_RECALLS].cast("I")
        count[0] = (count[0] + 1) % (1 << 32)
