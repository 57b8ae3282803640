"""Functions that work element by element, and reductions that can end a chain of them.

Functions are recognised by identity. An entry gives the dtype of a result, exactly as NumPy would, and the call
that writes into a given array.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence, Set
from functools import cache, partial
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np

from dask_mars.dask_api.arrays import (
    _cumprod_merge,
    _cumsum_merge,
    astype,
    chunk_max,
    chunk_min,
    mean_chunk,
    moment_chunk,
    nannumel,
    numel,
    reductions,
)
from dask_mars.graph.callables import look_up

#: Type of an argument for planning: its dtype, or the type of a Python number.
ArgumentType = Any
#: Called with the arguments and the array for the result.
Call = Callable[..., Any]


class Unsupported(Exception):
    """The function has no fast form for these types, and has to be called as it is."""


class Bound(NamedTuple):
    """A function with types for its arguments."""

    #: NumPy's name.
    name: str
    dtype: np.dtype[Any]
    #: Takes the arguments and, if `takes_out`, the array for the result as `out`; otherwise returns the result.
    call: Call
    #: Whether the call writes its result into a given array.
    takes_out: bool
    #: Whether the last bit of an element may depend on its neighbours.
    positional: bool
    #: Positions of the arguments to pass.
    arguments: tuple[int, ...]

    def compute(self, arguments: Sequence[Any], make: Callable[[], np.ndarray]) -> Any:
        """Return the result, if possible in an array from `make`; raise `Unsupported` for another dtype."""
        if not self.takes_out:
            result = self.call(*arguments)
            if result.dtype != self.dtype:
                raise Unsupported
            return result
        out = make()
        self.call(*arguments, out=out)
        return out


class Elementwise(Protocol):
    """A function that works element by element."""

    @property
    def parameters(self) -> tuple[int, ...]:
        """Return the positions of arguments that are parameters, not data: the binding depends on their values."""

    def bind(self, types: Sequence[ArgumentType], values: Sequence[Any]) -> Bound:
        """Return the function bound to argument types; raise `Unsupported` if it has no fast form for them."""


#: Ufuncs whose results are correctly rounded to the last bit.
_CORRECTLY_ROUNDED = frozenset(
    [
        "absolute",
        "add",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "ceil",
        "conjugate",
        "copysign",
        "divide",
        "equal",
        "fabs",
        "floor",
        "greater",
        "greater_equal",
        "invert",
        "isfinite",
        "isinf",
        "isnan",
        "less",
        "less_equal",
        "logical_and",
        "logical_not",
        "logical_or",
        "logical_xor",
        "multiply",
        "negative",
        "not_equal",
        "positive",
        "reciprocal",
        "rint",
        "sign",
        "signbit",
        "sqrt",
        "square",
        "subtract",
        "trunc",
    ]
)


class _Ufunc:
    """A NumPy ufunc, or an operator that is one."""

    parameters: tuple[int, ...] = ()

    def __init__(self, ufunc: np.ufunc) -> None:
        self._ufunc = ufunc

    def bind(self, types: Sequence[ArgumentType], values: Sequence[Any]) -> Bound:
        if len(types) != self._ufunc.nin:
            raise Unsupported
        dtype = self._ufunc.resolve_dtypes((*types, None))[-1]
        name = self._ufunc.__name__
        integers = all(isinstance(kind, np.dtype) and kind.kind in "biu" for kind in (*types, dtype))
        positional = not integers and name not in _CORRECTLY_ROUNDED
        return Bound(name, dtype, self._ufunc, True, positional, tuple(range(len(types))))


class _Power:
    """``base ** exponent``, for which NumPy's arrays have short cuts that its ufunc lacks."""

    parameters = (1,)

    def bind(self, types: Sequence[ArgumentType], values: Sequence[Any]) -> Bound:
        base, exponent = types
        if getattr(base, "kind", "") == "b":
            raise Unsupported
        # For complex bases NumPy's versions differ in the meaning of ``2.0``.
        short_cut = exponent in (int, float) if getattr(base, "kind", "") == "f" else exponent is int
        if short_cut and values[1] == 2 and isinstance(base, np.dtype) and base.kind in "fc":
            return Bound("square", base, np.square, True, False, (0,))
        dtype = np.power.resolve_dtypes((base, exponent, None))[-1]
        return Bound("power", dtype, operator.pow, False, True, (0, 1))


