"""Bounds on the sizes of modules, classes and functions, unique names of classes, and parameters in docstrings.

Exceptions are listed with their size, which may only shrink: `python -m tests.test_structure` prints the list.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "dask_mars"

#: Lines of a module and of a class, methods and attributes of a class, lines of a function without its docstring.
BOUNDS = {"module": 500, "class": 400, "methods": 30, "attributes": 20, "function": 50}

#: What is larger, each by kind and name, with its size.
LARGER = {
    ("attributes", "dask_mars/scheduler/bookkeeping.py:Graph"): 23,
}

#: Class names that several modules define.
SHARED_NAMES = {
    "Context",
    "Failed",
    "Finished",
    "Free",
    "Limits",
    "Run",
    "Setting",
    "Workforce",
}


def larger() -> dict[tuple[str, str], int]:
    """Return what exceeds its bound, with its size."""
    return {
        (kind, name): size
        for path in sorted(PACKAGE.rglob("*.py"))
        for kind, name, size in sizes(path)
        if size > BOUNDS[kind]
    }


def sizes(path: Path) -> Iterator[tuple[str, str, int]]:
    """Give kind, name and size of a module and of what it defines."""
    module = path.relative_to(ROOT).as_posix()
    yield "module", module, len(path.read_text().splitlines())
    for node in definitions(path):
        if isinstance(node, ast.ClassDef):
            name = f"{module}:{node.name}"
            functions = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
            yield "class", name, lines_of(node)
            yield "methods", name, len(functions)
            yield "attributes", name, max([len(attributes_of(function)) for function in functions], default=0)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            documented = len((ast.get_docstring(node, clean=False) or "").splitlines())
            yield "function", f"{module}:{node.name}", lines_of(node) - documented


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def definitions(path: Path) -> list[ast.AST]:
    """Return the classes and functions of a module, at any depth; expressions define none."""
    found: list[ast.AST] = []
    todo: list[ast.AST] = [parsed(path)]
    while todo:
        for node in ast.iter_child_nodes(todo.pop()):
            if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
                todo.append(node)
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(node)
    return found


def lines_of(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def attributes_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the attributes that a constructor sets."""
    if function.name != "__init__":
        return set()
    return {
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    }


def shared_names() -> set[str]:
    """Return the names of classes that more than one module defines."""
    counts = Counter(
        node.name for path in PACKAGE.rglob("*.py") for node in parsed(path).body if isinstance(node, ast.ClassDef)
    )
    return {name for name, count in counts.items() if count > 1}


def test_nothing_is_larger_than_its_bound_but_what_is_listed() -> None:
    found = larger()
    grown = {what: size for what, size in found.items() if size > LARGER.get(what, 0)}
    assert not grown, "larger than its bound, or than it was"
    assert found == LARGER, "smaller than listed: run python -m tests.test_structure, and list what it prints"


def test_no_two_classes_have_one_name_but_what_is_listed() -> None:
    assert shared_names() == SHARED_NAMES


# -- docstrings --------------------------------------------------------------------------------------------------

Function = ast.FunctionDef | ast.AsyncFunctionDef


def documented(docstring: str) -> list[str]:
    """Return the names under the heading of parameters."""
    _, found, rest = docstring.partition("Parameters\n----------\n")
    if not found:
        return []
    section = re.split(r"\n\n?\S[^\n]*\n-{3,}\n", rest)[0]
    heads = re.findall(r"^(\*{0,2}\w[^\n]*?)(?: : |$)", section, re.MULTILINE)
    return [name.strip().lstrip("*") for head in heads for name in head.split(",")]


def taken(function: Function) -> list[str]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
    return [argument.arg for argument in every if argument is not None]


def callables(path: Path) -> Iterator[tuple[str, str, Function]]:
    """Yield name, docstring and function; a class documents what its `__init__` takes."""
    for node in definitions(path):
        if isinstance(node, Function) and (docstring := ast.get_docstring(node)):
            yield node.name, docstring, node
        elif isinstance(node, ast.ClassDef) and (docstring := ast.get_docstring(node)):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
                    yield node.name, docstring, inner


def test_parameters_that_are_documented_are_taken() -> None:
    unknown = [
        f"{path}: {name} has no {parameter}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name, docstring, function in callables(path)
        for parameter in set(documented(docstring)) - set(taken(function))
    ]
    assert not unknown, "\n".join(unknown)


if __name__ == "__main__":
    for what, size in larger().items():
        print(f"    {what!r}: {size},".replace("'", '"'))
    print(sorted(shared_names()))
