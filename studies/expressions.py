"""What elementwise operations cost on tiles, called from NumPy and compiled by numexpr.

``python -m studies expressions --write`` measures both and writes the table by which dask_mars chooses.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import click
import numexpr
import numpy as np

from benchmarks import options
from dask_mars.expressions.costs import COSTS_FILE
from dask_mars.expressions.numexprs import EXACT, CompiledTile
from dask_mars.expressions.planning import TILE_BYTES

_REPEATS = 200
#: How often an operation stands in the expression that is measured, so that the call itself counts for little.
_CHAIN = 8


def _median_s(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def _operands(character: str, size: int, count: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(count)
    return [(rng.random(size) * 100 + 1).astype(character) for _ in range(count)]


def measure(name: str, character: str) -> tuple[str, float, float]:
    """Measure one operation.

    Parameters
    ----------
    name
        NumPy's name of it.
    character
        Of the dtype of its arguments.

    Returns
    -------
    key, tiled, compiled
        Key of the table; nanoseconds an element of NumPy's function and of the operation within numexpr.
    """
    template = EXACT[name][0]
    size = TILE_BYTES // 8
    count = 1 + max(number for number in range(3) if f"{{{number}}}" in template)
    arrays = _operands(character, size, count)
    if name == "where":
        # What is chosen changes every few elements: neither as random as noise nor as long as a coastline.
        arrays[0] = np.repeat(arrays[1][: -(-size // 16)] > 50, 16)[:size]
    function: Callable[..., Any] = getattr(np, name)
    result = function(*arrays)
    out = np.empty_like(result)
    into = {} if name == "where" else {"out": out}
    tiled = _median_s(lambda: function(*arrays, **into)) / size
    names = tuple(f"a{number}" for number in range(count))
    dtypes = tuple(array.dtype for array in arrays)
    if result.dtype == arrays[-1].dtype:
        # Chained, so that reading the arguments and the call are shared as they are in use.
        text = names[-1]
        for _ in range(_CHAIN):
            text = template.format(*names[:-1], text) if count > 1 else template.format(text)
        steps = _CHAIN
    else:
        text, steps = template.format(*names), 1
    compiled = CompiledTile(text, names, dtypes)
    once = _median_s(lambda: compiled(*arrays, out=out)) / size
    return f"{name}-{character}", tiled, once / steps


@options.command("expressions")
@click.option("--write", is_flag=True, help="Write the table that dask_mars uses.")
def expressions(write: bool) -> None:
    """Measure elementwise operations and print what an element costs in nanoseconds."""
    numexpr.set_num_threads(1)
    table: dict[str, tuple[float, float]] = {}
    click.echo("| operation | dtype | NumPy, ns | numexpr, ns |\n|---|---|--:|--:|")
    for name, (_, characters) in EXACT.items():
        for character in characters:
            if character == "q":
                continue
            key, tiled, compiled = measure(name, character)
            table[key] = (round(tiled * 1e9, 3), round(compiled * 1e9, 3))
            click.echo(f"| {name} | {character} | {table[key][0]:.3f} | {table[key][1]:.3f} |")
    if write:
        rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(table.items()))
        COSTS_FILE.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")
