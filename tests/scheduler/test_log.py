"""The log of the state machine: what is written can be read, and replays to the same instructions."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner

from dask_mars import Runtime
from dask_mars.engine.recorder import Recorder
from dask_mars.scheduler import events, log
from dask_mars.scheduler.events import (
    ChunksFinished,
    GraphSubmitted,
    MemoryMeasured,
    ResultsTaken,
    WorkerLost,
    WorkerRetired,
    WorkerStarted,
)
from dask_mars.scheduler.log import LogError, as_plain, first_line, from_plain, line, read
from dask_mars.scheduler.machine import Machine, Parameters
from dask_mars.scheduler.replay import main, replay
from tests.conftest import LEAST_LIMIT_OF_TWO
from tests.machines import plan, tree

KINDS = [kind for kind in log._RECORDS.values() if issubclass(kind, events.Event | events.Instruction)]


def logged(parameters: Parameters, *happened: events.Event) -> list[str]:
    """Return the log of a machine."""
    machine = Machine(parameters)
    lines = [first_line(parameters)]
    for number, event in enumerate(happened):
        lines.append(line(float(number), event, machine.handle(event, float(number))))
    return lines


def a_log() -> list[str]:
    graph = tree(4, 2)
    finished = [ChunksFinished(0, 1, [chunk], [0.5], {chunk: 40}, {chunk: 40}) for chunk in range(7)]
    measured = [MemoryMeasured(40 * number, 1000) for number in range(7)]
    both = [event for pair in zip(measured, finished, strict=True) for event in pair]
    return logged(
        Parameters(store_limit=1000, memory_limit=2000),
        WorkerStarted(0),
        GraphSubmitted(1, graph),
        *both,
        ResultsTaken(1),
        WorkerRetired(0),
    )


def test_all_that_happens_can_be_logged():
    for kind in KINDS:
        assert_logged(kind)


def assert_logged(kind: type) -> None:
    samples = {
        "GraphPlan": plan((), (0,), declared_bytes=[5, None], in_client=frozenset({1}), objects={0: (7, 3)}),
        "ObjectId": (4, 2),
        "int": 3,
        "float": 0.1,
        "bool": True,
    }

    def sample(annotation: str) -> object:
        if annotation.startswith("Mapping[ObjectId"):
            return {(4, 2): 80}
        if annotation.startswith(("Mapping", "dict")):
            return {1: 80}
        if annotation.startswith(("Sequence", "list")):
            return ((4, 2), (5, 1)) if "ObjectId" in annotation or "tuple" in annotation else (1, 2)
        if annotation.startswith("tuple"):
            return (1, 2)
        return samples[annotation]

    record = kind(*[sample(field.type) for field in dataclasses.fields(kind)])
    assert from_plain(json.loads(json.dumps(as_plain(record)))) == dataclasses.replace(
        record, **({"plan": from_plain(as_plain(record.plan))} if kind is GraphSubmitted else {})
    )


def test_numbers_of_numpy_are_numbers():
    assert as_plain([np.int64(3), np.float64(0.5), None]) == [3, 0.5, None]


def test_a_log_replays_to_the_same_instructions():
    outcome = replay(a_log(), validate=True)
    assert outcome.difference is None
    assert outcome.events["ChunksFinished"] == 7
    assert outcome.instructions["FinishGraph"] == 1
    assert outcome.machine.graphs == []


def test_the_first_difference_is_told():
    lines = a_log()
    now_s, event, instructions = json.loads(lines[2])
    instructions[0]["fields"][0] = 5
    lines[2] = json.dumps([now_s, event, instructions]) + "\n"
    difference = replay(lines).difference
    assert difference is not None
    assert difference.line == 3
    assert type(difference.event) is GraphSubmitted
    assert difference.logged != difference.found


def test_half_a_line_at_the_end_is_left_out():
    whole, cut = replay(a_log()[:-1]), replay([*a_log()[:-1], a_log()[-1][:20]])
    assert (whole.events, cut.difference) == (cut.events, None)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], "line 1 is no JSON"),
        (["{}\n"], "no log of version 2"),
        (["[1, 2]\n"], "no log of version 2"),
        ([first_line(Parameters()), "[1]\n"], "line 2 is no event"),
        ([first_line(Parameters()), '[1, {"type": "Nothing", "fields": []}, []]\n'], "line 2 is no event"),
        ([first_line(Parameters()), "nonsense\n"], "line 2 is no JSON"),
    ],
)
def test_what_is_no_log_is_refused(lines, told):
    with pytest.raises(LogError, match=told):
        list(read(lines)[1])


def test_a_policy_that_is_not_there():
    with pytest.raises(LogError, match="no scheduling policy 'nonsense'"):
        replay([first_line(Parameters(policy="nonsense"))])


def test_the_command_says_what_it_found(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("".join(a_log()))
    result = CliRunner().invoke(main, [str(log), "--validate"])
    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == "the same instructions"
    lines = [*a_log(), line(99.0, WorkerLost(0, None), [events.ForgetGraph(1)])]
    log.write_text("".join(lines))
    result = CliRunner().invoke(main, [str(log)])
    assert result.exit_code == 1
    assert "ForgetGraph" in result.output
    log.write_text("nonsense")
    result = CliRunner().invoke(main, [str(log)])
    assert (result.exit_code, "line 1 is no JSON" in result.output) == (1, True)


def test_an_engine_logs_what_it_decides(tmp_path: Path):
    with (
        dask.config.set({"dask-mars.scheduler-log": str(tmp_path / "{pid}-{engine}.log")}),
        Runtime(num_workers=2, memory_limit=LEAST_LIMIT_OF_TWO) as runtime,
    ):
        array = da.random.default_rng(1).random((2000, 2000), chunks=500).persist(scheduler=runtime.get)
        assert array.rechunk((2000, 250)).sum().compute(scheduler=runtime.get) > 0
        engine = runtime.engine().view.id
        runtime.state()
        (log,) = tmp_path.iterdir()
        assert log.name.endswith(f"-{engine}.log")
        del array
    with log.open() as lines:
        outcome = replay(lines, validate=True)
    assert outcome.difference is None
    assert outcome.events["ResultsTaken"] == 2
    assert outcome.instructions["FinishGraph"] == 2


def test_a_disk_that_is_full_ends_the_log_and_nothing_else(caplog: pytest.LogCaptureFixture):
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    recorder = Recorder("/dev/full", 1, Parameters())
    recorder.note(0.0, WorkerStarted(0), [])
    recorder.close()
    assert caplog.text.count("the log of the scheduler ends here") == 1


def test_without_a_folder_there_is_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    recorder = Recorder(str(tmp_path / "nowhere" / "log"), 1, Parameters())
    recorder.note(0.0, WorkerStarted(0), [])
    assert "there is no log of the scheduler" in caplog.text
