"""The line between front and runner."""

from __future__ import annotations

import socket

import pytest

from dask_mars.web.service import process
from dask_mars.web.service.process import Lines, RunnerProcess


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch):
    """A process that hears nothing and says nothing."""
    monkeypatch.setattr(process, "_END_S", 0.1)
    started = process.subprocess.Popen
    monkeypatch.setattr(
        process.subprocess, "Popen", lambda command, **options: started(["sleep", "60"], **options)
    )
    runner = RunnerProcess({})
    yield runner
    runner.hang_up()
    assert runner.finish() == -9


def test_who_answers_nothing_is_asked_no_more_at_some_time(deaf: RunnerProcess) -> None:
    # Enough to fill the line, on which sending would wait for ever.
    for _ in range(200):
        with pytest.raises(TimeoutError):
            deaf.ask("explain", None, ("k" * 4_096,), 0.0)


def test_what_makes_no_sense_is_the_end() -> None:
    for said in (b'{"say": "ready"}\n{nonsense}\n{"say": 1}\n', b'{"say": "ready"}\n{"say": "fin'):
        ours, theirs = socket.socketpair()
        lines = Lines(ours)
        with theirs:
            theirs.sendall(said)
        assert [message["say"] for message in lines] == ["ready"]
        assert not lines.send({"do": "run"})
        lines.close()
