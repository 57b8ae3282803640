"""Products of a matrix with its own transpose: only one of two mirrored blocks is computed.

In ``a @ a.T`` the product of blocks i and j is the transpose of that of j and i, which is a view of it. The sums
of such products may be rounded in another order.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import dask

from dask_mars.dask_api.loaded import arrays
from dask_mars.graph.chunks import ChunkGraph, Operand
from dask_mars.graph.splice import with_calls
from dask_mars.lazy_numpy import np
from dask_mars.optimize.passes.edit import GraphEdit, Limits

#: Literals that Dask gives to the steps of such a product: axes of the transpose, contracted axis, keepdims.
_LITERALS = ((1, 0), (1,), True)


def mirrored(block: Any) -> Any:
    """Return a product of two blocks, with the contracted axis in the middle, as the product of both swapped."""
    return block.transpose(2, 1, 0)


def mirror_products(edit: GraphEdit, limits: Limits) -> None:
    """Compute only one of two mirrored products, if results of both have room in memory."""
    # Consumers of the second product then run with those of the first.
    graph = edit.graph
    if limits.resident_bytes is None or not dask.config.get("dask-mars.expressions.reductions", True):
        return
    symmetric = {operand_id for operand_id, operand in enumerate(graph.operands) if _is_symmetric(operand)}
    first_of = _mirrored(graph, symmetric, edit.fixed.union(graph.outputs)) if symmetric else {}
    if not first_of:
        return
    consumers = [chunk for chunk, sources in enumerate(graph.inputs) if any(at in first_of for at in sources)]
    sizes = [edit.size_of(chunk) for chunk in consumers]
    if (
        None in sizes
        or not graph.chunks_for_client().isdisjoint(consumers)
        or sum(filter(None, sizes)) > limits.resident_bytes()
    ):
        return
    known: dict[tuple[int, tuple[bool, ...]], int] = {}
    eager = bytearray(len(graph))
    for chunk in consumers:
        sources = graph.inputs[chunk]
        swapped = tuple([source in first_of for source in sources])
        pattern = graph.operand_of[chunk], swapped
        if pattern not in known:
            calls = tuple([mirrored if is_it else None for is_it in swapped])
            known[pattern] = edit.add_operand(with_calls(graph.operands[pattern[0]], calls))
        graph.operand_of[chunk] = known[pattern]
        graph.inputs[chunk] = tuple([first_of.get(source, source) for source in sources])
        eager[chunk] = all(swapped)
    edit.reorder(eager)


def _is_symmetric(operand: Operand) -> bool:
    """Return whether an operand only multiplies an input by the transpose of another."""
    if operand.input_count != 2 or operand.literal_count != 3 or len(operand.steps) != 3 or operand.in_client:
        return False
    transpose, product, total = operand.steps
    functions = [operand.functions[step.function] for step in operand.steps]
    summing = functions[2]
    return (
        functions[0] is np.transpose
        and functions[1] is arrays._matmul
        and type(summing) is partial
        and summing.func is arrays._chunk_sum
        and not summing.args
        and set(summing.keywords) <= {"dtype"}
        and transpose.keywords == ("axes",)
        and transpose.slots in ((0, 2), (1, 2))
        and set(product.slots) == {5, 1 - transpose.slots[0]}
        and not product.keywords
        and total == (total.function, (6, 3, 4), ("axis", "keepdims"))
    )


def _mirrored(graph: ChunkGraph, symmetric: set[int], kept: set[int]) -> dict[int, int]:
    """Return, for each product that mirrors an earlier one, the earlier one."""
    found: dict[int, int] = {}
    seen: dict[tuple[int, int, int], int] = {}
    for chunk, operand in enumerate(graph.operand_of):
        if operand not in symmetric or chunk in kept or graph.literals[chunk] != _LITERALS:
            continue
        first, second = graph.inputs[chunk]
        if not (_is_of_numbers(graph, first) and _is_of_numbers(graph, second)):
            continue
        mirror = seen.get((operand, second, first))
        if mirror is None or first == second:
            seen[operand, first, second] = chunk
        else:
            found[chunk] = mirror
    return found


def _is_of_numbers(graph: ChunkGraph, chunk: int) -> bool:
    # Products of other values may differ when mirrored.
    dtype, shape = graph.dtype_of(chunk), graph.shape_of(chunk)
    return dtype is not None and dtype.kind in "biufc" and shape is not None and len(shape) == 2
