"""Arrays out of nothing, and what is done to them element by element."""

from __future__ import annotations

import math
from typing import Any

from tests.fuzz.maker import Maker
from tests.fuzz.operations import Variable, operation, source

Text = str | list[str]


def numeric(array: Any) -> bool:
    """Return whether an array is of numbers."""
    return array.dtype.kind in "biufc"


def real(array: Any) -> bool:
    """Return whether an array is of numbers that have an order."""
    return array.dtype.kind in "iuf"


def whole(array: Any) -> bool:
    """Return whether an array is of integers."""
    return array.dtype.kind in "iu"


def ordered(array: Any) -> bool:
    """Return whether elements of an array have an order."""
    return array.dtype.kind in "biufMm"


def known(array: Any) -> bool:
    """Return whether the shape of an array is known."""
    return not any(math.isnan(length) for length in array.shape)


# -- sources ------------------------------------------------------------------------------------------------------


@source("array", 8)
def from_array(make: Maker) -> Text:
    shape, dtype = make.shape(), make.dtype()
    missing = f", {make.choice([0.1, 0.5])}" if make.chance(0.2) else ""
    data = f"values({make.seed()}, {shape}, {dtype!r}{missing})"
    option = make.choice([""] * 6 + [", name=False", ", lock=True", ", inline_array=True", ", asarray=False"])
    if dtype == "O" and option == ", lock=True":
        # Dask's optimiser forgets `asarray=False` beside a lock, and makes arrays of items that are any objects.
        option = ""
    if make.chance(0.1):
        data = f"Lazily({data})"
    return f"da.from_array({data}, chunks={make.chunks(shape)}{option})"


@source("array", 1)
def structured(make: Maker) -> Text:
    shape = make.shape(1)
    return (
        f"da.from_array(values({make.seed()}, {shape}, [('p', 'f8'), ('q', 'i4')]), chunks={make.chunks(shape)})"
    )


@source("array", 2)
def filled(make: Maker) -> Text:
    shape = make.shape()
    chunks = make.chunks(shape)
    function = make.choice(["ones", "zeros", "full", "empty"])
    dtype = make.choice(["f8", "i4", "f4", "bool", "u1"])
    if function == "full":
        return f"da.full({shape}, {make.integer(0, 5)}, chunks={chunks}, dtype={dtype!r})"
    if function == "empty":
        return f"da.zeros_like(da.empty({shape}, chunks={chunks}, dtype={dtype!r}))"
    return f"da.{function}({shape}, chunks={chunks}, dtype={dtype!r})"


@source("array", 3)
def counted(make: Maker) -> Text:
    shape = make.shape(make.integer(1, 2))
    size = math.prod(shape)
    cut = make.cut(size)
    text = make.choice(
        [
            f"da.arange({size}, chunks={(cut,)})",
            f"da.arange({make.integer(-5, 5)}, {make.integer(6, 30)}, {make.integer(1, 3)}, chunks=4)",
            f"da.linspace(0, {make.integer(1, 9)}, {size}, chunks={(cut,)})",
        ]
    )
    return text if len(shape) == 1 or "30" in text else f"da.arange({size}, chunks={(cut,)}).reshape({shape})"


@source("array", 3)
def drawn(make: Maker) -> Text:
    shape = make.shape()
    chunks = make.chunks(shape)
    rng = f"da.random.default_rng({make.seed()})"
    return [
        f"{rng}.random({shape}, chunks={chunks})",
        f"{rng}.normal(1, 2, size={shape}, chunks={chunks})",
        f"{rng}.integers(-10, 10, size={shape}, chunks={chunks})",
        f"{rng}.poisson(3, size={shape}, chunks={chunks})",
        # Not the new generators' `choice`: Dask gives it the state itself, which each run then changes.
        f"da.random.RandomState({make.seed()}).choice([1, 2, 3], size={shape}, chunks={chunks})",
        f"da.random.RandomState({make.seed()}).uniform(size={shape}, chunks={chunks})",
    ]


@source("array", 2)
def from_delayed(make: Maker) -> Text:
    shape, dtype = make.shape(), make.choice(["f8", "i8", "f4", "bool"])
    one = f"da.from_delayed(delayed(values)({make.seed()}, {shape}, {dtype!r}), {shape}, {dtype!r})"
    if shape and make.chance(0.5):
        other = f"da.from_delayed(delayed(values)({make.seed()}, {shape}, {dtype!r}), {shape}, {dtype!r})"
        return f"da.concatenate([{one}, {other}])"
    return one


