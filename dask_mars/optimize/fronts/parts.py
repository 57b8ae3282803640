"""Arrays assembled from parts of chunks that are read in place: no part is a chunk of its own."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from dask_mars.dask_api import is_gone
from dask_mars.dask_api.loaded import arrays
from dask_mars.optimize.fronts.base import NotSymbolic, TaskCompiler
from dask_mars.optimize.programs import Program, make_list

#: Divisor of the store's limit in memory that gives the bytes of chunks whose parts are read in place.
RESIDENT_SHARE = 4


class Residents:
    """The budget of bytes that stay in memory for readers of parts in place."""

    def __init__(self, limit_bytes: Callable[[], int]) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0

    def reserve(self, size: int) -> bool:
        """Reserve bytes; return whether there is room for them."""
        if self._used_bytes + size > self._limit_bytes():
            return False
        self._used_bytes += size
        return True


class PartOperands:
    """The operands that assemble parts of their inputs."""

    def __init__(self, compiler: TaskCompiler, name: str) -> None:
        self._compiler = compiler
        self._name = name
        self._operands: dict[tuple[bool, ...], int] = {}

    def operand_id(self, whole: Sequence[bool]) -> int:
        """Return the id of an operand."""
        # `whole` has for each input whether it is taken whole. The literals are the slices of the other inputs, in
        # order, and the number of parts along each axis; with a single input, only its slice.
        pattern = tuple(whole)
        operand = self._operands.get(pattern)
        if operand is None:
            program = Program()
            inputs = [program.input(at) for at in range(len(pattern))]
            parts = [
                code if is_all else program.step(operator.getitem, (code, program.literal(None)))
                for code, is_all in zip(inputs, pattern, strict=True)
            ]
            if len(parts) > 1:
                if is_gone(arrays.concatenate_shaped):
                    raise NotSymbolic("Dask has no concatenate_shaped")
                blocks = program.step(make_list, tuple(parts))
                program.step(arrays.concatenate_shaped, (blocks, program.literal(None)))
            operand = self._operands[pattern] = self._compiler.operand_of(self._name, program)
        return operand
