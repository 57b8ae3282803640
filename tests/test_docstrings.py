"""What docstrings say of parameters is what functions take."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "dask_mars"
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


def callables(tree: ast.Module) -> Iterator[tuple[str, str, Function]]:
    """Yield name, docstring and function; a class documents what its `__init__` takes."""
    for node in ast.walk(tree):
        if isinstance(node, Function) and (docstring := ast.get_docstring(node)):
            yield node.name, docstring, node
        elif isinstance(node, ast.ClassDef) and (docstring := ast.get_docstring(node)):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
                    yield node.name, docstring, inner


def test_parameters_that_are_documented_are_taken():
    unknown = [
        f"{path}: {name} has no {parameter}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name, docstring, function in callables(ast.parse(path.read_text(encoding="utf-8")))
        for parameter in set(documented(docstring)) - set(taken(function))
    ]
    assert not unknown, "\n".join(unknown)
