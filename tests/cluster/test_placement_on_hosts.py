"""Which host gets what: shares, repetition, and how little moves when hosts come or go."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_mars.cluster.partition.hashing import share_out
from dask_mars.cluster.partition.hosts import Hosts, place_in_collection, place_on_hosts
from dask_mars.cluster.partition.subtasks import NO_HOST, estimate_bytes, moved_bytes, place
from dask_mars.scheduler.events import CLIENT, GraphPlan
from tests.cluster.test_subtasks import cases
from tests.machines import plan, tree

KEYS = [f"({number}, 0)" for number in range(255)]


def hosts(count: int, slots: int = 2) -> Hosts:
    return Hosts(dict.fromkeys(range(count), slots), {number: f"node-{number}" for number in range(count)})


def key_of(chunk: int) -> tuple[str, int]:
    return "x-0123", chunk


def initial(graph: GraphPlan, placed: list[int]) -> dict[int, int]:
    """Return the hosts of chunks that wait for none."""
    return {
        chunk: host
        for chunk, host in enumerate(placed)
        if host >= 0 and all(placed[source] == NO_HOST for source in graph.inputs[chunk])
    }


def moved(before: dict[int, int], after: dict[int, int]) -> float:
    return sum(after[chunk] != host for chunk, host in before.items()) / len(before)


# -- hashing --------------------------------------------------------------------------------------------------


@given(
    st.lists(st.text(max_size=5), max_size=40),
    st.dictionaries(st.integers(0, 9), st.integers(1, 4), min_size=1, max_size=5),
)
def test_hosts_get_their_share(keys, slots):
    names = {host: str(host) for host in slots}
    found = share_out(keys, names, slots)
    counts = Counter(found)
    assert len(found) == len(keys)
    for host, number in slots.items():
        assert abs(counts[host] - len(keys) * number / sum(slots.values())) < 1
    assert share_out(keys, names, slots) == found


@pytest.mark.parametrize("count", [3, 4, 8])
def test_little_more_than_what_a_host_had_moves_when_it_goes(count):
    before, after = (
        dict(enumerate(share_out(KEYS, known.names, known.slots))) for known in (hosts(count), hosts(count - 1))
    )
    lost = sum(host == count - 1 for host in before.values()) / len(KEYS)
    assert lost <= moved(before, after) < lost + 0.06


def test_names_decide_and_not_the_numbers_of_hosts():
    known = hosts(3)
    other_way = {2 - number: name for number, name in known.names.items()}
    assert [2 - host for host in share_out(KEYS, other_way, known.slots)] == share_out(
        KEYS, known.names, known.slots
    )


# -- chunks ---------------------------------------------------------------------------------------------------


@given(cases())
def test_each_chunk_has_a_host(case):
    graph, _, slots = case
    placed = place_on_hosts(graph, Hosts(slots, {host: str(host) for host in slots}), key_of)
    for chunk, host in enumerate(placed):
        if graph.operand_of[chunk] < 0:
            assert host == NO_HOST
        elif chunk in graph.in_client:
            assert host == CLIENT
        else:
            assert host in slots


@pytest.mark.parametrize("graph", [tree(512, 8), plan(*[()] * 512)], ids=["sum", "independent"])
def test_the_same_data_are_at_the_same_host(graph):
    found = [initial(graph, place_on_hosts(graph, hosts(count), key_of)) for count in (5, 4, 3, 2)]
    assert initial(graph, place_on_hosts(graph, hosts(5), key_of)) == found[0]
    for before, after in pairwise(found):
        lost = sum(host == len(set(before.values())) - 1 for host in before.values()) / len(before)
        assert moved(before, after) < lost + 0.1
    counts = Counter(found[0].values())
    assert max(counts.values()) < 1.3 * min(counts.values())


def test_other_computations_with_the_same_blocks_put_them_to_the_same_hosts():
    graph = tree(512, 8)

    def another(chunk: int) -> tuple[str, int]:
        return "mean-89ab", chunk

    assert place_on_hosts(graph, hosts(3), key_of) == place_on_hosts(graph, hosts(3), another)
    assert place_in_collection(("x", 1, 2)) == place_in_collection(("y", 1, 2)) != place_in_collection(("y", 2, 1))
    assert place_in_collection("x") != place_in_collection("y")
    assert place_in_collection(("x",)) != place_in_collection(("y",))


def test_neighbours_that_exchange_much_stay_together():
    # Each of 64 wide pieces is made of four large chunks, and neighbours share two of these.
    leaves: list[tuple[int, ...]] = [()] * 130
    pieces = [tuple(range(2 * number, 2 * number + 4)) for number in range(64)]
    sizes = [10**8] * 194
    graph = plan(*leaves, *pieces, declared_bytes=sizes)
    placed = place_on_hosts(graph, hosts(2), key_of)
    assert moved_bytes(graph, placed, sizes) <= 4 * 10**8


def test_chunks_follow_data_that_lie_at_hosts():
    graph = plan((), (), (0,), (1,), (2, 3), data=[0, 1])
    held = {0: {1: 1000}, 1: {2: 900}}
    assert place_on_hosts(graph, hosts(3), key_of, replica_bytes=held)[2:4] == [1, 2]


def test_chunks_begin_next_to_data_that_they_meet():
    # What is added to data from hosts is computed there, too.
    graph = plan((), (), (), (), (0, 2), (1, 3), data=[0, 1])
    held = {0: {1: 1000}, 1: {0: 1000}}
    assert place_on_hosts(graph, hosts(2), key_of, replica_bytes=held)[2:] == [1, 0, 1, 0]


def test_the_user_says_where():
    graph = plan((), (), (0, 1), *[()] * 10)
    for allowed in ({0: [1], 2: [2]}, {0: [0, 1], 2: [2]}):
        placed = place_on_hosts(graph, hosts(3), key_of, allowed=allowed)
        assert placed[0] in allowed[0]
        assert placed[2] == 2
    placed = place(graph, {0: 0, 1: 0}, {0: 1, 1: 1}, allowed={2: [1]})
    assert placed[2] == 1


def test_bytes_that_nobody_declares_are_a_share_of_what_is_read():
    declared: dict[int, int | None] = {0: 8000, 1: None, 2: None, 3: 100, 4: None, 5: None}
    graph = plan((), (0,), (0,), (1,), (3,), (), declared_bytes=declared)
    # The last one reads nothing, and is thought to be as large as others are.
    assert estimate_bytes(graph) == [8000, 4000, 4000, 100, 100, 4050]


# -- pieces, and unlike amounts of work -----------------------------------------------------------------------


def known_sources(count: int) -> list[int | None]:
    return [1 << 20] * count + [None] * (2 * count + 1)


def anomalies(count: int, **options: object) -> GraphPlan:
    """Return sources, their mean, a piece of the mean for each source, and the source less that piece."""
    sources: list[tuple[int, ...]] = [()] * count
    pieces = [(count,)] * count
    differences = [(number, count + 1 + number) for number in range(count)]
    return plan(*sources, tuple(range(count)), *pieces, *differences, **options)


def test_pieces_of_a_chunk_of_unknown_size_are_made_where_they_are_needed():
    graph = anomalies(40, declared_bytes=known_sources(40))
    placed = place_on_hosts(graph, hosts(2), key_of)
    sources, pieces, differences = placed[:40], placed[41:81], placed[81:]
    assert set(sources) == {0, 1}
    assert pieces == differences == sources


def test_pieces_of_a_chunk_that_are_as_large_as_declared_stay_with_it():
    # Each piece is declared a fortieth of what it is taken from.
    sizes = [1 << 20] * 41 + [1 << 14] * 40 + [1 << 20] * 40
    graph = anomalies(40, declared_bytes=sizes)
    placed = place_on_hosts(graph, hosts(2), key_of)
    assert set(placed[41:81]) == {placed[40]}
    assert placed[81:] == placed[:40]


def test_hosts_have_like_amounts_of_work():
    # Two sums that share nothing. The second has as many sources, and hardly any work.
    count = 40
    long: list[tuple[int, ...]] = []
    for _ in range(count):
        long += [(), *[(len(long) + step,) for step in range(5)]]
    ends = tuple(range(5, 6 * count, 6))
    short = [()] * count
    inputs = [*long, ends, *short, tuple(range(6 * count + 1, 7 * count + 1))]
    graph = plan(*inputs, declared_bytes=[1 << 20] * len(inputs))
    placed = place_on_hosts(graph, hosts(2), key_of)
    assert 0.35 < placed.count(0) / len(placed) < 0.65
