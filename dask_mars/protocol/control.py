"""The control page: shared memory with notes of each worker about its work, and of the engine about cancellations.

The engine reads what a worker was running when it died, and in which step. On a signal a worker reads which
graph's task it must leave, and whether to return its queue. The page also has the worker's memory quota, its
requests for more, and the answers: `store/_quota.h` has the same layout.

The ids here have stage 0, which means nothing: workers do not know the depth of a chunk in its graph. Graph and
chunk identify it; `graph.ids.SubtaskIds` creates the id for users.
"""

from __future__ import annotations

import os
from array import array
from typing import NamedTuple

from dask_mars.graph.ids import NO_SUBTASK, NUMBER_LIMIT, SUBTASK_ID_BYTES, SubtaskId, decode_subtask_id

#: Bytes of a worker's part of the page: two cache lines, so that workers do not slow each other down.
PART_BYTES = 128
#: Position of the step in a part, one byte. It is undefined while no subtask is noted.
STEP_AT = SUBTASK_ID_BYTES
#: Number of the graph to stop, from the engine. Four aligned bytes, which no reader sees half written.
_STOP = slice(16, 20)
#: Number of requests to return the queue.
_RECALLS = slice(20, 24)
#: Allowed and requested growth of a worker's memory while an operand runs, in bytes.
_GRANTED, _ASKED = slice(24, 32), slice(32, 40)
#: Reason for refused growth: `REFUSED`, `POSTPONED` or `STOPPED`.
_REFUSAL = slice(40, 44)
#: Whether to return the pages of free blocks at once.
_EAGER = slice(44, 48)
#: Arena bytes of its arrays that the store does not count.
_HELD = slice(48, 56)
#: Growth of private memory by an operand, within the quota.
_PRIVATE_GROWTH = slice(56, 64)
#: Figures of the engine at a refusal: `QuotaFigures`.
_FIGURES = slice(64, 96)
#: Of a starting process: number of begun imports, and the end of the last module's name.
_MODULES, _MODULE = slice(96, 100), slice(100, 128)

#: After all parts: length of the path of the directory for spilled values, and the path.
_PATH_BYTES = 4096

#: Note for a worker that is busy with a graph but with none of its chunks.
NO_CHUNK = NUMBER_LIMIT - 1

#: Steps of a subtask: unpacking its operand, loading its inputs, computing, sealing its result.
PREPARE, LOAD, COMPUTE, SEAL = range(4)
#: Names of the steps.
STEPS = ("prepare", "load", "compute", "seal")


#: Reasons for refused growth: final, postponed until there is more room, or cancelled.
REFUSED, POSTPONED, STOPPED = 1, 2, 3


class QuotaFigures(NamedTuple):
    """The engine's figures when growth was refused, in bytes."""

    limit_bytes: int
    #: Results in the store.
    stored_bytes: int
    #: Growth granted to other workers.
    reserved_bytes: int
    #: Private memory of processes.
    private_bytes: int


def quota_figures(part: memoryview) -> QuotaFigures:
    """Return the figures of a worker's refusal."""
    return QuotaFigures(*part[_FIGURES].cast("Q"))


def granted_bytes(part: memoryview) -> int:
    """Return the allowed growth of a worker's memory."""
    return int(part[_GRANTED].cast("Q")[0])


