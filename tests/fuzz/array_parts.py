"""Arrays cut, indexed, rearranged and joined."""

from __future__ import annotations

import math

from tests.fuzz.arrays import Text, known, numeric, ordered
from tests.fuzz.drawing import Unfit
from tests.fuzz.maker import Maker
from tests.fuzz.operations import Variable, operation


def _length(a: Variable, axis: int) -> int:
    length = a.shape[axis]
    if math.isnan(length):
        raise Unfit
    return int(length)


def _at(axis: int, text: str) -> str:
    """Write an index along one axis."""
    return ", ".join([":"] * axis + [text])


@operation("array", 8, fits=lambda a: a.ndim > 0)
def sliced(make: Maker, a: Variable) -> Text:
    parts = []
    for axis in range(make.integer(1, a.ndim)):
        length = _length(a, axis)
        integer = length and make.chance(0.2)
        parts.append(str(make.integer(-length, length - 1)) if integer else make.slice(length))
    if make.chance(0.1):
        parts.insert(make.integer(0, len(parts)), "None")
    if make.chance(0.1):
        parts = ["...", parts[0]] if make.chance(0.5) else [parts[0], "..."]
    return f"{a}[{', '.join(parts)}]"


@operation("array", 4, fits=lambda a: a.ndim > 0)
def picked(make: Maker, a: Variable) -> Text:
    axis = make.integer(0, a.ndim - 1)
    length = _length(a, axis)
    if not length:
        raise Unfit
    count = make.integer(0, min(2 * length, 12))
    indices = [make.integer(-length, length - 1) for _ in range(count)]
    if make.chance(0.3):
        indices.sort()
    if make.chance(0.2):
        flags = [index in indices for index in range(min(length, 2000))]
        return (
            f"{a}[{_at(axis, f'np.array({flags})')}]" if length <= 20 else f"da.take({a}, {indices}, axis={axis})"
        )
    if make.chance(0.2):
        return f"{a}[{_at(axis, f'da.from_array(np.array({indices}, dtype=int), chunks=2)')}]"
    return f"{a}[{_at(axis, str(indices))}]"


@operation("array", 2, fits=lambda a: a.ndim > 1)
def at_points(make: Maker, a: Variable) -> Text:
    count = make.integer(1, 6)
    indices = [[make.integer(0, max(0, _length(a, axis) - 1)) for _ in range(count)] for axis in range(a.ndim)]
    return f"{a}.vindex[{', '.join(map(str, indices))}]"


@operation("array", 3, fits=lambda a: a.ndim > 0 and numeric(a), decides=True)
def masked_by(make: Maker, a: Variable) -> Text:
    text = make.choice(
        [
            f"{a}[{a} > {make.integer(-2, 3)}]",
            f"{a}[{a}[{', '.join([':'] + ['0'] * (a.ndim - 1))}] != 1]",
            f"da.compress({a}.ravel() > 0, {a}.ravel())",
            f"da.extract({a} < 2, {a})",
            f"da.flatnonzero({a} > 1)",
            f"da.argwhere({a} > 1)",
            f"da.nonzero({a} > 0)[0]",
        ]
    )
    return f"({text}).compute_chunk_sizes()" if make.chance(0.6) else text


@operation("array", 6)
def rechunked(make: Maker, a: Variable) -> Text:
    if not known(a):
        return f"{a}.compute_chunk_sizes()"
    options = [f"{make.chunks(a.shape)}"] * 4 + ["-1", "'auto'", "{0: -1}", f"{make.integer(1, 5)}"]
    if make.size != "small":
        options.remove(options[-1])
    if make.chance(0.1):
        return f"{a}.rechunk({make.chunks(a.shape)}, balance=True)"
    return f"{a}.rechunk({make.choice(options if a.ndim else ['-1'])})"


@operation("array", 4, fits=lambda a: known(a) and a.size > 0)
def reshaped(make: Maker, a: Variable) -> Text:
    size, shape = int(a.size), []
    while size > 1 and len(shape) < 3 and make.chance(0.8):
        divisors = [n for n in range(2, min(size, 400) + 1) if size % n == 0]
        if not divisors:
            break
        shape.append(make.choice(divisors))
        size //= shape[-1]
    shape = make.shuffled([*shape, size])
    if make.chance(0.2):
        shape[make.integer(0, len(shape) - 1)] = -1
    return [f"{a}.reshape({tuple(shape)})"] * 3 + [f"{a}.reshape({tuple(shape)}, merge_chunks=False)"]


