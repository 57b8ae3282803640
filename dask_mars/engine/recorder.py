"""Writes the log of an engine's state machine, for `dask_mars.scheduler.replay`."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from dask_mars.scheduler.events import Event, Instruction
from dask_mars.scheduler.log import first_line, line
from dask_mars.scheduler.parameters import Parameters

logger = logging.getLogger(__name__)


class Recorder:
    """Writes events and instructions to a file, as they come."""

    # Errors of the disk do not concern the computations: the log ends there.

    def __init__(self, path: str, engine: int, parameters: Parameters) -> None:
        self.path = Path(path.replace("{pid}", str(os.getpid())).replace("{engine}", str(engine))).expanduser()
        # Unbuffered: a forked process would write the buffer's content a second time.
        self._file = None
        try:
            self._file = self.path.open("wb", buffering=0)
        except OSError as error:
            logger.warning("there is no log of the scheduler: %s", error)
        self._write(first_line(parameters))

    def note(self, now_s: float, event: Event, instructions: Sequence[Instruction]) -> None:
        """Add an event and its instructions to the log."""
        if self._file is not None:
            self._write(line(now_s, event, instructions))

    def _write(self, text: str) -> None:
        data = memoryview(text.encode())
        try:
            while data and self._file is not None:
                data = data[self._file.write(data) :]
        except OSError as error:
            logger.warning("the log of the scheduler ends here: %s", error)
            self.close()

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
