"""How large arenas are, given the memory limit, the workers and the addresses of a process."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_mars.errors import AddressSpaceTooSmall
from dask_mars.limits import AddressSpace
from dask_mars.store.allocator import PAGE_BYTES
from dask_mars.store.arena_capacity import LEAST_BYTES, MOST_BYTES, arena_capacity

MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40
ALL = AddressSpace(127 * TIB, None)

limits = st.integers(MIB, 100 * TIB)
workers = st.integers(1, 2000)
addresses = st.one_of(st.integers(0, 16 * GIB), st.integers(0, 128 * TIB))


def capacity(memory_limit: int, num_workers: int, free_bytes: int) -> int | None:
    """Return the capacity of arenas, None where it would be too little."""
    try:
        return arena_capacity(memory_limit, num_workers, AddressSpace(free_bytes, free_bytes))
    except AddressSpaceTooSmall:
        return None


# -- machines of all sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("memory", "count"), [(16 * GIB, 4), (TIB, 64), (64 * MIB, 2), (MIB + 1, 1)])
def test_usual_machines_have_arenas_of_the_memory_limit(memory, count):
    assert arena_capacity(memory, count, ALL) == memory


@pytest.mark.parametrize(
    ("memory", "count", "least_mib"), [(19 * GIB, 2, 1800), (200 * GIB, 8, 600), (64 * GIB, 32, 150)]
)
def test_a_process_of_8_gb(memory, count, least_mib):
    assert capacity(memory, count, 15 * GIB // 2) > least_mib * MIB


def test_the_heap_of_a_process_has_a_largest_arena():
    assert arena_capacity(40 * TIB, 1, ALL) == MOST_BYTES
    assert MOST_BYTES // PAGE_BYTES < (1 << 32) - 1


def test_too_few_addresses_are_an_error_with_numbers():
    with pytest.raises(AddressSpaceTooSmall) as caught:
        arena_capacity(200 * GIB, 64, AddressSpace(7 * GIB, 8 * GIB))
    error = caught.value
    facts = (error.memory_limit, error.num_workers, error.free_bytes, error.limit_bytes)
    assert facts == (200 * GIB, 64, 7 * GIB, 8 * GIB)
    assert 65 * LEAST_BYTES < error.needed_bytes < 90 * LEAST_BYTES
    for part in ("memory_limit=214,748,364,800", "num_workers=64", "`ulimit -v` is 8,589,934,592 bytes"):
        assert part in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_error_says_where_ulimit_sets_no_limit():
    assert "`ulimit -v` is unlimited" in str(AddressSpaceTooSmall(1, 1, 2, 1, None))


# -- laws ---------------------------------------------------------------------------------------------------------


@given(limits, workers, addresses, st.integers(0, TIB))
def test_laws(memory, count, free, more):
    found = capacity(memory, count, free)
    if found is not None:
        # All arenas fit and leave something.
        assert (count + 1) * found + found // 200 + min(memory, free // 4) <= free
        assert found <= memory
        if found < memory:
            assert found % PAGE_BYTES == 0
            assert found > min(memory // count, LEAST_BYTES) - PAGE_BYTES
    assert (capacity(memory, count, free + more) or 0) >= (found or 0)
    # With more workers, the share that each has to have is less.
    with_more = capacity(memory, count + 1, free)
    if with_more is not None and found is not None:
        assert with_more <= found


@given(limits, workers)
def test_the_addresses_that_the_error_asks_for_suffice(memory, count):
    with pytest.raises(AddressSpaceTooSmall) as caught:
        arena_capacity(memory, count, AddressSpace(0, 0))
    needed = caught.value.needed_bytes
    assert capacity(memory, count, needed) is not None
    # And it asks for little more than that.
    assert capacity(memory, count, needed - needed // 50 - 4 * count - 8) is None
