"""The control page: shared memory in which each worker notes the subtask that it runs.

The engine reads there what a worker was doing when it died, and whether it is in the middle of something.
"""

from __future__ import annotations

from dask_mars.ids import NO_SUBTASK, SUBTASK_ID_BYTES, SubtaskId, decode_subtask_id

#: A worker's part of the page: a cache line, so that workers do not slow each other down.
PART_BYTES = 64


def page_bytes(workers: int) -> int:
    """Return the size of a control page, in whole pages of memory."""
    return -(-workers * PART_BYTES // 4096) * 4096


class ControlPage:
    """All workers' notes.

    Parameters
    ----------
    memory : memoryview
        Of `page_bytes`, shared by all processes.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def note_of(self, worker: int) -> memoryview:
        """Return the part in which a worker notes a subtask's id."""
        return self._memory[worker * PART_BYTES :][:SUBTASK_ID_BYTES]

    def clear(self, worker: int) -> None:
        """Note that a worker runs nothing."""
        self.note_of(worker)[:] = NO_SUBTASK

    def running(self, worker: int) -> SubtaskId | None:
        """Return the subtask that a worker is in the middle of."""
        noted = bytes(self.note_of(worker))
        # The task's number comes first, and says enough where a write was cut short by the end of the process.
        return None if noted.startswith(NO_SUBTASK[:4]) else decode_subtask_id(noted)