class _Where:
    """``numpy.where`` with three arguments."""

    parameters: tuple[int, ...] = ()

    def bind(self, types: Sequence[ArgumentType], values: Sequence[Any]) -> Bound:
        if len(types) != 3 or types[0] != np.dtype(bool):
            raise Unsupported
        # The ufunc promotes as `where` does, Python's numbers included.
        dtype = np.maximum.resolve_dtypes((types[1], types[2], None))[-1]
        return Bound("where", dtype, np.where, False, False, (0, 1, 2))


class _Astype:
    """Dask's cast of a chunk."""

    parameters = (1,)

    def bind(self, types: Sequence[ArgumentType], values: Sequence[Any]) -> Bound:
        dtype = np.dtype(values[1])
        # NumPy warns of lost imaginary parts.
        if not isinstance(types[0], np.dtype) or (types[0].kind == "c" and dtype.kind not in "bc"):
            raise Unsupported
        return Bound("astype", dtype, _cast, True, False, (0,))


def _cast(values: Any, out: Any) -> None:
    np.copyto(out, values, casting="unsafe")


class _Clip:
    """``numpy.clip`` of real numbers between Python numbers."""

    parameters: tuple[int, ...] = ()

    def bind(self, types: Sequence[ArgumentType], values: Sequence[Any]) -> Bound:
        array, *bounds = types
        if (
            len(bounds) != 2
            or getattr(array, "kind", "") != "f"
            or not all(b is int or b is float for b in bounds)
        ):
            raise Unsupported
        return Bound("clip", array, np.clip, True, True, (0, 1, 2))


_OPERATORS: dict[Any, np.ufunc] = {
    operator.add: np.add,
    operator.sub: np.subtract,
    operator.mul: np.multiply,
    operator.truediv: np.true_divide,
    operator.floordiv: np.floor_divide,
    operator.mod: np.remainder,
    operator.neg: np.negative,
    operator.pos: np.positive,
    operator.abs: np.absolute,
    abs: np.absolute,
    operator.invert: np.invert,
    operator.inv: np.invert,
    operator.and_: np.bitwise_and,
    operator.or_: np.bitwise_or,
    operator.xor: np.bitwise_xor,
    operator.lshift: np.left_shift,
    operator.rshift: np.right_shift,
    operator.lt: np.less,
    operator.le: np.less_equal,
    operator.gt: np.greater,
    operator.ge: np.greater_equal,
    operator.eq: np.equal,
    operator.ne: np.not_equal,
    # Of plain arrays; the region calls the functions themselves for masked ones.
    _cumsum_merge: np.add,
    _cumprod_merge: np.multiply,
}

_KNOWN: dict[Any, tuple[Elementwise, tuple[tuple[str, ...], ...]]] = {
    # With the keywords under which each may be called.
    operator.pow: (_Power(), ((),)),
    pow: (_Power(), ((),)),
    np.where: (_Where(), ((),)),
    np.clip: (_Clip(), ((),)),
    astype: (_Astype(), (("astype_dtype",),)),
}


def elementwise(function: Callable[..., Any], keywords: tuple[str, ...]) -> Elementwise | None:
    """Return the elementwise form of a function called with these keywords, or None."""
    known = look_up(_KNOWN, function)
    if known is not None:
        return known[0] if keywords in known[1] else None
    ufunc = look_up(_OPERATORS, function, function)
    if type(ufunc) is np.ufunc and ufunc.nout == 1 and ufunc.signature is None and not keywords:
        return _of_ufunc(ufunc)
    return None


@cache
def _of_ufunc(ufunc: np.ufunc) -> _Ufunc:
    return _Ufunc(ufunc)


class _WithoutNan:
    """The elements of an array with zeros for NaN, as `numpy.nansum` adds them up."""

    parameters: tuple[int, ...] = ()

    def bind(self, types: Sequence[ArgumentType], values: Sequence[Any]) -> Bound:
        (dtype,) = types
        if not isinstance(dtype, np.dtype) or dtype.char not in "fd":
            raise Unsupported
        return Bound("without_nan", dtype, _without_nan, True, False, (0,))


def _without_nan(values: Any, out: Any) -> None:
    np.copyto(out, values)
    np.copyto(out, 0, where=np.isnan(out))


class _IsNumber:
    """Tests whether each element is a number, that is, equals itself."""

    parameters: tuple[int, ...] = ()

    def bind(self, types: Sequence[ArgumentType], values: Sequence[Any]) -> Bound:
        (dtype,) = types
        if not isinstance(dtype, np.dtype) or dtype.kind != "f":
            raise Unsupported
        return Bound("equal", np.dtype(bool), np.equal, True, False, (0, 0))


class Part(NamedTuple):
    """One pass of a reduction."""

    #: Function applied to the elements before the reduction.
    prepare: Elementwise | None
    #: Reduces a block, and combines the blocks' results.
    ufunc: np.ufunc
    #: Dtype argument of the reduction, or None.
    dtype: Any


