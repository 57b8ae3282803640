"""Operands and chunks on their way to a worker."""

from __future__ import annotations

import operator
import pickle
from itertools import islice
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dask_mars.graph.chunks import Operand, Step
from dask_mars.graph.functions import FunctionRegistry
from dask_mars.protocol.columns import (
    pack_chunks,
    pack_numbers,
    pack_operand,
    unpack_chunks,
    unpack_numbers,
    unpack_operand,
)
from dask_mars.protocol.pickling import dumps, loads


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 300)))
def test_numbers_arrive(numbers):
    assert list(unpack_numbers(pickle.loads(pickle.dumps(pack_numbers(numbers))))) == numbers


def test_small_numbers_take_a_byte_each():
    assert pack_numbers([0, 3, 255]) == b"\x00\x03\xff"


RECORDS = st.lists(
    st.tuples(
        st.integers(0, 1000),
        st.lists(st.integers(0, 10**6), max_size=3).map(tuple),
        st.lists(st.none() | st.integers() | st.text(max_size=3), max_size=3).map(tuple),
    )
)


def travelled(records: list[tuple[int, tuple[int, ...], tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    operands, inputs, literals = (list(column) for column in zip(*records, strict=True)) if records else ([],) * 3
    packed = pickle.loads(pickle.dumps(pack_chunks(operands, inputs, literals, dumps)))
    return list(zip(*[islice(column, len(records)) for column in unpack_chunks(packed, loads)], strict=True))


@given(RECORDS)
def test_chunks_arrive(records):
    assert travelled(records) == records


def test_columns_without_anything_in_them_do_not_travel():
    def never(_: Any) -> Any:
        raise AssertionError("there is nothing to pack")

    assert pack_chunks([3, 3], [(), ()], [(), ()], never) == (b"\x03\x03", None, None)


def test_literals_that_chunks_share_travel_once():
    shared = tuple(range(1000))
    payload = pickle.dumps(pack_chunks([0] * 100, [()] * 100, [(number, shared) for number in range(100)], dumps))
    assert len(payload) < 2 * len(pickle.dumps(shared)) + 2000


def test_operand_arrives_with_the_same_functions():
    function = operator.itemgetter(0)
    operand = Operand(
        "name",
        (operator.add, function, dict),
        (Step(0, (0, 2), ()), Step(1, (1,), ()), Step(2, (3, 4), ("sum", "first"))),
        input_count=2,
        literal_count=1,
    )
    sender, receiver = FunctionRegistry(), FunctionRegistry()
    packed = pickle.loads(pickle.dumps(pack_operand(operand, sender, dumps)))
    for function_id in packed[1]:
        if function_id is not None:
            receiver.learn(function_id, sender.path(function_id))
    arrived = unpack_operand(packed, receiver, loads)
    assert arrived.functions[0] is operator.add
    assert arrived.functions[2] is dict
    assert (arrived.name, arrived.steps) == (operand.name, operand.steps)
    assert (arrived.input_count, arrived.literal_count) == (2, 1)
    assert arrived.run([1, "text"], (2,)) == operand.run([1, "text"], (2,)) == {"sum": 3, "first": "t"}


def test_operand_of_importable_functions_is_not_pickled_by_value():
    def never(_: Any) -> Any:
        raise AssertionError("all functions have paths")

    operand = Operand("neg", (operator.neg,), (Step(0, (0,), ()),), 1, 0)
    assert pack_operand(operand, FunctionRegistry(), never)[-1] is None
