"""Ids of subtasks: twelve bytes that say which computation, which stage of it, and which of its subtasks.

The layout is Mars's: task, four bytes; stage, two; subtask, six; each little endian. Such an id is composed, not
drawn: it needs no registry to be unique and no look-up to be understood.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

#: Bytes of an id.
SUBTASK_ID_BYTES = 12
#: Stands for no subtask at all. No id is equal to it.
NO_SUBTASK = b"\xff" * SUBTASK_ID_BYTES
#: Tasks are numbered below this, so that the first four bytes of an id tell it from `NO_SUBTASK`.
TASK_LIMIT = 2**32 - 1
STAGE_LIMIT = 2**16
SUBTASK_LIMIT = 2**48

# Six bytes are no integer that struct knows: the subtask's number goes in two parts.
_LAYOUT = struct.Struct("<IHHI")


class SubtaskId(NamedTuple):
    """What an id says.

    Attributes
    ----------
    task : int
        Number of the computation.
    stage : int
        Number of the stage within it.
    subtask : int
        Number of the subtask within that.
    """

    task: int
    stage: int
    subtask: int


def subtask_id(task: int, stage: int, subtask: int) -> bytes:
    """Compose an id.

    Raises
    ------
    ValueError
        A number is negative or does not fit.

    Examples
    --------
    >>> subtask_id(1, 1, 1).hex()
    '010000000100010000000000'
    """
    if 0 <= task < TASK_LIMIT and 0 <= stage < STAGE_LIMIT and 0 <= subtask < SUBTASK_LIMIT:
        return _LAYOUT.pack(task, stage, subtask & 0xFFFF, subtask >> 16)
    limits = f"{TASK_LIMIT - 1}, {STAGE_LIMIT - 1} and {SUBTASK_LIMIT - 1}"
    raise ValueError(f"task {task}, stage {stage} and subtask {subtask} are not between 0 and {limits}")


def write_subtask_id(buffer: Any, task: int, stage: int, subtask: int) -> None:
    """Compose an id at the start of a writable buffer.

    The last bytes are written last: where a process ended in the middle of it, over `NO_SUBTASK`, the id that is
    found there has a number larger than any graph has chunks.
    """
    _LAYOUT.pack_into(buffer, 0, task, stage, subtask & 0xFFFF, subtask >> 16)


def decode_subtask_id(data: bytes | memoryview) -> SubtaskId:
    """Return what an id says.

    Raises
    ------
    ValueError
        It is no id: of another length, or `NO_SUBTASK`.

    Examples
    --------
    >>> decode_subtask_id(bytes.fromhex("010000000100010000000000"))
    SubtaskId(task=1, stage=1, subtask=1)
    """
    if len(data) != SUBTASK_ID_BYTES:
        raise ValueError(f"a subtask id has {SUBTASK_ID_BYTES} bytes, not {len(data)}")
    task, stage, low, high = _LAYOUT.unpack(data)
    if task == TASK_LIMIT:
        raise ValueError("these bytes stand for no subtask")
    return SubtaskId(task, stage, low | high << 16)
