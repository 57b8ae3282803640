"""Map outputs: parts that are packed together and read one by one, from memory and from disk."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_mars.errors import SpilledValueLost
from dask_mars.protocol.object_ref import blocks_of, is_map_output, is_spilled, spilled_file
from dask_mars.store.map_output import MapOutput, pack
from dask_mars.store.spill_files import SpillFiles
from dask_mars.store.store import Store
from tests.store.test_store import close, make_pair

VALUES = st.one_of(
    st.none(),
    st.text(),
    st.lists(st.integers()),
    st.integers(0, 3000).map(lambda length: np.arange(length, dtype="f8")),
    st.integers(1, 40).map(lambda length: np.arange(4.0 * length).reshape(4, length)[:, ::2]),
)


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, np.ndarray):
        return type(found) is np.ndarray and found.dtype == expected.dtype and np.array_equal(found, expected)
    return bool(found == expected)


@settings(max_examples=settings().max_examples // 2)
@given(st.dictionaries(st.integers(0, 50), VALUES, max_size=8), st.integers(0, 10_000))
def test_each_reducer_gets_its_part(parts, expected_bytes):
    output = pack(iter(sorted(parts.items())), 60, expected_bytes)
    assert output.reducers == sorted(parts)
    for copy in (output, pickle.loads(pickle.dumps(output, protocol=5))):
        for reducer in range(52):
            found = copy.part(reducer)
            assert len(found) == (reducer in parts)
            assert all(same(part, parts[reducer]) for part in found)


def test_one_without_parts():
    output = pack(iter(()), 0)
    assert output.reducers == []
    assert output.part(0) == []


# -- in stores ------------------------------------------------------------------------------------------------


@pytest.fixture
def stores() -> Iterator[tuple[Store, Store]]:
    pair = make_pair()
    yield pair.make, pair.read
    close(pair)


def a_map_output() -> MapOutput:
    return pack(((number, np.full(10_000, float(number))) for number in (1, 3, 4)), 5)


@pytest.fixture
def spilled(stores, tmp_path) -> Any:
    made, _ = stores
    return made.spill(made.seal(a_map_output()), "value", SpillFiles(tmp_path))


def test_parts_are_read_in_place(stores):
    made, read = stores
    ref = pickle.loads(pickle.dumps(made.seal(a_map_output())))
    assert is_map_output(ref)
    (first,), (second,) = read.load(ref).part(3), read.load(ref).part(3)
    assert np.shares_memory(first, second)
    assert not first.flags.writeable
    (copy,) = made.load_copy(ref).part(3)
    assert not np.shares_memory(copy, made.load(ref).part(3)[0])


def test_small_ones_travel_in_messages(stores):
    made, read = stores
    ref = made.seal(pack([(2, "two")], 3))
    assert not blocks_of(ref)
    assert read.load(ref).part(2) == ["two"]


def test_parts_are_read_from_disk(stores, spilled):
    assert is_spilled(spilled)
    assert is_map_output(spilled)
    output = stores[1].load(spilled)
    assert output.reducers == [1, 3, 4]
    assert [part.tolist() for part in output.part(4)] == [[4.0] * 10_000]
    assert output.part(2) == []
    # On its way to another process it goes as a whole.
    assert pickle.loads(pickle.dumps(output)).part(1)[0].tolist() == [1.0] * 10_000


def damage(spilled: Any, at: int, new: bytes | None = None) -> None:
    """Overwrite bytes of a file, or change one bit."""
    path = Path(spilled_file(spilled).path)
    data = bytearray(path.read_bytes())
    new = new or bytes([data[at] ^ 1])
    data[at % len(data) : at % len(data) + len(new)] = new
    path.write_bytes(data)


def test_a_part_that_is_not_what_was_written(stores, spilled):
    damage(spilled, -100)
    output = stores[1].load(spilled)
    assert len(output.part(1)) == 1
    for read in (lambda: output.part(4), lambda: pickle.dumps(output)):
        with pytest.raises(SpilledValueLost, match="checksum of the part for reducer 4"):
            read()


@pytest.mark.parametrize(
    ("at", "new", "message"),
    [(40, None, "checksum of its table"), (0, (1 << 50).to_bytes(8, "little"), "says that it has")],
)
def test_a_table_that_is_not_what_was_written(stores, spilled, at, new, message):
    damage(spilled, at, new)
    with pytest.raises(SpilledValueLost, match=message):
        stores[1].load(spilled).part(1)


@pytest.mark.parametrize("harm", ["gone", "cut", "cut later"])
def test_a_file_that_is_not_there(stores, spilled, harm):
    path = Path(spilled_file(spilled).path)
    if harm == "gone":
        path.unlink()
        with pytest.raises(SpilledValueLost, match="the file is gone"):
            stores[1].load(spilled)
        return
    output = stores[1].load(spilled)
    path.write_bytes(path.read_bytes()[:90_000])
    with pytest.raises(SpilledValueLost, match="shorter" if harm == "cut later" else "bytes instead of"):
        output.part(4) if harm == "cut later" else stores[1].load(spilled)
