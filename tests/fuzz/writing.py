"""What the holes of the catalogue name: parts of expressions, drawn for a program in the making."""

from __future__ import annotations

import math
from typing import Any

from tests.fuzz.drawing import Unfit

#: Functions whose results change little where their input does, others, and some of two arguments.
SMOOTH = ["negative", "abs", "sin", "cos", "tanh", "arctan", "conj", "real", "positive", "square"]
ROUGH = ["exp", "sqrt", "log1p", "floor", "ceil", "rint", "trunc", "sign", "isnan", "isfinite", "signbit"]
ROUGH += ["cbrt", "log", "exp2", "expm1", "spacing", "reciprocal", "arcsin", "sinh", "deg2rad", "logical_not"]
TWO = ["maximum", "minimum", "arctan2", "hypot", "fmax", "logaddexp", "copysign", "logical_xor"]
SUMS, PRODUCTS = ["sum", "mean", "nansum", "nanmean"], ["prod", "nanprod"]
BOUNDARIES = ["reflect", "periodic", "none", "nearest"]
GROUPS = ["time.month", "time.dayofweek", "time.season"]
HOWS = ["inner", "left", "outer", "right"]
#: What `from_array` may be told besides.
_GIVEN = [*[""] * 6, ", name=False", ", lock=True", ", inline_array=True", ", asarray=False", ", fancy=False"]


# -- what fits ----------------------------------------------------------------------------------------------------


def numeric(array: Any) -> bool:
    return array.dtype.kind in "biufc"


def real(array: Any) -> bool:
    return array.dtype.kind in "iuf"


def ordered(array: Any) -> bool:
    return array.dtype.kind in "biufMm"


def known(array: Any) -> bool:
    return not any(math.isnan(length) for length in array.shape)


def filled(array: Any) -> bool:
    return known(array) and array.size > 0


def measured(x: Any) -> bool:
    return x.dtype.kind in "iufb" and x.chunks is not None


def sized(x: Any) -> bool:
    return len(x.dims) > 0 and 0 not in x.shape


def timed(x: Any) -> bool:
    """Return whether there is a time axis with real times."""
    return "time" in x.indexes and x.indexes["time"].dtype.kind == "M" and x.sizes["time"] > 3


def plain_number(s: Any) -> bool:
    return getattr(s.dtype, "kind", "O") in "iuf"


# -- holes: each gets the program in the making first -------------------------------------------------------------


def keep(make: Any, value: Any) -> Any:
    """Remember a value for another hole of the same expression."""
    make.last = value
    return value


def kept(make: Any) -> Any:
    return make.last


def cuts(make: Any) -> Any:
    return make.chunks(make.last)


def plain(make: Any) -> str:
    missing = f", {make.choice([0.1, 0.5])}" if make.chance(0.2) else ""
    return f"values({make.seed()}, {keep(make, make.shape())}, {make.dtype()!r}{missing})"


def data(make: Any) -> str:
    values = plain(make)
    given = make.choice(_GIVEN)
    if "'O'" in values and given == ", lock=True":
        # Dask's optimiser forgets `asarray=False` beside a lock, and makes arrays of items that are any objects.
        given = ""
    return f"{values}, chunks={cuts(make)}{given}"


def kind(make: Any, a: Any) -> str:
    return str(a.dtype.kind)


def factor(make: Any) -> Any:
    return make.choice([make.integer(-4, 9), make.number(), "np.float32(1.5)", "np.int16(3)", "2j", "True"])


def limit(make: Any, a: Any) -> Any:
    times = {"M": "np.datetime64('2002-03-04')", "m": "np.timedelta64(60, 's')"}
    return times.get(a.dtype.kind) or make.choice([make.integer(-3, 5), make.number()])


def fellow(make: Any, a: Any) -> str:
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
    values = f"values({make.seed()}, {shape}, {make.choice(['f8', 'i8', 'f4', 'bool'])!r})"
    return values if make.chance(0.3) else f"da.from_array({values}, chunks={make.chunks(shape)})"


def like(make: Any, a: Any) -> str:
    """Return an array of the same shape but for the first axis."""

    def matches(other: Any) -> bool:
        return known(other) and other.ndim == a.ndim and other.shape[1:] == a.shape[1:] and numeric(other)

    return str(make.another("array", matches))


