"""The host of a subtask whose inputs are there: real sizes, free memory, and who is busy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_mars.cluster.partition.placement import HostState, choose_host

MB = 1_000_000


@pytest.mark.parametrize(
    ("hosts", "chosen"),
    [
        ({"a": HostState(50 * MB, 0.0), "b": HostState(50 * MB, 0.0)}, "a"),
        ({"a": HostState(0, 0.0), "b": HostState(100 * MB, 0.0)}, "b"),
        # Equal as far as it matters.
        ({"a": HostState(49 * MB, 0.0), "b": HostState(51 * MB, 0.0)}, "a"),
        # What has most is so busy that the rest is fetched sooner.
        ({"a": HostState(40 * MB, 0.0), "b": HostState(60 * MB, 5.0)}, "a"),
        ({"a": HostState(60 * MB, 5.0), "b": HostState(40 * MB, 0.0)}, "b"),
        # There is no room at the planned one for what it lacks.
        ({"a": HostState(50 * MB, 0.0, 10 * MB), "b": HostState(50 * MB, 0.0, 80 * MB)}, "b"),
        ({"a": HostState(100 * MB, 0.0, 0), "b": HostState(0, 0.0, 500 * MB)}, "a"),
        # Nor anywhere else: it spills.
        ({"a": HostState(50 * MB, 0.0, 10 * MB), "b": HostState(50 * MB, 0.0, 10 * MB)}, "a"),
        ({"a": HostState(0, 0.0)}, "a"),
    ],
)
def test_cases(hosts, chosen):
    assert choose_host("a", hosts, 100 * MB, 100e6) == chosen


STATES = st.builds(
    HostState, st.integers(0, 100 * MB), st.floats(0, 10), st.one_of(st.none(), st.integers(0, 200 * MB))
)


@given(st.dictionaries(st.sampled_from("abcdef"), STATES, min_size=1), st.integers(1, 100 * MB))
def test_nobody_who_is_chosen_is_worse_than_the_planned_one(hosts, input_bytes):
    planned = sorted(hosts)[0]
    chosen = choose_host(planned, hosts, input_bytes, 100e6)

    def missing(name: str) -> int:
        return max(input_bytes - hosts[name].held_bytes, 0)

    def fits(name: str) -> bool:
        free = hosts[name].free_bytes
        return free is None or missing(name) <= free

    assert fits(chosen) or not any(map(fits, hosts))
    if fits(planned) or not fits(chosen):
        waits = {name: hosts[name].busy_s + missing(name) / 100e6 for name in (planned, chosen)}
        assert waits[chosen] <= waits[planned]