@operation("array", 6)
def rearranged(make: Maker, a: Variable) -> Text:
    axes = list(range(a.ndim))
    options = [f"{a}.T", f"da.transpose({a}, {make.shuffled(axes)})", f"{a}.ravel()", f"da.squeeze({a})"]
    options += [f"da.flatten({a})" if hasattr(a.value, "flatten_") else f"{a}.flatten()", f"{a}[None]"]
    if axes:
        axis = make.axis(a.ndim)
        options += [
            f"da.flip({a}, {axis})",
            f"da.roll({a}, {make.integer(-4, 4)}, axis={axis})",
            f"da.roll({a}, {make.integer(-4, 4)})",
            f"da.moveaxis({a}, {axis}, 0)",
            f"da.swapaxes({a}, {axis}, -1)",
            f"da.rollaxis({a}, {axis})",
            f"da.expand_dims({a}, {axis})",
            f"da.repeat({a}, {make.integer(0, 3)}, axis={axis})",
            f"da.tile({a}, {make.integer(1, 2)})",
            f"da.atleast_3d({a})",
            f"da.delete({a}, {make.integer(0, max(0, _length(a, 0) - 1))}, axis=0)",
            f"da.insert({a}, [0, {_length(a, 0) // 2}], 3, axis=0)",
        ]
    if a.ndim > 1:
        options += [f"da.rot90({a}, {make.integer(1, 3)})", f"da.flipud({a})", f"da.fliplr({a})"]
        options += [f"da.diagonal({a})", f"da.triu({a})", f"da.tril({a}, -1)", f"{a}.map_blocks(np.copy)"]
    return options


@operation("array", 2)
def broadcast(make: Maker, a: Variable) -> Text:
    return f"da.broadcast_to({a}, {(make.integer(1, 4), *a.shape)})" if known(a) else f"{a}.compute_chunk_sizes()"


@operation("array", 3, fits=lambda a: numeric(a) and a.ndim > 0 and known(a) and a.ndim <= 3)
def padded(make: Maker, a: Variable) -> Text:
    modes = ["constant", "edge", "wrap", "reflect", "symmetric", "linear_ramp", "maximum", "mean"]
    if make.size != "small" or a.size == 0 or make.rounded(str(a)):
        modes = ["constant", "edge"]
    widths = [(make.integer(0, 2), make.integer(0, 2)) for _ in range(a.ndim)]
    return f"da.pad({a}, {widths}, mode={make.choice(modes)!r})"


@operation("array", 4, fits=lambda a: a.ndim > 0 and numeric(a) and known(a))
def assigned(make: Maker, a: Variable) -> Text:
    index = make.choice(
        [
            make.slice(_length(a, 0)),
            "..., 0" if _length(a, -1) else ":",
            "-1" if _length(a, 0) else ":",
            f"[{', '.join(map(str, make.sample(range(_length(a, 0)), 3)))}]",
            "::2",
        ]
    )
    value = make.choice([str(make.integer(-3, 9)), "True", "np.uint8(3)"])
    if make.chance(0.3) and not make.rounded(str(a)):
        return f"assigned({a}, {a} > {make.integer(-1, 2)}, {value})"
    return f"assigned({a}, np.s_[{index}], {value})" if index != "[]" else f"assigned({a}, ..., {value})"


@operation("array", 5, fits=lambda a: a.ndim > 0)
def joined(make: Maker, a: Variable) -> Text:
    axis = make.integer(0, a.ndim - 1)

    def matches(other: object) -> bool:
        shape = getattr(other, "shape", ())
        same = len(shape) == a.ndim and all(
            s == t for n, (s, t) in enumerate(zip(shape, a.shape, strict=True)) if n != axis
        )
        return same and (numeric(other) == numeric(a)) and known(other)

    others = [make.another("array", matches) for _ in range(make.integer(1, 2))]
    listed = ", ".join(map(str, make.shuffled([a, *others])))
    text = f"da.concatenate([{listed}], axis={axis})"
    if all(other.shape == a.shape for other in others):
        text = make.choice(
            [text, f"da.stack([{listed}], axis={make.integer(0, a.ndim)})", f"da.block([{listed}])"]
        )
        if make.chance(0.3):
            text = f"da.{make.choice(['vstack', 'hstack', 'dstack'])}([{listed}])"
    return text


@operation("array", 1.5, fits=lambda a: a.ndim > 0)
def of_blocks(make: Maker, a: Variable) -> Text:
    return make.choice(
        [f"{a}.blocks[{make.integer(0, a.numblocks[0] - 1)}]", f"{a}.blocks[::-1]", f"{a}.partitions[-1:]"]
    )


@operation("array", 1.5, fits=lambda a: a.ndim == 1 and ordered(a))
def appended(make: Maker, a: Variable) -> Text:
    return [f"da.append({a}, {a})", f"da.diff({a})", f"da.ediff1d({a})", f"da.union1d({a}, {a}[:3])"]
