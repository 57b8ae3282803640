"""Both allocators, the plain one and the extension's, against a model: a plain list of the blocks in use."""

from __future__ import annotations

import itertools
import mmap
import random
import sys
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dask_mars.store.allocator import PAGE_BYTES, Allocator

try:
    from dask_mars.store._arena import Heap
except ImportError:
    Heap = None

CAPACITY_BYTES = 32 * PAGE_BYTES
_NORESERVE = 0x4000 if sys.platform == "linux" else 0


def make_heap(capacity_bytes: int, live: Iterable[tuple[int, int]] = ()) -> Any:
    """Make the extension's allocator as the plain one is made."""
    return Heap(mmap.mmap(-1, capacity_bytes), live)


compiled = pytest.mark.skipif(Heap is None, reason="the extension is not built")


@pytest.fixture(scope="module", params=[Allocator, pytest.param(make_heap, marks=compiled)])
def make(request: pytest.FixtureRequest) -> Any:
    """Make an allocator."""
    return request.param


sizes = st.one_of(st.integers(1, 6 * PAGE_BYTES), st.integers(1, 6).map(lambda pages: pages * PAGE_BYTES))


def pages_for(size_bytes: int) -> int:
    """Return the bytes of the whole pages that a size takes."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def gaps(used: dict[int, int], capacity_bytes: int) -> list[tuple[int, int]]:
    """Return offset and size of what lies between blocks in use."""
    found = []
    end = 0
    for offset, size in [*sorted(used.items()), (capacity_bytes, 0)]:
        if offset > end:
            found.append((end, offset - end))
        end = offset + size
    return found


class Model(RuleBasedStateMachine):
    """Blocks in use and the order in which free ranges came to be, kept the slow way."""

    make: Any = Allocator

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.used: dict[int, int] = {}
        offset = 0
        for gap, size in data.draw(st.lists(st.tuples(st.integers(0, 3), sizes), max_size=4)):
            offset += gap * PAGE_BYTES
            if offset + pages_for(size) > CAPACITY_BYTES:
                break
            self.used[offset] = size
            offset += pages_for(size)
        live = data.draw(st.permutations(sorted(self.used.items())))
        self.allocator = type(self).make(CAPACITY_BYTES, live)
        self.used = {offset: pages_for(size) for offset, size in self.used.items()}

    @rule(size=sizes)
    def allocate(self, size: int) -> None:
        size_pages = pages_for(size)
        fitting = [free for _, free in gaps(self.used, CAPACITY_BYTES) if free >= size_pages]
        offset = self.allocator.allocate(size)
        assert (offset is None) == (not fitting)
        if offset is None:
            return
        assert offset % PAGE_BYTES == 0
        place = [free for start, free in gaps(self.used, CAPACITY_BYTES) if start == offset]
        assert place == [min(fitting)]
        self.used[offset] = size_pages

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.used)))
        self.allocator.free(offset)
        del self.used[offset]

    @rule(offset=st.integers(0, 32).map(lambda page: page * PAGE_BYTES))
    def free_what_is_not_in_use(self, offset: int) -> None:
        if offset not in self.used:
            with pytest.raises(KeyError):
                self.allocator.free(offset)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "allocator"):
            return
        free = gaps(self.used, CAPACITY_BYTES)
        assert self.allocator.used == self.used
        assert self.allocator.used_bytes == sum(self.used.values())
        assert self.allocator.free_ranges() == free
        assert self.allocator.largest_free_bytes == max((size for _, size in free), default=0)
        blocks = sorted(self.used.items())
        assert all(offset + size <= after for (offset, size), (after, _) in itertools.pairwise(blocks))

    def teardown(self) -> None:
        if hasattr(self, "allocator"):
            for offset in self.used:
                self.allocator.free(offset)
            assert self.allocator.free_ranges() == [(0, CAPACITY_BYTES)]
            assert self.allocator.used_bytes == 0


class ModelOfHeap(Model):
    make = staticmethod(make_heap)


TestPlain = Model.TestCase
TestPlain.settings = settings(stateful_step_count=30, max_examples=settings().max_examples // 2)
TestExtension = compiled(ModelOfHeap.TestCase)
TestExtension.settings = TestPlain.settings


def test_empty_block_takes_a_page_so_that_its_offset_is_its_own(make):
    allocator = make(CAPACITY_BYTES)
    assert [allocator.allocate(0), allocator.allocate(0)] == [0, PAGE_BYTES]


@given(order=st.permutations(range(5)))
def test_among_equal_blocks_the_one_freed_last_is_used_first(make, order):
    allocator = make(10 * PAGE_BYTES)
    # A page in use behind each block keeps it from merging with its neighbours.
    blocks = [allocator.allocate(PAGE_BYTES) for _ in range(10)][::2]
    for position in order:
        allocator.free(blocks[position])
    again = [allocator.allocate(PAGE_BYTES) for _ in range(5)]
    assert again == [blocks[position] for position in reversed(order)]


def test_arena_whose_size_is_no_multiple_of_a_page_is_used_up_to_its_last_whole_page(make):
    allocator = make(2 * PAGE_BYTES + 100)
    assert allocator.allocate(PAGE_BYTES) == 0
    assert allocator.allocate(PAGE_BYTES + 50) is None
    assert allocator.allocate(PAGE_BYTES) == PAGE_BYTES
    assert allocator.allocate(1) is None


@compiled
def test_both_choose_the_same_blocks_among_very_many_pages():
    capacity_bytes = 1 << 36
    memory = mmap.mmap(-1, capacity_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    plain, extension = Allocator(capacity_bytes), Heap(memory)
    chance = random.Random(0)
    blocks: list[int] = []
    for _ in range(4000):
        if blocks and chance.random() < 0.45:
            offset = blocks.pop(chance.randrange(len(blocks)))
            plain.free(offset)
            extension.free(offset)
        else:
            size = int(2 ** chance.uniform(0, 31))
            offset = plain.allocate(size)
            assert extension.allocate(size) == offset
            if offset is not None:
                blocks.append(offset)
    assert extension.free_ranges() == plain.free_ranges()
    assert extension.largest_free_bytes == plain.largest_free_bytes


@compiled
@pytest.mark.parametrize(
    "live",
    [
        [(100, 100)],
        [(0, 2 * PAGE_BYTES), (PAGE_BYTES, 1)],
        [(3 * PAGE_BYTES, 2 * PAGE_BYTES)],
        [(4 * PAGE_BYTES, 0)],
        [(-PAGE_BYTES, 1)],
        [(0, 1 << 70)],
        [0],
        [(0,)],
        7,
    ],
)
def test_extension_refuses_live_blocks_that_cannot_be(live):
    with pytest.raises((ValueError, TypeError, OverflowError)):
        make_heap(4 * PAGE_BYTES, live)


@compiled
def test_extension_refuses_memory_that_it_cannot_use():
    memory = mmap.mmap(-1, 4 * PAGE_BYTES)
    with pytest.raises(ValueError, match="start at a page"):
        Heap(memoryview(memory)[64:])
    with pytest.raises(TypeError):
        Heap(bytes(PAGE_BYTES))
    with pytest.raises(TypeError):
        Heap(memoryview(memory).toreadonly())
    memory.close()
