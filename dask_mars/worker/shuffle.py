"""Operands of shuffles: a map groups the rows of one partition by reducer, a reducer concatenates its parts."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from dask_mars.lazy_numpy import np
from dask_mars.store.map_output import MapOutput, pack

#: Approximate overhead of a part, in bytes.
_PART_BYTES = 2048
#: Number of rows below which a part is small.
_FEW_ROWS = 2000


def map_frame(frame: Any, column: Any, reducers: Collection[int], drop: bool = False) -> MapOutput:
    """Group a partition's rows by a column of reducer numbers, leaving out those that are not in `reducers`."""
    numbered = frame[column]
    if drop:
        frame = frame.drop(columns=column)
    codes = numbered.to_numpy()
    pandas = sys.modules.get("pandas")
    if pandas is None or type(frame) is not pandas.DataFrame or codes.dtype.kind not in "iuf":
        groups = frame.groupby(numbered)
        wanted = sorted(set(groups.groups).intersection(reducers))
        return pack(((reducer, groups.get_group(reducer)) for reducer in wanted), len(wanted))
    numbers = sorted(reducers)
    codes = _narrow(codes)
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    starts = np.searchsorted(codes, numbers, "left").tolist()
    stops = np.searchsorted(codes, numbers, "right").tolist()
    size_bytes = _packed_bytes(frame, len(numbers))
    # Taking each part by itself saves a copy of the whole, but takes longer per part.
    grouped = frame.take(order) if len(frame) < _FEW_ROWS * len(numbers) else None

    def parts() -> Iterator[tuple[int, Any]]:
        for reducer, start, stop in zip(numbers, starts, stops, strict=True):
            if start < stop:
                yield reducer, frame.take(order[start:stop]) if grouped is None else grouped.iloc[start:stop]

    return pack(parts(), len(numbers), size_bytes)


def _packed_bytes(frame: Any, count: int) -> int:
    """Return the approximate size in bytes of a pandas frame that is packed in a number of parts."""
    # The index of a part is no longer a range.
    row_bytes = int(frame.memory_usage(index=False).sum()) + 8 * int(frame.index.nlevels) * len(frame)
    return row_bytes + _PART_BYTES * count


def split_frame(frame: Any, *arguments: Any) -> MapOutput:
    """Group a partition's rows as Dask's shuffles by tasks do, empty groups included."""
    from dask_mars.dask_api.frames import SimpleShuffle

    groups = SimpleShuffle._shuffle_group(frame, *arguments)
    is_pandas = type(frame) is sys.modules["pandas"].DataFrame
    return pack(groups.items(), len(groups), _packed_bytes(frame, len(groups)) if is_pandas else 0)


def pieces(reducer: int, *outputs: MapOutput) -> list[Any]:
    """Return the rows for a reducer, a frame for each partition."""
    parts = _parts(reducer, outputs)
    # A single one is not concatenated, and the user may write into it.
    return parts if sum([len(part) > 0 for part in parts]) > 1 else [part.copy() for part in parts]


def _parts(reducer: int, outputs: Iterable[MapOutput]) -> list[Any]:
    return [part for output in outputs for part in output.part(reducer)]


def _narrow(codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return small whole numbers as an array of few bits each, which NumPy sorts by radix: ten times as fast."""
    if codes.dtype.kind == "f" or not codes.size or codes.min() < 0 or codes.max() >= 1 << 16:
        return codes
    return codes.astype(np.uint8 if codes.max() < 1 << 8 else np.uint16)


def reduce_frame(reducer: int, meta: Any, *outputs: MapOutput) -> Any:
    """Return the rows for a reducer, in the order of the partitions; `meta` if there are none."""
    from dask.dataframe.dispatch import concat

    parts = _parts(reducer, outputs)
    frame = (concat(parts) if len(parts) > 1 else parts[0].copy()) if parts else ()
    # Joins change their frames, and all reducers of a worker share this one.
    return frame if len(frame) else meta.copy()


def map_bag(grouper: Callable[[Any], Any], sequence: Iterable[Any], reducer_count: int, size: int) -> MapOutput:
    """Group the items of a bag's partition by reducer, `size` items at a time."""
    from dask.tokenize import tokenize

    from dask_mars.dask_api.bags import groupby, partition_all

    found: defaultdict[int, list[Any]] = defaultdict(list)
    for block in partition_all(size, sequence):
        for key, items in groupby(grouper, block).items():
            # As Dask does it, so that partitions have the same groups.
            found[abs(int(tokenize(key), 16)) % reducer_count].extend(items)
    return pack(((reducer, found.pop(reducer)) for reducer in sorted(found)), len(found))


def reduce_bag(grouper: Callable[[Any], Any], reducer: int, *outputs: MapOutput) -> list[tuple[Any, list[Any]]]:
    """Return the groups of one reducer, as pairs of group and items."""
    from dask_mars.dask_api.bags import groupby

    items = [item for part in _parts(reducer, outputs) for item in part]
    return list(groupby(grouper, items).items())


def select(output: MapOutput, reducers: Collection[int]) -> MapOutput:
    """Return the parts of a map output for some of the reducers, which run on another host."""
    return output.select(reducers)


# By the ids of functions: others may have no hash.
#: Functions that return a map output.
MAPS = frozenset(map(id, (map_bag, map_frame, split_frame)))
#: Functions that read their part of map outputs, with the position of the reducer in their arguments.
REDUCES = {id(reduce_bag): 1, id(reduce_frame): 0, id(pieces): 0}
