"""The control page: shared memory in which each worker notes what it does, and the engine what it is to stop.

The engine reads there what a worker was doing when it died, whether it is in the middle of something, and in which
step of it. A worker reads there, when it gets a signal, which graph's task it is to leave, and whether it is to
give back what waits in its queue.

The ids here have stage 0, which says nothing: workers are not told how deep a chunk is in its graph. Graph and
number are enough to find it; `graph.ids.SubtaskIds` makes the id that people are told.
"""

from __future__ import annotations

from dask_mars.graph.ids import NO_SUBTASK, NUMBER_LIMIT, SUBTASK_ID_BYTES, SubtaskId, decode_subtask_id

#: A worker's part of the page: a cache line, so that workers do not slow each other down.
PART_BYTES = 64
#: Where in a part the step stands, in one byte. It means nothing while no subtask is noted.
STEP_AT = SUBTASK_ID_BYTES
#: Where the engine writes the number of a graph. Four bytes of their own, which no reader sees half written.
_STOP = slice(16, 20)
#: Where it counts how often the worker was asked to give back what waits in its queue.
_RECALLS = slice(20, 24)

#: Noted of a graph none of whose chunks it is that a worker is busy with.
NO_CHUNK = NUMBER_LIMIT - 1

#: Steps of a subtask: its operand is read, its inputs are, it is computed, its result is put into the store.
PREPARE, LOAD, COMPUTE, SEAL = range(4)
#: What they are called.
STEPS = ("prepare", "load", "compute", "seal")


def page_bytes(workers: int) -> int:
    """Return the size of a control page, in whole pages of memory."""
    return -(-workers * PART_BYTES // 4096) * 4096


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
        self._memory = memory

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

    def running(self, worker: int) -> SubtaskId | None:
        """Return the subtask that a worker is in the middle of, with stage 0."""
        noted = bytes(self.running_id_of(worker))
        # The task's number comes first, and says enough where a write was cut short by the end of the process.
        return None if noted.startswith(NO_SUBTASK[:4]) else decode_subtask_id(noted)

    def step(self, worker: int) -> str:
        """Return the step of the subtask that a worker is in the middle of."""
        return STEPS[self._memory[worker * PART_BYTES + STEP_AT]]

    def stop(self, worker: int, graph: int) -> None:
        """Note whose task a worker is to leave, 0 for none."""
        self.part_of(worker)[_STOP].cast("I")[0] = graph

    def request_recall(self, worker: int) -> None:
        """Note that a worker is to give back what waits in its queue."""
        count = self.part_of(worker)[_RECALLS].cast("I")
        count[0] = (count[0] + 1) % (1 << 32)