@source("array", 1)
def matrix(make: Maker) -> Text:
    n = make.shape(1)[0] % 60 + 1
    cut = make.cut(n)
    return [
        f"da.eye({n}, chunks={cut[0]})",
        f"da.diag(da.arange({n}, chunks={(cut,)}))",
        f"da.tri({n}, chunks={cut[0]})",
        f"da.indices(({n}, 3), chunks=({cut[0]}, 2))",
        f"da.fromfunction(lambda i, j: i * 10 + j, shape=({n}, 5), chunks=({cut[0]}, 3), dtype='i8')",
        f"da.meshgrid(da.arange({n}, chunks={(cut,)}), da.arange(3, chunks=2))[0]",
    ]


@source("array", 1.5)
def masked(make: Maker) -> Text:
    shape, seed, chunks = make.shape(), make.seed(), None
    chunks = make.chunks(shape)
    dtype = make.choice(["f8", "i4", "i8"])
    plain = f"values({seed}, {shape}, {dtype!r})"
    data = f"da.from_array({plain}, chunks={chunks})"
    return [
        f"da.ma.masked_greater({data}, 3)",
        f"da.ma.masked_inside({data}, -2, 2)",
        f"da.ma.masked_array({data}, da.from_array(values({seed}, {shape}, 'bool'), chunks={chunks}))",
        f"da.from_array(np.ma.masked_less({plain}, 0), chunks={chunks}, asarray=False)",
    ]


# -- one array ----------------------------------------------------------------------------------------------------


#: Functions whose results change little where their input does.
SMOOTH = ["negative", "abs", "sin", "cos", "tanh", "arctan", "conj", "real", "positive", "square"]
#: And others.
ROUGH = ["exp", "sqrt", "log1p", "floor", "ceil", "rint", "trunc", "sign", "isnan", "isfinite", "signbit", "cbrt"]
ROUGH += ["log", "exp2", "expm1", "spacing", "reciprocal", "arcsin", "sinh", "deg2rad", "logical_not", "fix", "i0"]


@operation("array", 8, fits=numeric)
def smooth_function(make: Maker, a: Variable) -> Text:
    module = make.choice(["da", "da", "np"])
    return f"{module}.{make.choice(SMOOTH)}({a})"


@operation("array", 4, fits=numeric, decides=True)
def rough_function(make: Maker, a: Variable) -> Text:
    return f"da.{make.choice(ROUGH)}({a})"


@operation("array", 8, fits=numeric)
def with_number(make: Maker, a: Variable) -> Text:
    number: Any = make.choice([make.integer(-4, 9), make.number(), "np.float32(1.5)", "np.int16(3)", "2j", "True"])
    kind = make.choice(["+", "*", "-"])
    return f"{number} {kind} {a}" if make.chance(0.3) else f"{a} {kind} {number}"


@operation("array", 4, fits=numeric, decides=True)
def with_number_roughly(make: Maker, a: Variable) -> Text:
    kind = make.choice(["/", "//", "%", "**", "/"])
    number = make.integer(2, 3) if kind == "**" else make.choice([make.integer(1, 7), make.number()])
    return f"{number} {kind} {a}" if make.chance(0.2) and kind != "**" else f"{a} {kind} {number}"


@operation("array", 3, fits=ordered, decides=True)
def compared(make: Maker, a: Variable) -> Text:
    if a.dtype.kind == "M":
        return f"{a} < np.datetime64('2002-03-04')"
    if a.dtype.kind == "m":
        return f"{a} >= np.timedelta64(60, 's')"
    limit = make.choice([make.integer(-3, 5), make.number()])
    return f"{a} {make.choice(['<', '>', '==', '!=', '<=', '>='])} {limit}"


@operation("array", 2, fits=lambda a: a.dtype.kind in "US")
def of_text(make: Maker, a: Variable) -> Text:
    word = "'cat'" if a.dtype.kind == "U" else "b'cat'"
    return [f"{a} == {word}", f"{a}.astype('O')", f"{a}.astype('{a.dtype.kind}8')"]


