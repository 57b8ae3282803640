"""What a child process tells its parent of, in JSON lines. Nothing heavy is imported here."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Callable
from typing import Any, TextIO, TypeVar

from benchmarks.jobs import Job

#: How many characters of an error reach the tables.
LONGEST_MESSAGE = 160

J = TypeVar("J", bound=Job)


class Events:
    """The line to the parent."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @classmethod
    def on_standard_output(cls) -> Events:
        """Take standard output for events, and send what anybody prints to standard error instead.

        Returns
        -------
        Events
            The line to the parent, on a descriptor that the child's own workers do not inherit.
        """
        stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        return cls(stream)

    def send(self, kind: str, **facts: Any) -> None:
        """Send one event.

        Parameters
        ----------
        kind
            What happened.
        **facts
            What belongs to it.
        """
        print(json.dumps({"kind": kind, **facts}), file=self._stream, flush=True)


def main(kind: type[J], run: Callable[[J, Events], None]) -> None:
    """Do the job given as JSON on the command line.

    Parameters
    ----------
    kind
        The job's class.
    run
        Does it.
    """
    events = Events.on_standard_output()
    job = kind(**json.loads(sys.argv[1]))
    try:
        run(job, events)
    except Exception as error:
        message = textwrap.shorten(f"{type(error).__name__}: {error}", LONGEST_MESSAGE)
        events.send("failed", error=message)
        raise
    events.send("done")
