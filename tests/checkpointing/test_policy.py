"""The policy of checkpoints: what saving may take, and which files are of no use any more."""

from __future__ import annotations

import math
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from dask_mars.checkpointing.policy import Costs, SavingPolicy


class Work(NamedTuple):
    inputs: list[tuple[int, ...]]
    outputs: list[int]
    durations: list[float]
    sizes: list[int]


@st.composite
def works(draw: st.DrawFn) -> Work:
    """Return chunks that read earlier ones, some of them twice."""
    count = draw(st.integers(1, 40))
    inputs: list[tuple[int, ...]] = []
    for chunk in range(count):
        sources = st.lists(st.integers(0, chunk - 1), max_size=4) if chunk else st.just([])
        inputs.append(tuple(draw(sources)))
    read = {source for sources in inputs for source in sources}
    # There is nothing in a graph that nobody needs.
    outputs = sorted(set(range(count)) - read | draw(st.sets(st.integers(0, count - 1), max_size=3)))
    durations = draw(st.lists(st.floats(0, 10), min_size=count, max_size=count))
    sizes = draw(st.lists(st.integers(0, 10**9), min_size=count, max_size=count))
    return Work(inputs, outputs, durations, sizes)


COSTS = st.builds(Costs, st.floats(1e-6, 1e-2), st.floats(1e-5, 1.0), st.floats(0, 1e-8))


def run(work: Work, costs: Costs, share: float, batches: list[int], exempt: bytearray | None = None) -> list[int]:
    policy = SavingPolicy(work.inputs, work.outputs, share, exempt or bytearray(len(work.inputs)))
    saved: list[int] = []
    start = 0
    for size in [*batches, len(work.inputs)]:
        chunks = list(range(start, min(start + size, len(work.inputs))))
        durations = [work.durations[chunk] for chunk in chunks]
        chosen = policy.computed(
            chunks, durations, lambda position, chunks=chunks: work.sizes[chunks[position]], costs
        )
        saved += [chunks[position] for position in chosen]
        start += size
    return saved


def cost(work: Work, costs: Costs, chunk: int) -> float:
    size_bytes = work.sizes[chunk]
    return (costs.record_s if size_bytes <= 1 << 14 else costs.file_s) + size_bytes * costs.byte_s


@given(works(), COSTS, st.floats(0.001, 1), st.lists(st.integers(1, 5), max_size=20))
def test_saving_takes_at_most_its_share_of_the_time(
    work: Work, costs: Costs, share: float, batches: list[int]
) -> None:
    saved = run(work, costs, share, batches)
    spent_s = sum(cost(work, costs, chunk) for chunk in saved)
    assert spent_s <= share * sum(work.durations) * (1 + 1e-9)


@given(works(), COSTS, st.data())
def test_what_is_exempt_is_never_saved_and_what_is_forced_always(
    work: Work, costs: Costs, data: st.DataObject
) -> None:
    count = len(work.inputs)
    exempt = bytearray(data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)))
    forced = frozenset(data.draw(st.sets(st.integers(0, count - 1))))
    policy = SavingPolicy(work.inputs, work.outputs, 0.05, exempt, forced)
    chosen = policy.computed(range(count), work.durations, work.sizes.__getitem__, costs)
    assert not [chunk for chunk in chosen if exempt[chunk]]
    assert {chunk for chunk in forced if not exempt[chunk]} <= set(chosen)


def test_values_of_up_to_16_kib_go_into_the_journal() -> None:
    assert [Costs(1.0, 2.0, 0.0).of(size_bytes) for size_bytes in (0, 1 << 14, (1 << 14) + 1)] == [1.0, 1.0, 2.0]


def test_the_longer_the_work_behind_a_chunk_the_sooner_it_is_saved() -> None:
    inputs = [(), (0,), (1,), (2,)]
    policy = SavingPolicy(inputs, [3], 0.05, bytearray(4))
    costs = Costs(1e-3, 1e-3, 0.0)
    # 20 ms of work are worth a millisecond of writing.
    assert policy.computed([0, 1, 2, 3], [0.007] * 4, lambda position: 1, costs) == [2]
    assert math.isclose(policy.risk_of(2), 0.021)


def test_a_chunk_that_could_not_be_saved_is_at_risk_as_before() -> None:
    policy = SavingPolicy([(), (0,)], [1], 0.05, bytearray(2))
    costs = Costs(1e-3, 1e-3, 0.0)
    assert policy.computed([0], [1.0], lambda position: 1, costs) == [0]
    policy.rejected(0)
    assert policy.computed([1], [0.0], lambda position: 1, costs) == [0]
    assert policy.risk_of(1) == 1.0


def needed(work: Work, saved: set[int]) -> set[int]:
    """Return the saved chunks that are read when all is begun again."""
    read: set[int] = set()
    seen: set[int] = set()
    stack = [*work.outputs]
    while stack:
        chunk = stack.pop()
        if chunk in seen:
            continue
        seen.add(chunk)
        if chunk in saved:
            read.add(chunk)
        else:
            stack += work.inputs[chunk]
    return read


@given(works(), st.data())
def test_superseded_are_those_that_nobody_would_read(work: Work, data: st.DataObject) -> None:
    count = len(work.inputs)
    order = data.draw(st.permutations(range(count)))
    order = order[: data.draw(st.integers(0, count))]
    policy = SavingPolicy(work.inputs, work.outputs, 0.05, bytearray(count))
    saved: set[int] = set()
    kept: set[int] = set()
    for chunk in order:
        saved.add(chunk)
        kept.add(chunk)
        gone = policy.saved([chunk])
        assert len(gone) == len(set(gone))
        kept -= set(gone)
        assert kept == needed(work, saved)
