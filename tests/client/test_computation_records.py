from __future__ import annotations

import gc
import uuid
from array import array
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from dask_mars import Runtime
from dask_mars.client import records as records_module
from dask_mars.client import tracking
from dask_mars.client.records import Record, Records
from dask_mars.client.summaries import remaining_s, summary
from dask_mars.client.tracking import FinalSource
from dask_mars.errors import Cancelled, EngineStopped
from dask_mars.graph.chunks import ChunkGraph
from dask_mars.observe.counts import ChunkCounts, LayerCounts
from dask_mars.observe.layers import NO_LAYER, LayerIndex, blocks_of
from tests.conftest import eventually

# -- records ------------------------------------------------------------------------------------------------------


def test_a_record_goes_through_its_states():
    record = Records().new("name")
    assert (record.state, record.is_over, record.counts()) == ("queued", False, ChunkCounts())
    with record:
        assert record.state == "preparing"
        with record:
            # What it calls may enter it too.
            pass
        assert record.state == "preparing"
    assert (record.state, record.is_over, record.failure) == ("finished", True, None)
    assert record.created_s <= (record.ended_s or 0)
    assert summary(record)["started"] is None


def test_a_record_of_what_raises_says_why():
    record = Record()
    with pytest.raises(ZeroDivisionError), record:
        _ = 1 / 0
    assert record.state == "failed"
    assert record.failure is not None
    assert (record.failure.type, record.failure.message) == ("ZeroDivisionError", "division by zero")
    assert "_ = 1 / 0" in record.failure.traceback
    assert "division by zero" in record.explain()


@pytest.mark.parametrize(
    ("error", "state"),
    [(KeyboardInterrupt(), "cancelled"), (Cancelled(3), "cancelled"), (EngineStopped(), "failed")],
)
def test_how_it_ends_depends_on_what_was_raised(error: BaseException, state: str):
    record = Record()
    with pytest.raises(type(error)), record:
        raise error
    assert record.state == state


def test_one_that_is_cancelled_ends_at_the_next_checkpoint():
    record = Record()

    def compute() -> None:
        with record:
            record.raise_if_cancelled()
            assert record.cancel()
            record.raise_if_cancelled()

    with pytest.raises(Cancelled, match=record.id):
        compute()
    assert record.state == "cancelled"
    assert not record.cancel()


def test_one_that_may_be_left_is_over_when_it_is_cancelled():
    told: list[Exception] = []
    record = Record()

    def compute() -> None:
        with record:
            assert record.cancel()
            assert record.state == "cancelled"
            # Whoever goes on with it, be it to its end, changes nothing any more.
            record.run(_source(), lambda: False)

    record.may_be_left(told.append)
    with pytest.raises(Cancelled) as raised:
        compute()
    assert told == [raised.value]
    assert (record.state, record.source, record.started_s) == ("cancelled", None, None)
    assert not record.cancel()
    again = Record()
    again.may_be_left(told.append)
    with pytest.raises(Cancelled), again:
        assert again.cancel()


def test_one_that_runs_is_not_left():
    told: list[Exception] = []
    record = Record()
    record.may_be_left(told.append)
    with record:
        record.run(_source(), lambda: False)
        assert not record.cancel()
        record.raise_if_cancelled()
        assert record.state == "running"
    assert (record.state, told) == ("finished", [])


def test_what_cancelling_causes_elsewhere_is_not_what_is_raised():
    record = Record()

    def compute() -> None:
        with record:
            record.cancel()
            raise OSError("the connection was cut")

    with pytest.raises(Cancelled):
        compute()


def test_what_cannot_be_stopped_yet_is_cancelled_all_the_same():
    def stop() -> bool:
        raise TimeoutError

    record = Record()

    def compute() -> None:
        with record:
            record.run(_source(), stop)
            assert record.cancel()
            # It is done before whoever was to stop it has had time.

    with pytest.raises(Cancelled, match=record.id):
        compute()
    assert record.state == "cancelled"
    assert not record.cancel()


def test_what_ends_while_somebody_waits_for_it_to_be_stopped_is_not_cancelled():
    record = Record()

    def stop() -> bool:
        record.end()
        raise TimeoutError

    with record:
        record.run(_source(), stop)
        assert not record.cancel()
    assert record.state == "finished"


def test_records_are_bounded_and_found():
    records = Records(remembered=3)
    live = records.new("live")
    for number in range(5):
        with records.new(str(number)):
            pass
    assert [record.name for record in records] == ["4", "3", "2", "live"]
    assert records.find(live.id) is live
    assert records.counts() == dict.fromkeys(records_module.STATES, 0) | {"queued": 1, "finished": 3}
    assert records.live() == [live]
    with pytest.raises(KeyError):
        records.find(str(uuid.uuid4()))
    with pytest.raises(KeyError):
        records.find(7)


