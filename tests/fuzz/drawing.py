"""What chance decides in a program: hypothesis draws it all, and finds the shortest program that differs."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")

#: Lengths of axes and of chunks, most elements of an array, by the size of a program's data.
LENGTHS = {"small": (1, 13), "medium": (60, 400), "large": (500, 1100)}
MOST_ELEMENTS = {"small": 4_000, "medium": 200_000, "large": 1_500_000}
#: Most chunks that an array may be cut into along an axis, by size.
MOST_CUTS = {"small": 5, "medium": 4, "large": 4}

#: Of arrays, with weights.
DTYPES = {"f8": 10, "i8": 6, "f4": 4, "bool": 3, "i4": 2, "c16": 2, "u1": 2} | dict.fromkeys(
    ["i2", "c8", "f2", ">f8", ">i4", "u8", "M8[ns]", "m8[s]", "M8[D]", "U4", "S3", "O"], 1
)


#: The widest span of which hypothesis draws all numbers equally often.
_DIGIT = 100


class Unfit(Exception):
    """An operation cannot be done with what there is."""


class Draw:
    """Random choices for data of some size: small, medium or large."""

    def __init__(self, random: Random, size: str = "small") -> None:
        self._random = random
        self.size = size

    def integer(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, both included."""
        span = high - low + 1
        # Of wider spans hypothesis prefers low numbers, and so the same operations again and again.
        number, whole = self._random.randint(0, min(span, _DIGIT) - 1), min(span, _DIGIT)
        while whole < span:
            number, whole = number * _DIGIT + self._random.randint(0, _DIGIT - 1), whole * _DIGIT
        return low + number * span // whole

    def number(self) -> float:
        """Return a float with few digits."""
        return self.choice([0.0, 1.0, 2.0, 3.0, 7.0, 0.25, 0.5, 1.5, -1.0, -0.5, -2.5])

    def seed(self) -> int:
        """Return a seed for data."""
        return self.integer(0, 999)

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return self.integer(1, 100) > 100 - 100 * probability

    def choice(self, things: Sequence[T]) -> T:
        """Return one of some things."""
        if not things:
            raise Unfit
        return things[self.integer(0, len(things) - 1)]

    def weighted(self, things: dict[T, float]) -> T:
        """Return one of some things that have weights."""
        tenths = [round(10 * weight) for weight in things.values()]
        left = self.integer(1, sum(tenths))
        for thing, weight in zip(things, tenths, strict=True):
            left -= weight
            if left <= 0:
                return thing
        raise Unfit

    def sample(self, things: Sequence[T], count: int) -> list[T]:
        """Return some of the things, none twice, in any order."""
        left = list(things)
        return [left.pop(self.integer(0, len(left) - 1)) for _ in range(min(count, len(left)))]

    def shuffled(self, things: Sequence[T]) -> list[T]:
        """Return the things in another order."""
        return self.sample(things, len(things))

    # -- arrays ---------------------------------------------------------------------------------------------------

    def dtype(self) -> str:
        """Return the name of a dtype."""
        if self.size != "small":
            return self.choice(["f8", "f8", "f4", "i4", "i8", "c16", "bool", "u1"])
        return self.weighted(DTYPES)

    def shape(self, dimensions: int | None = None) -> tuple[int, ...]:
        """Return the shape of an array that is not too large."""
        low, high = LENGTHS[self.size]
        if dimensions is None:
            dimensions = self.weighted({1: 3, 2: 6, 3: 2} | ({0: 0.3, 4: 0.5} if self.size == "small" else {}))
        if self.size == "small":
            shape = [0 if self.chance(0.02) else self.integer(low, high) for _ in range(dimensions)]
        elif dimensions == 1:
            shape = [self.integer(low, high) ** 2 // 2]
        else:
            shape = [self.integer(low, high) for _ in range(2)] + [
                self.integer(1, 3) for _ in range(dimensions - 2)
            ]
            shape = self.shuffled(shape)
        return tuple(shape)

    def cut(self, length: int) -> tuple[int, ...]:
        """Cut a length into pieces, which are of one length or not."""
        if length <= 1:
            return (length,)
        pieces = self.integer(1, min(length, MOST_CUTS[self.size]))
        if self.chance(0.5):
            step = -(-length // pieces)
            return tuple([min(step, length - at) for at in range(0, length, step)])
        ends = sorted({self.integer(1, length - 1) for _ in range(pieces - 1)})
        cuts = [end - start for start, end in zip([0, *ends], [*ends, length], strict=True)]
        if self.size == "small" and self.chance(0.04):
            cuts.insert(self.integer(0, len(cuts)), 0)
        return tuple(cuts)

    def chunks(self, shape: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Cut a shape."""
        return tuple([self.cut(int(length)) for length in shape])

    def axis(self, dimensions: int) -> int:
        """Return an axis, counted from either end."""
        if dimensions == 0:
            raise Unfit
        return self.integer(-dimensions, dimensions - 1)

    def axes(self, dimensions: int) -> Any:
        """Return what may stand for `axis` in a reduction."""
        if dimensions == 0 or self.chance(0.3):
            return None
        if dimensions > 1 and self.chance(0.3):
            return tuple(sorted(self.sample(range(dimensions), self.integer(1, dimensions))))
        return self.axis(dimensions)

    def slice(self, length: int) -> str:
        """Return a slice as it is written."""
        if length <= 0 or self.chance(0.15):
            return self.choice([":", "::-1", "::2"])
        start, stop = sorted((self.integer(0, length), self.integer(0, length)))
        if self.chance(0.7):
            stop = max(stop, min(start + 1, length))
        step = self.choice(["", "", "", ":2", ":3", ":-1", ":-2"])
        if "-" in step:
            start, stop = stop, start
        if self.chance(0.2) and start < length:
            start -= length
        if self.chance(0.2) and 0 < stop < length:
            stop -= length
        return f"{self.choice([start, start, ''])}:{self.choice([stop, stop, ''])}{step}"
