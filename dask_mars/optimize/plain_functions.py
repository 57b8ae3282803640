"""Finds functions of the user's that only call libraries, without loops: they may run where library code may.

The programs it serves: ``x.map_overlap(lambda b: b[1:] - b[:-1], depth=1)``, or ``map_blocks`` with a filter of
SciPy's, of arrays in memory. In processes they wait for copies of these: 0.65 of the time.
"""

from __future__ import annotations

import builtins
import dis
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

from dask_mars.optimize.known import LIBRARIES, unfolded

#: Instructions of loops, generators, functions and classes within, and those that change what outlives the call.
_REFUSED = frozenset(
    {"FOR_ITER", "MAKE_FUNCTION", "LOAD_BUILD_CLASS", "YIELD_VALUE", "RETURN_GENERATOR", "IMPORT_NAME"}
    | {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "STORE_DEREF", "DELETE_DEREF"}
)
#: Instructions that refer to functions, modules and methods by name.
_NAMING = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD"})
#: Functions and methods that call a function many times, write files, change containers, or speak to the user.
_REFUSED_NAMES = frozenset(
    {"agg", "aggregate", "apply", "apply_along_axis", "apply_over_axes", "applymap", "curve_fit", "filter"}
    | {"fromfunction", "fromiter", "frompyfunc", "fsolve", "generic_filter", "generic_filter1d", "map", "odeint"}
    | {"geometric_transform", "least_squares", "map_blocks", "minimize", "piecewise", "pipe", "quad", "root"}
    | {"solve_ivp", "transform", "vectorize", "compute", "persist", "append", "extend", "pop", "update"}
    | {"dump", "save", "savetxt", "savez", "savez_compressed", "setdefault", "tofile"}
    | {"to_csv", "to_hdf", "to_json", "to_netcdf", "to_parquet", "to_pickle", "to_sql"}
    | {"breakpoint", "delattr", "globals", "input", "locals", "next", "print", "setattr", "sorted", "vars"}
)
#: Instructions, functions and methods that write into arrays.
_WRITING_NAMES = frozenset(
    {"STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR", "at", "byteswap", "copyto", "fill", "fill_diagonal"}
    | {"itemset", "partition", "place", "put", "put_along_axis", "putmask", "resize", "setfield", "shuffle"}
    | {"sort"}
)
_MUTABLE = frozenset({list, dict, set, bytearray})
_JUMPS = frozenset([*dis.hasjrel, *dis.hasjabs])
#: Maximum size of the code in bytes; longer ones are programs, and take long to read.
_MOST_BYTES = 2000


def values_read(function: FunctionType) -> list[Any] | None:
    """Return the modules, functions and data that a function refers to; None if it may do more than call them."""
    code = function.__code__
    if len(code.co_code) > _MOST_BYTES:
        return None
    values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    try:
        values += [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:
        return None
    instructions = list(dis.get_instructions(code))
    for instruction in instructions:
        kind, argument = instruction.opname, instruction.argval
        if kind in _REFUSED or kind.startswith("JUMP_BACKWARD"):
            return None
        if instruction.opcode in _JUMPS and argument <= instruction.offset:
            return None
        if kind in _NAMING:
            if argument in _REFUSED_NAMES:
                return None
            if kind in ("LOAD_GLOBAL", "LOAD_NAME"):
                values.append(function.__globals__.get(argument, getattr(builtins, argument, None)))
    writes = _has_writes(function, instructions)
    # Of an array it may write into the user's own; in processes nothing would come of that.
    may_change = any(type(value) in _MUTABLE or (writes and hasattr(value, "__setitem__")) for value in values)
    return None if may_change else values


class Effects(NamedTuple):
    """Effects of a function, and of those that it calls, besides its value."""

    #: Whether it writes into arrays, which may be its own.
    writes: bool
    #: Whether it takes numbers from a generator of random numbers that it refers to.
    draws: bool


def effects_of(function: Any, depth: int = 16) -> Effects:
    """Return the effects of a function of the user's; libraries' have none."""
    if type(function) is partial and depth:
        return effects_of(function.func, depth - 1)
    if type(function) is not FunctionType:
        return Effects(False, False)
    if str(function.__globals__.get("__name__")).partition(".")[0] in LIBRARIES:
        return Effects(False, False)
    values = values_read(function) if depth else None
    if values is None:
        return Effects(True, True)
    instructions = list(dis.get_instructions(function.__code__))
    writes = _has_writes(function, instructions)
    draws = any(instruction.argval == "random" for instruction in instructions) or any(map(_is_random, values))
    inner = [effects_of(value, depth - 1) for value in values]
    return Effects(writes or any(each.writes for each in inner), draws or any(each.draws for each in inner))


def writes_of(functions: tuple[Any, ...]) -> bool:
    """Return whether functions of the user's among those of an operand write into arrays."""
    return any(effects_of(function).writes for function in unfolded(functions))


def _is_random(value: Any) -> bool:
    """Return whether a value is a generator of random numbers of NumPy's, or a method of one."""
    owner = getattr(value, "__self__", value)
    return any(str(type(each).__module__).startswith("numpy.random") for each in (value, owner))


def _has_writes(function: FunctionType, instructions: list[dis.Instruction]) -> bool:
    # Names of keyword arguments are a tuple among the constants.
    has_out = any(type(constant) is tuple and "out" in constant for constant in function.__code__.co_consts)
    return has_out or any(map(_may_write, instructions))


def _may_write(instruction: dis.Instruction) -> bool:
    """Return whether an instruction writes into an array, or names a function that does."""
    kind, argument = instruction.opname, instruction.argval
    if kind == "BINARY_OP":
        # Such as `+=`.
        return instruction.argrepr.endswith("=")
    return kind in _WRITING_NAMES or argument in _WRITING_NAMES