def test_lines_are_put_together_and_bounded():
    record = Record()
    record.note("stdout", "one\ntw")
    record.note("stderr", "other")
    record.note("stdout", "o\n")
    lines, truncated = record.log
    assert [(line.stream, line.text) for line in lines] == [
        ("stdout", "one"),
        ("stdout", "two"),
        ("stderr", "other"),
    ]
    assert not truncated
    for _ in range(200):
        record.note("stdout", "x" * 5_000 + "\n\n")
    lines, truncated = record.log
    assert truncated
    assert sum(len(line.text) + 1 for line in lines) <= 210_000
    assert max(len(line.text) for line in lines) == 4_000


# -- layers -------------------------------------------------------------------------------------------------------

KEYS: list[Any] = [("a-1", 0, 0), ("a-1", 0, 1), "data", ("b-2", 0), "inc-3", "inc-4"]
OPERANDS = [0, 0, -1, 1, 2, 2]
INPUTS: list[tuple[int, ...]] = [(), (), (), (0, 1, 2), (3,), (4,)]


def _source(
    durations: tuple[float, ...] = (1.0, -1, -1, 0.5, -1, -1), failed: tuple[int, ...] = ()
) -> FinalSource:
    index = LayerIndex(KEYS, OPERANDS)
    stored = array("q", [8] * len(KEYS))
    return FinalSource(tracking.Last(5, index, array("f", [1.0, -1, -1, 0.5, -1, -1]), stored, failed, INPUTS))


def test_layers_are_counted():
    index = LayerIndex(KEYS, OPERANDS)
    assert list(index.layer_ids) == [0, 0, NO_LAYER, 1, 2, 2]
    assert index.count(array("f", [2, -1, -1, 0.5, -1, -1]), array("q", [8] * 6), running=[1, 2], failed=[4]) == [
        LayerCounts("a-1", "a", 2, 1, 1, 0, 2.0, 8),
        LayerCounts("b-2", "b", 1, 1, 0, 0, 0.5, 8),
        LayerCounts("inc", "inc", 2, 0, 0, 1, 0.0, 0),
    ]


