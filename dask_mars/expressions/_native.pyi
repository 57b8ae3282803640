from typing import Any

import numpy as np

_Array = np.ndarray[Any, Any]

POSITIONAL: int
CAST_BEFORE: int
REDUCTION: int
SUM: int
OF_RESULTS: int
FORWARD: int
PAIR: int
PAIRWISE: int
DIVIDE: int
OVER: int
UNDER: int
INVALID: int

class Program:
    def __init__(
        self,
        steps: tuple[tuple[Any, tuple[int, ...], int], ...],
        array_items: tuple[int, ...],
        buffer_items: tuple[int, ...],
        shape: tuple[int, ...],
        reversed: bool,
        block: int,
    ) -> None: ...
    def run(self, watched: int, /, *arrays: Any) -> bool: ...

def arithmetic(name: str, type: str, /) -> Any | None: ...
def cast(source: str, target: str, /) -> Any | None: ...
def group_sums(
    rows: np.ndarray[Any, Any],
    groups: np.ndarray[Any, Any],
    first: np.ndarray[Any, Any],
    totals: np.ndarray[Any, Any],
    /,
) -> bool: ...
def histogram(
    values: Any, edges: np.ndarray[Any, Any], counts: np.ndarray[Any, Any], regular: bool, /
) -> None: ...
def key_totals(
    keys: tuple[_Array, ...], columns: tuple[_Array, ...], most: int, /
) -> tuple[_Array, list[tuple[int, int]], list[tuple[_Array, _Array]], int] | None: ...
def moments(
    values: Any, pivots: np.ndarray[Any, Any], totals: np.ndarray[Any, Any], squares: np.ndarray[Any, Any], /
) -> None: ...
def rest(source: Any, /) -> np.ndarray[Any, Any]: ...
def select(item_bytes: int, /) -> Any | None: ...
def table_sum(table: np.ndarray[Any, Any], together: int, /) -> float | None: ...
def without_nan(type: str, /) -> Any | None: ...
