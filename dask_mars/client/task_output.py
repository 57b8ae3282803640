"""Output and warnings of a computation's tasks, of limited length."""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

#: Limits for the output of one computation's tasks, in characters: of a line, and of all lines together.
_LINE_CHARACTERS, _LOG_CHARACTERS = 4_000, 200_000


class OutputLine(NamedTuple):
    """Output or a warning of a task."""

    #: Arrival time, in seconds since 1970.
    time_s: float
    #: ``"stdout"``, ``"stderr"`` or ``"warning"``.
    stream: str
    text: str


class TaskOutput:
    """The latest lines of a computation's tasks; one thread adds, others read."""

    def __init__(self) -> None:
        self._lines: deque[OutputLine] = deque()
        #: Incomplete line of each stream.
        self._begun: dict[str, str] = {}
        self._characters = 0
        self._is_cut = False

    def add(self, stream: str, text: str) -> None:
        """Add lines, and perhaps the beginning of one."""
        now_s = time.time()
        *lines, rest = (self._begun.pop(stream, "") + text).split("\n")
        for line in lines:
            self._lines.append(OutputLine(now_s, stream, line[:_LINE_CHARACTERS]))
            # Empty lines take room too.
            self._characters += min(len(line), _LINE_CHARACTERS) + 1
        while self._characters > _LOG_CHARACTERS:
            self._characters -= len(self._lines.popleft().text) + 1
            self._is_cut = True
        if rest:
            self._begun[stream] = rest[:_LINE_CHARACTERS]

    def lines(self) -> tuple[list[OutputLine], bool]:
        """Return the lines, and whether earlier ones were dropped."""
        now_s = time.time()
        begun = [OutputLine(now_s, stream, text) for stream, text in self._begun.copy().items()]
        return [*self._lines.copy(), *begun], self._is_cut