def test_too_many_layers_are_counted_by_label(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dask_mars.observe.layers._MOST_LAYERS", 2)
    keys = [(f"{name}-{number:032x}", 0) for name in ("sum", "mean") for number in range(3)]
    index = LayerIndex(keys, [0] * 6)
    index.look()
    assert index.names == [keys[0][0], keys[1][0], "sum", "mean"]


def test_layers_have_edges_and_blocks():
    source = _source(failed=(1,))
    assert source.edges() == [(0, 1), (1, 2)]
    assert source.blocks("a-1") == ([1, 2], "fx", False)
    assert source.blocks("inc") == ([2], "ww", False)
    with pytest.raises(KeyError):
        source.blocks("no such layer")
    assert source.counts() == ChunkCounts(5, 2, 0, 2, 1)


def test_blocks_that_are_not_computed_have_a_dot():
    index = LayerIndex([("a", 0), ("a", 2)], [0, 0])
    assert blocks_of(index, "a", array("f", [1, -1]), running=[1]) == ([3], "f.r", False)
    # Most of the grid would be elsewhere.
    far = LayerIndex([("a", 0), ("a", 10**9)], [0, 0])
    assert blocks_of(far, "a", array("f", [1, -1])) == ([2], "fw", False)


@pytest.mark.parametrize(
    "keys",
    [
        ["a-1", "a-2"],
        [("a", 0), ("a", 0, 1)],
        [("a",), ("a",)],
        [("a", "x"), ("a", "y")],
        [("a", -1), ("a", 0)],
        [("a", 2**80), ("a", 0)],
        [("a", True), ("a", False)],
    ],
)
def test_blocks_that_are_in_no_grid(keys: list[Any]):
    index = LayerIndex(keys, [0, 0])
    assert blocks_of(index, "a", array("f", [-1, 1])) == ([2], "wf", False)


@pytest.mark.parametrize("is_mixed", [False, True])
def test_layers_are_found_by_operands_where_these_are_of_one(is_mixed: bool):
    names = ["a-1", "b-2", "inc"]
    keys: list[Any] = ["data"]
    operands = [-1]
    for number in range(3_000):
        operand = number % 3
        keys.append((names[operand], number) if operand < 2 else f"inc-{number:032x}")
        operands.append(0 if is_mixed else operand)
    exact, rough = LayerIndex(keys, operands), LayerIndex(keys, operands)
    looked: list[int] = []
    between = rough._layer_ids_between
    rough._layer_ids_between = lambda *at: looked.append(1) or between(*at)  # type: ignore[method-assign]
    rough.look(roughly=True)
    assert [rough.names[number] for number in rough.layer_ids[1:]] == [
        exact.names[number] for number in exact.layer_ids[1:]
    ]
    assert rough.layer_ids[0] == NO_LAYER
    assert bool(looked) is is_mixed


def test_layers_whose_data_are_known_from_the_start_are_none():
    index = LayerIndex(["x", ("y", 0), (), ("x", 1), "z"], [-1, 0, 0, 0, -1])
    assert list(index.layer_ids) == [NO_LAYER, 0, 1, 2, NO_LAYER]
    assert index.names == ["y", "()", "x"]


def test_an_engine_that_has_no_time_leaves_what_was_known():
    class Engine:
        answers: ClassVar[list[Any]] = [[1], TimeoutError(), EngineStopped()]

        def dispatched_of(self, graph_id: int, patience_s: float | None = None) -> list[int]:
            assert patience_s is not None
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    measurements = SimpleNamespace(durations_s=array("f", [1.0, -1, -1]), stored_bytes=array("q", [0] * 3))
    graph = ChunkGraph(operands=[], keys=["a", "b", "c"], operand_of=[0] * 3, inputs=[()] * 3)
    run: Any = SimpleNamespace(id=1, graph=graph, measurements=measurements, errors=[])
    engine: Any = SimpleNamespace(inspection=Engine())
    source = tracking.EngineSource(engine, run)
    seen = []
    for _ in range(3):
        source._dispatched = source._dispatched[0], 0.0
        seen.append(source.counts().running)
    assert seen == [1, 1, 0]


def test_of_few_ended_ones_it_is_kept_what_chunks_are_called(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tracking, "_ended", tracking._Ended(remembered=13))
    sources = [_source() for _ in range(3)]
    assert [source.chunks() for source in sources] == [0, 6, 6]
    assert sources[0].layers() == sources[1].layers()
    assert sources[0].edges() == sources[1].edges()
    assert sources[0].blocks("a-1") == ([], "", True)


def test_no_more_is_remembered_than_there_is_room_for(runtime: Runtime, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tracking, "_ended", tracking._Ended(remembered=0))
    monkeypatch.setattr(runtime.records, "_remembered", 1)
    # Something may still refer to computations of other tests.
    others = list(runtime.records)
    graph = {("x", number): (abs, -number) for number in range(20)}
    runtime.get(graph, list(graph))
    runtime.get(graph, list(graph))

    def own() -> list[Any]:
        gc.collect()
        return [record for record in runtime.records if record not in others]

    # The first one is forgotten when nothing refers to it.
    assert eventually(lambda: len(own()) == 1)
    (record,) = own()
    assert record.counts() == ChunkCounts(20, finished=20)
    assert [layer.total for layer in record.layers()] == [20]
    # Of its chunks no more than numbers is left.
    assert record.source.blocks("x") == ([], "", True)


def test_what_nobody_remembers_is_gone(monkeypatch: pytest.MonkeyPatch):
    ended = tracking._Ended()
    monkeypatch.setattr(tracking, "_ended", ended)
    records = Records(remembered=3)
    for number in range(50):
        with records.new() as record:
            record.run(_source(), lambda: True, number)
    del record
    assert len(ended._sources) <= 5
    assert ended._chunks == 6 * len(ended._sources)


def test_what_is_left_takes_as_long_as_what_was_done():
    record = Record()
    record.started_s = 100.0
    layers = [LayerCounts("a", "a", 4, 2, seconds=2.0), LayerCounts("b", "b", 2, 0)]
    # Four chunks of a second each; two seconds of work took four.
    assert remaining_s(record, ChunkCounts(6, 4, 0, 2), layers, 104.0) == 8.0
    assert remaining_s(record, ChunkCounts(6, 4, 0, 2), [], 104.0) == 8.0
    assert remaining_s(record, ChunkCounts(6, 6), layers, 104.0) is None
    assert remaining_s(record, ChunkCounts(6, 4, 0, 2), layers, 50.0) == 0.0
    assert remaining_s(Record(), ChunkCounts(6, 6), [], 104.0) is None
    assert np.isclose(ChunkCounts(6, 4, 0, 2).fraction, 1 / 3)
