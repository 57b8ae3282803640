"""The analysis of graphs against plain definitions, on random graphs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dask_mars.scheduler.analyzer import depths
from tests.machines import plan


@given(st.lists(st.lists(st.integers(0, 29), max_size=4), max_size=30))
def test_depth_and_demand(drawn):
    inputs = [
        tuple([source % chunk for source in sources]) if chunk else () for chunk, sources in enumerate(drawn)
    ]
    depth, demand = depths(plan(*inputs))
    relying: list[set[int]] = [set() for _ in inputs]
    for chunk in reversed(range(len(inputs))):
        for source in inputs[chunk]:
            relying[source] |= {chunk, *relying[chunk]}
    for chunk, (sources, others) in enumerate(zip(inputs, relying, strict=True)):
        assert depth[chunk] == max((depth[source] + 1 for source in sources), default=0)
        assert demand[chunk] == max((depth[other] for other in others), default=-1)