@operation("array", 3, fits=lambda a: a.dtype.kind in "Mm")
def of_time(make: Maker, a: Variable) -> Text:
    first = make.choice(
        [f"{a} + np.timedelta64(36, 'h')", f"{a} - {a}[:1]", f"{a}.astype('i8')", f"da.isnat({a})"]
    )
    return first if make.chance(0.7) else f"{a}.astype('{a.dtype.kind}8[s]')"


@operation("array", 5, fits=lambda a: bool(a.dtype.names))
def field(make: Maker, a: Variable) -> Text:
    return [f"{a}['p']", f"{a}['q']", f"{a}[['p', 'q']]", f"{a}['p'] + {a}['q']"]


@operation("array", 4, fits=numeric, decides=True)
def astype(make: Maker, a: Variable) -> Text:
    return f"{a}.astype({make.choice(['f8', 'f4', 'i4', 'i8', 'c16', 'bool', 'u1', '>f8', 'O', 'f2'])!r})"


@operation("array", 2, fits=whole)
def bits(make: Maker, a: Variable) -> Text:
    return [f"{a} & 6", f"{a} | 9", f"{a} ^ 5", f"~{a}", f"{a} << 1", f"{a} >> 1", f"da.invert({a})"]


@operation("array", 2, fits=numeric, decides=True)
def cleaned(make: Maker, a: Variable) -> Text:
    return [
        f"da.clip({a}, -2, {make.integer(0, 4)})",
        f"da.nan_to_num({a})",
        f"da.round({a}, {make.integer(-1, 2)})",
        f"da.isclose({a}, 1)",
        f"da.where({a} > 0, {a}, {make.number()})",
        f"da.isin({a}, [1, 2, 0.5])",
        f"da.angle({a})",
        f"da.modf({a})[{make.integer(0, 1)}]",
        f"da.frexp({a})[{make.integer(0, 1)}]",
        f"da.divmod({a}, 3)[{make.integer(0, 1)}]",
        f"da.digitize({a}, np.array([-1.0, 0.5, 2.0]))",
        f"da.piecewise({a}, [{a} < 0, {a} >= 0], [-1, 1])",
        f"da.select([{a} > 3, {a} < -3], [{a}, {a} * 2], 7)",
    ]


@operation("array", 2, fits=lambda a: type(a._meta).__name__ == "MaskedArray")
def of_masked(make: Maker, a: Variable) -> Text:
    return [
        f"da.ma.filled({a}, 3)",
        f"da.ma.getmaskarray({a})",
        f"da.ma.getdata({a})",
        f"da.ma.fix_invalid({a})",
        f"da.ma.count({a}, axis=0)",
        f"da.ma.masked_equal({a}, 1)",
    ]


# -- two arrays ---------------------------------------------------------------------------------------------------


def _fellow(make: Maker, a: Variable) -> str:
    """Return an array that can be broadcast against another; made for the purpose if there is none."""

    def matches(other: Any) -> bool:
        pairs = zip(reversed(other.shape), reversed(a.shape), strict=False)
        return numeric(other) and all(one in (1, two) or two == 1 for one, two in pairs)

    if make.chance(0.6):
        return str(make.another("array", matches))
    if make.chance(0.3) and a.ndim > 1:
        return f"{a}[{make.choice(['0', '-1', ':1'])}]"
    if not known(a):
        return f"({a} * 2)"
    shape = tuple(1 if make.chance(0.2) else length for length in a.shape[make.integer(0, a.ndim) :])
    data = f"values({make.seed()}, {shape}, {make.choice(['f8', 'i8', 'f4', 'bool'])!r})"
    return data if make.chance(0.3) else f"da.from_array({data}, chunks={make.chunks(shape)})"


@operation("array", 9, fits=numeric)
def combined(make: Maker, a: Variable) -> Text:
    return f"{a} {make.choice(['+', '-', '*', '+'])} {_fellow(make, a)}"


@operation("array", 4, fits=numeric, decides=True)
def combined_roughly(make: Maker, a: Variable) -> Text:
    other = _fellow(make, a)
    function = make.choice(
        ["maximum", "minimum", "arctan2", "hypot", "fmax", "logaddexp", "copysign", "logical_xor"]
    )
    return [
        f"{a} / {other}",
        f"{a} > {other}",
        f"da.where({a} > {other}, {a}, {make.number()})",
        f"da.where({other} == 0, {other}, {a})",
        f"da.{function}({a}, {other})",
        f"da.float_power({a}, {other})",
    ]