class Reduction(NamedTuple):
    """A reduction that can be computed block by block."""

    #: Passes that run together.
    parts: tuple[Part, ...]
    #: Takes the results of the parts, shape and dtype of the reduced array, and the call's keywords.
    finish: Callable[[Sequence[Any], tuple[int, ...], np.dtype[Any], dict[str, Any]], Any]


def _as_it_is(results: Sequence[Any], *_: Any) -> Any:
    return results[0]


def _mean_chunk(
    results: Sequence[Any],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    keywords: dict[str, Any],
    total_dtype: Any,
) -> dict[str, Any]:
    # Only the shape of the array matters here.
    stand_in = np.broadcast_to(np.zeros((), dtype), shape)
    return {"n": numel(stand_in, dtype=total_dtype, **keywords), "total": results[0]}


def _nanmean_chunk(results: Sequence[Any], *_: Any) -> dict[str, Any]:
    total, count = results
    return {"n": count, "total": total}


#: For each reducing function: preparation of elements, ufunc, and whether it takes a dtype.
_REDUCTIONS: dict[Any, tuple[Elementwise | None, np.ufunc, bool]] = {
    np.sum: (None, np.add, True),
    np.nansum: (_WithoutNan(), np.add, True),
    np.min: (None, np.minimum, False),
    np.max: (None, np.maximum, False),
    chunk_min: (None, np.minimum, False),
    chunk_max: (None, np.maximum, False),
    np.any: (None, np.logical_or, False),
    np.all: (None, np.logical_and, False),
}
for _name, _ufunc in (("_nanmin_skip", np.fmin), ("_nanmax_skip", np.fmax)):
    # Private names, which other versions may lack.
    if hasattr(reductions, _name):
        _REDUCTIONS[getattr(reductions, _name)] = (None, _ufunc, False)
#: Dask's arguments for means and moments that leave out NaN.
NANS = {"sum": np.nansum, "numel": nannumel}


def reduction(function: Callable[..., Any], keywords: tuple[str, ...]) -> Reduction | None:
    """Return the form, block by block, of a reduction of one positional argument, or None."""
    if not {"axis"} <= set(keywords) <= {"axis", "keepdims"}:
        return None
    given: dict[str, Any] = {}
    if type(function) is partial:
        if function.args:
            return None
        given = dict(function.keywords)
        function = function.func
    has_dtype = "dtype" in given
    dtype = given.pop("dtype", None)
    if function is mean_chunk:
        total_dtype = dtype if has_dtype else "f8"
        if given == NANS:
            parts = (Part(_WithoutNan(), np.add, total_dtype), Part(_IsNumber(), np.add, total_dtype))
            return Reduction(parts, _nanmean_chunk)
        if given:
            return None
        return Reduction((Part(None, np.add, total_dtype),), partial(_mean_chunk, total_dtype=total_dtype))
    known = look_up(_REDUCTIONS, function)
    if known is None or given or (has_dtype and not known[2]):
        return None
    return Reduction((Part(known[0], known[1], dtype),), _as_it_is)


def total_and_count(dtype: Any) -> Reduction:
    """Return the reduction to the sum and the count of the elements that are not NaN."""
    parts = Part(_WithoutNan(), np.add, dtype), Part(_IsNumber(), np.add, np.int64)
    return Reduction(parts, lambda results, *_: tuple(results))


def is_second_moment(function: Callable[..., Any]) -> TypeGuard[partial[Any]]:
    """Return whether a function is Dask's second moment of real numbers, as in `var` and `std`."""
    if not (type(function) is partial and function.func is moment_chunk and not function.args):
        return False
    is_known = _counts_as_known(function, {"dtype", "implicit_complex_dtype"})
    return is_known and not function.keywords.get("implicit_complex_dtype")


def is_mean(function: Callable[..., Any]) -> bool:
    """Return whether a function computes Dask's parts of a mean, with or without NaN."""
    return (
        type(function) is partial
        and function.func is mean_chunk
        and not function.args
        and _counts_as_known(function, {"dtype"})
    )


def _counts_as_known(function: partial[Any], others: Set[str]) -> bool:
    """Return whether Dask's function adds and counts all elements, or all but NaN."""
    return {name: value for name, value in function.keywords.items() if name not in others} in ({}, NANS)


def leaves_out_nan(function: Callable[..., Any]) -> bool:
    """Return whether Dask's function for second moments is that of `nanvar` and `nanstd`."""
    return type(function) is partial and "numel" in function.keywords