def page_bytes(workers: int) -> int:
    """Return the size of a control page, in whole pages of memory."""
    return -(-workers * PART_BYTES // 4096) * 4096 + _PATH_BYTES


def starting_at(worker: int) -> int:
    """Return where a starting process writes "=I28s": its modules and the last one's name."""
    return worker * PART_BYTES + _MODULES.start


def to_stop(part: memoryview) -> int:
    """Return the graph whose task a worker must leave, 0 for none."""
    return int(part[_STOP].cast("I")[0])


def recall_attempts(part: memoryview) -> int:
    """Return the number of requests to a worker to return its queue."""
    return int(part[_RECALLS].cast("I")[0])


class ControlPage:
    """The notes of all workers."""

    def __init__(self, memory: memoryview) -> None:
        self._refer_to(memory)

    def _refer_to(self, memory: memoryview) -> None:
        self._memory = memory
        #: Requested growth by worker id; longer than the number of workers.
        self._asked = memory.cast("Q")[_ASKED.start // 8 :: PART_BYTES // 8]

    def detach(self) -> None:
        """Release the shared memory, unmapped with its last reference; readers get a copy of the last notes."""
        self._refer_to(memoryview(bytearray(self._memory)))

    @property
    def spill_directory(self) -> str | None:
        """Directory where workers may write results without room; None until the engine has set it."""
        field = self._memory[-_PATH_BYTES:]
        length = int(field[:4].cast("I")[0])
        return os.fsdecode(bytes(field[4 : 4 + length])) if length else None

    @spill_directory.setter
    def spill_directory(self, path: str) -> None:
        field, name = self._memory[-_PATH_BYTES:], os.fsencode(path)
        if len(name) <= _PATH_BYTES - 4:
            # The length comes last: readers check it before they read the path.
            field[4 : 4 + len(name)] = name
            field[:4].cast("I")[0] = len(name)

    def part_of(self, worker: int) -> memoryview:
        """Return a worker's part."""
        return self._memory[worker * PART_BYTES :][:PART_BYTES]

    def running_id_of(self, worker: int) -> memoryview:
        """Return the part in which a worker notes a subtask's id."""
        return self._memory[worker * PART_BYTES :][:SUBTASK_ID_BYTES]

    def clear(self, worker: int) -> None:
        """Note that a worker runs nothing, and must stop nothing."""
        self.running_id_of(worker)[:] = NO_SUBTASK
        self.stop(worker, 0)
        part = self.part_of(worker)
        for field in (_GRANTED, _ASKED, _REFUSAL, _EAGER, _HELD, _PRIVATE_GROWTH):
            part[field] = bytes(field.stop - field.start)

    def running(self, worker: int) -> SubtaskId | None:
        """Return a worker's running subtask, with stage 0."""
        noted = bytes(self.running_id_of(worker))
        # The graph's id comes first, and suffices if the process has died during the write.
        return None if noted.startswith(NO_SUBTASK[:4]) else decode_subtask_id(noted)

    def step(self, worker: int) -> str:
        """Return the step of a worker's running subtask."""
        return STEPS[self._memory[worker * PART_BYTES + STEP_AT]]

    def clear_progress(self, worker: int) -> None:
        """Note that a worker has not begun any imports."""
        self.part_of(worker)[_MODULES.start : _MODULE.stop] = bytes(_MODULE.stop - _MODULES.start)

    def progress(self, worker: int) -> int:
        """Return how many imports a starting worker has begun."""
        return int(self.part_of(worker)[_MODULES].cast("I")[0])

    def importing(self, worker: int) -> str:
        """Return the module that a worker has begun to import last; "" before the first."""
        return bytes(self.part_of(worker)[_MODULE]).rstrip(b"\0").decode("utf-8", "replace")

    def stop(self, worker: int, graph: int) -> None:
        """Note the graph whose task a worker must leave, 0 for none."""
        self.part_of(worker)[_STOP].cast("I")[0] = graph

    def grant(self, worker: int, size_bytes: int) -> None:
        """Allow a worker's memory to grow by some bytes while an operand runs."""
        self.part_of(worker)[_GRANTED].cast("Q")[0] = size_bytes

    def asking(self) -> list[tuple[int, int]]:
        """Return the waiting workers, and the growth that they request."""
        return [(worker, asked_bytes) for worker, asked_bytes in enumerate(self._asked.tolist()) if asked_bytes]

    def refuse(self, worker: int, reason: int, figures: QuotaFigures) -> None:
        """Refuse the growth that a waiting worker requests, with the reason."""
        part = self.part_of(worker)
        part[_FIGURES].cast("Q")[:] = memoryview(array("Q", figures))
        part[_REFUSAL].cast("I")[0] = reason

    def set_eager(self, worker: int, is_eager: bool) -> None:
        """Let a worker return the pages of free blocks at once, or keep them for its next blocks."""
        self.part_of(worker)[_EAGER].cast("I")[0] = is_eager

    def held_bytes(self, worker: int) -> int:
        """Return the arena bytes of a worker's arrays that the store does not count."""
        return int(self.part_of(worker)[_HELD].cast("Q")[0])

    def private_growth_bytes(self, worker: int) -> int:
        """Return the growth of a worker's private memory while an operand runs, within its quota."""
        part = self.part_of(worker)
        return min(int(part[_PRIVATE_GROWTH].cast("Q")[0]), granted_bytes(part))

    def request_recall(self, worker: int) -> None:
        """Request that a worker returns its queue."""
        count = self.part_of(worker)[_RECALLS].cast("I")
        count[0] = (count[0] + 1) % (1 << 32)
