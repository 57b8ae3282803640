"""What functions of the user's refer to, and consist of, may be anything and may change."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import pytest

from dask_mars.expressions.tracing import Traced

_square = np.random.default_rng(0).random((200, 200))
_small_integers = (_square * 255).astype("u1")
_large_integers = (_square * 1e18).astype("i8")
_complex = _square + 1j
#: What some functions below refer to.
_COMPLEX_NUMBER = np.complex128(1 + 1j)
_calls: list[int] = []


def _called(function: Callable[..., Any], *args: Any) -> Any:
    """Return all that a call shows."""
    _calls.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result: Any = function(*args)
            result = type(result), result.dtype, result.dtype.char, result.shape, result.tobytes()
        except Exception as error:
            result = type(error), str(error)
    where = [(str(each.message), each.category, each.filename, each.lineno) for each in caught]
    return result, where, len(_calls)


def _assert_same(function: Any, *args: Any, fast: Any = None) -> None:
    fast = fast or Traced(function)
    for _ in range(2):
        assert _called(fast, *args) == _called(function, *args)


def _sets_number(block: Any) -> Any:
    mean = (block * 2 + 1).mean()
    mean[mean < 0] = 0
    return mean


def _adds_to_array_without_axes(block: Any) -> Any:
    mean = np.copy((block * 2 + 1).mean())
    mean += 1
    return mean


@pytest.mark.parametrize(
    ("function", "block"),
    [
        # Warnings of what is calculated with numbers alone.
        (lambda b: b * (np.float64(1) / 0) + 1, _square),
        (lambda b: b * np.log(0.0) + 1, _square),
        (lambda b: b * float(_COMPLEX_NUMBER) + 1, _square),
        (lambda b: (b * 2 + 1).astype("a8"), _square),
        (lambda b: np.cumsum(b, dtype="f8") * 2 + 1, _complex),
        (lambda b: b.cumsum(None, "f8") * 2 + 1, _complex),
        (lambda b: b.mean().astype("f8") + np.abs(b) * 2, _complex),
        (lambda b: np.full_like(b, 1j) * b + 1, _square),
        (lambda b: b / b.std(axis=0, correction=500) + 1, _square),
        # Operators of numbers warn where ufuncs do not, or round otherwise.
        (lambda b: b * 2 + (b.max() + 200), _small_integers),
        (lambda b: b * 2 + -b.max(), _small_integers),
        (lambda b: b * 1.5 + b.max() * 10, _large_integers),
        (lambda b: b * 2 + b.mean() * b.max() / (b.min() + 3j), _complex),
        (lambda b: b / 2 + b.max() % 0.1, np.full((200, 200), 65504, "f2")),
        # Numbers, and arrays without axes.
        (_sets_number, _square),
        (_adds_to_array_without_axes, _square),
        (lambda b: (b * 2 + 1).astype(">f4"), _square),
        (lambda b: b.copy(order="F") * 2 + b, _square),
    ],
)
def test_programs_show_nothing(function: Any, block: Any) -> None:
    _assert_same(function, block)


def test_arrays_may_be_compared_by_identity() -> None:
    _assert_same(lambda u, v: u * 2 + 1 if u is v else v * 3 + 1, _square, _square)


def test_ufuncs_and_numbers_may_be_the_users() -> None:
    counted = np.frompyfunc(lambda x: _calls.append(1) or x, 1, 1)

    class Number(np.float64):
        def __add__(self, other: Any) -> Any:
            _calls.append(1)
            return np.float64(self) + other

    number = Number(2)
    _assert_same(lambda b: b * counted(2.0) + 1, _square)
    _assert_same(lambda b: b * (number + 1) + 1, _square)


def _changed_default(block: Any, factor: Any = 2, *, shift: Any = 1) -> Any:
    return block * factor + shift


def _other(block: Any, factor: Any = 2, *, shift: Any = 1) -> Any:
    return block / factor - shift


def test_a_function_may_be_assigned_to() -> None:
    function: Any = _changed_default
    fast = Traced(function)
    _assert_same(function, _square, fast=fast)
    function.__defaults__ = (5,)
    _assert_same(function, _square, fast=fast)
    function.__kwdefaults__["shift"] = 7
    _assert_same(function, _square, fast=fast)
    function.__code__ = _other.__code__
    _assert_same(function, _square, fast=fast)


@pytest.mark.parametrize("value", [[1.0], None, "missing", 3.0])
def test_what_a_name_refers_to_may_become_anything(value: Any) -> None:
    names: dict[str, Any] = {"factor": 2.5}
    function = FunctionType((lambda block: block * factor + 1).__code__, names)  # type: ignore[name-defined]  # noqa: F821
    fast = Traced(function)
    assert type(fast) is Traced
    _assert_same(function, _square, fast=fast)
    if value == "missing":
        del names["factor"]
    else:
        names["factor"] = value
    _assert_same(function, _square, fast=fast)


def test_names_of_numpy_may_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(block: Any) -> Any:
        return np.roll(block, 1) * 2 + 1

    def rolled(block: Any, shift: Any, roll: Any = np.roll) -> Any:
        _calls.append(1)
        return roll(block, shift + 1)

    fast = Traced(function)
    _assert_same(function, _square, fast=fast)
    monkeypatch.setattr(np, "roll", rolled)
    _assert_same(function, _square, fast=fast)
    _assert_same(function, _square)


def test_arrays_that_a_function_refers_to_may_get_another_shape() -> None:
    array = np.arange(40.0).reshape(4, 10)

    def function(block: Any) -> Any:
        return block * array.shape[0] + block

    fast = Traced(function)
    _assert_same(function, _square, fast=fast)
    array.resize((5, 8), refcheck=False)
    _assert_same(function, _square, fast=fast)


@pytest.mark.parametrize("values", [(np.nan, -np.nan), ((1.0, 2), (np.float64(1), 2))])
def test_arguments_that_look_the_same_may_differ(values: Any) -> None:
    def function(block: Any, value: Any) -> Any:
        return block * 2 + (value if value == value != (1, 2) else np.multiply(value, 1.0))

    fast = Traced(function)
    for value in values:
        _assert_same(partial(function, value=value), _square, fast=partial(fast, value=value))


def test_integers_of_two_names() -> None:
    fast = Traced(lambda b: b * 2 + 1)
    for char in "lqlq":
        assert fast(_large_integers.astype(char)).dtype.char == char
