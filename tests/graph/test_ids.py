"""Subtask ids, and the page in which workers note them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_mars.graph import ids
from dask_mars.graph.ids import (
    GRAPH_LIMIT,
    NO_SUBTASK,
    NUMBER_LIMIT,
    STAGE_LIMIT,
    SUBTASK_ID_BYTES,
    SubtaskId,
    SubtaskIds,
    decode_subtask_id,
    depths_of,
    subtask_id,
    write_subtask_id,
)
from dask_mars.protocol.control import PART_BYTES, ControlPage, page_bytes

TASKS = st.integers(0, GRAPH_LIMIT - 1)
STAGES = st.integers(0, STAGE_LIMIT - 1)
SUBTASKS = st.integers(0, NUMBER_LIMIT - 1)


def composed_as_in_mars(task: int, stage: int, subtask: int) -> bytes:
    return task.to_bytes(4, "little") + stage.to_bytes(2, "little") + subtask.to_bytes(6, "little")


@given(TASKS, STAGES, SUBTASKS)
def test_id_has_the_layout_of_mars_and_says_what_it_was_made_of(task, stage, subtask):
    composed = subtask_id(task, stage, subtask)
    assert composed == composed_as_in_mars(task, stage, subtask)
    assert decode_subtask_id(composed) == SubtaskId(task, stage, subtask)
    assert composed != NO_SUBTASK


@given(TASKS, STAGES, SUBTASKS)
def test_written_id_is_the_composed_one(task, stage, subtask):
    buffer = bytearray(b"\xff" * 16)
    write_subtask_id(memoryview(buffer), task, stage, subtask)
    assert buffer == subtask_id(task, stage, subtask) + b"\xff" * 4


@pytest.mark.parametrize(
    "numbers", [(-1, 0, 0), (0, -1, 0), (0, 0, -1), (GRAPH_LIMIT, 0, 0), (0, STAGE_LIMIT, 0), (0, 0, NUMBER_LIMIT)]
)
def test_number_out_of_range_is_refused(numbers):
    with pytest.raises(ValueError, match="are not between 0 and"):
        subtask_id(*numbers)


@pytest.mark.parametrize("data", [b"", bytes(SUBTASK_ID_BYTES - 1), bytes(SUBTASK_ID_BYTES + 1), NO_SUBTASK])
def test_bytes_that_are_no_id_are_refused(data):
    with pytest.raises(ValueError, match="subtask"):
        decode_subtask_id(data)


# -- the ids of a graph's chunks ------------------------------------------------------------------------------


@st.composite
def inputs_of_graphs(draw: st.DrawFn) -> list[tuple[int, ...]]:
    count = draw(st.integers(0, 20))
    return [
        tuple(draw(st.lists(st.integers(0, max(chunk - 1, 0)), max_size=min(chunk, 3)))) for chunk in range(count)
    ]


@given(st.integers(0, GRAPH_LIMIT - 1), inputs_of_graphs())
def test_ids_of_chunks_say_graph_depth_and_number(graph, inputs):
    ids_of_chunks = SubtaskIds(graph, inputs)
    stages = []
    for chunk, sources in enumerate(inputs):
        said = decode_subtask_id(ids_of_chunks[chunk])
        assert (said.graph, said.number) == (graph, chunk)
        assert said.stage == max([stages[source] + 1 for source in sources], default=0)
        stages.append(said.stage)
    assert depths_of(inputs) == stages


def test_stage_of_what_is_too_deep_is_the_largest():
    inputs = [(), *[(chunk,) for chunk in range(STAGE_LIMIT)]]
    ids_of_chunks = SubtaskIds(1, inputs)
    assert ids_of_chunks[STAGE_LIMIT - 1] == subtask_id(1, STAGE_LIMIT - 1, STAGE_LIMIT - 1)
    assert ids_of_chunks[STAGE_LIMIT] == subtask_id(1, STAGE_LIMIT - 1, STAGE_LIMIT)


def test_depths_are_computed_once_and_not_before_an_id_is_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(ids, "depths_of", lambda inputs: asked.append(inputs) or depths_of(inputs))
    inputs = [(), (0,)]
    ids_of_chunks = SubtaskIds(1, inputs)
    assert not asked
    assert [ids_of_chunks[chunk] for chunk in (1, 0, 1)] == [subtask_id(1, chunk, chunk) for chunk in (1, 0, 1)]
    assert asked == [inputs]


# -- the control page -----------------------------------------------------------------------------------------


@pytest.fixture
def page() -> ControlPage:
    page = ControlPage(memoryview(bytearray(page_bytes(3))))
    for worker in range(3):
        page.clear(worker)
    return page


def test_each_worker_has_a_cache_line_of_its_own(page):
    notes = [page.running_id_of(worker) for worker in range(3)]
    for worker, note in enumerate(notes):
        write_subtask_id(note, worker + 1, 0, 2**40 + worker)
    assert [page.running(worker) for worker in range(3)] == [(n + 1, 0, 2**40 + n) for n in range(3)]
    assert [len(note) for note in notes] == [SUBTASK_ID_BYTES] * 3
    assert PART_BYTES % 64 == 0
    page.clear(1)
    assert [page.running(worker) is None for worker in range(3)] == [False, True, False]


def test_page_has_the_path_of_the_directory_for_results():
    page = ControlPage(memoryview(bytearray(page_bytes(2))))
    assert page.spill_directory is None
    page.spill_directory = "/tmp/ärger/spilled"
    assert page.spill_directory == "/tmp/ärger/spilled"
    assert page.part_of(1) == bytes(PART_BYTES)
    page.spill_directory = "/tmp/" + "x" * 5000
    assert page.spill_directory == "/tmp/ärger/spilled"


def test_note_cut_short_names_no_chunk(page):
    for written in range(SUBTASK_ID_BYTES):
        page.clear(0)
        page.running_id_of(0)[:written] = subtask_id(7, 0, 3)[:written]
        noted = page.running(0)
        assert noted is None or (noted.graph, noted.number) != (7, 3)
        assert noted is None or noted.graph != 7 or noted.number > 2**32


def test_note_half_erased_is_none(page):
    for erased in range(4, SUBTASK_ID_BYTES + 1):
        page.running_id_of(0)[:] = subtask_id(7, 0, 3)
        page.running_id_of(0)[:erased] = NO_SUBTASK[:erased]
        assert page.running(0) is None