def folding(make: Any, a: Any) -> str:
    keepdims = ", keepdims=True" if make.chance(0.3) else ""
    split = f", split_every={make.integer(2, 3)}" if make.chance(0.3) else ""
    return f"axis={make.axes(a.ndim)}{keepdims}{split}"


def indices(make: Any, a: Any) -> str:
    parts = []
    for length in a.shape[: make.integer(1, a.ndim)]:
        integer = length and make.chance(0.2)
        parts.append(str(make.integer(-length, length - 1)) if integer else make.slice(int(length)))
    return ", ".join(parts)


def picks(make: Any, length: int) -> list[int]:
    found = [make.integer(-length, length - 1) for _ in range(make.integer(0, min(2 * length, 12)))]
    return sorted(found) if make.chance(0.3) else found


def points(make: Any, a: Any) -> str:
    count = make.integer(1, 6)
    return ", ".join([str([make.integer(0, length - 1) for _ in range(count)]) for length in a.shape])


def other_shape(make: Any, a: Any) -> tuple[int, ...]:
    size, shape = int(a.size), []
    while size > 1 and len(shape) < 3 and make.chance(0.8):
        shape.append(make.choice([n for n in range(2, min(size, 400) + 1) if size % n == 0]))
        size //= shape[-1]
    shape = make.shuffled([*shape, size])
    if make.chance(0.2):
        shape[make.integer(0, len(shape) - 1)] = -1
    return tuple(shape)


def widths(make: Any, a: Any) -> list[tuple[int, int]]:
    return [(make.integer(0, 2), make.integer(0, 2)) for _ in range(a.ndim)]


def depth(make: Any, a: Any) -> str:
    return str(make.choice(["1", "{0: 1}", "2", (1,) * a.ndim]))


def climate(make: Any) -> str:
    times = make.integer(5, 40) if make.size == "small" else make.integer(100, 300)
    rows, columns = (make.integer(3, 6), make.integer(1, 4)) if make.size == "small" else (60, 20)
    shape = (times, rows, columns)
    missing = ", 0.2" if make.chance(0.3) else ""
    dtype, freq = make.choice(["f8", "f8", "f4", "i4"]), make.choice(["D", "12h", "7D"])
    array = f"da.from_array(values({make.seed()}, {shape}, {dtype!r}{missing}), chunks={make.chunks(shape)})"
    return (
        f"xr.DataArray({array}, dims=['time', 'lat', 'lon'], coords={{'time': pd.date_range('2001-01-05', "
        f"periods={times}, freq={freq!r}), 'lat': np.linspace(-60, 60, {rows}), "
        f"'kind': ('lat', np.arange({rows}) % 2)}}, name='t', attrs={{'units': 'K'}})"
    )


def dim(make: Any, x: Any) -> str:
    return repr(make.choice(x.dims))


def rows(make: Any) -> int:
    return int(make.integer(1, 60) if make.size == "small" else make.integer(2_000, 9_000))


def items(make: Any) -> int:
    return int(make.integer(0, 60) if make.size == "small" else make.integer(1_000, 3_000))


def seeds(make: Any) -> list[int]:
    return [make.seed() for _ in range(make.integer(1, 4))]


def numbers(make: Any, f: Any, kinds: str = "iuf") -> list[str]:
    return [name for name, dtype in f.dtypes.items() if getattr(dtype, "kind", "O") in kinds]


def number_of(make: Any, f: Any) -> str:
    return repr(make.choice(numbers(make, f)))


def whole(make: Any, f: Any) -> str:
    return repr(make.choice(numbers(make, f, "iu")))


def key_of(make: Any, f: Any) -> str:
    """Return a column to group by."""
    names = [name for name in f.columns if name in ("key", "word", "group", "flag", "day")]
    return repr(make.choice(names or numbers(make, f, "iu")))


def grouping(make: Any, f: Any, observed: bool) -> str:
    key = key_of(make, f)
    if keep(make, number_of(make, f)) == key:
        raise Unfit
    return f"{f}.groupby({key}, observed={observed})"


def some_of(make: Any, most: int) -> str:
    return ", ".join(map(str, make.some(most)))
