"""Private names of Dask's: where they may stand, and what becomes of computations when one is gone."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import pytest

import dask_mars
from dask_mars import dask_api, errors
from dask_mars.optimize import known, prepare
from tests.conftest import environment_for_scripts
from tests.dask_api.deleted_names import MODULES

PACKAGE = Path(dask_mars.__file__).parent
FENCED = (PACKAGE / "dask_api", PACKAGE / "cluster" / "distributed_api.py")

#: What Dask documents, or has had in its place for years, by module.
PUBLIC = {
    "dask": None,
    "dask.array": {"Array"},
    "dask.callbacks": {"Callback"},
    "dask.dataframe.dispatch": {"concat"},
    "dask.dot": {"graphviz_to_file"},
    "dask.highlevelgraph": {"HighLevelGraph", "Layer", "MaterializedLayer"},
    "dask.sizeof": {"sizeof"},
    "dask.system": {"CPU_COUNT"},
    "dask.tokenize": {"tokenize"},
    "dask.utils": None,
    "distributed": None,
    "distributed.scheduler": {"TaskState", "WorkerState"},
}


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the modules of Dask's and distributed's that a file imports, with the names."""
    text = path.read_text(encoding="utf-8")
    if not re.search(r"^ *(from|import) (dask|distributed)\b", text, re.MULTILINE):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found = [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found = [(alias.name, "") for alias in node.names]
        else:
            continue
        yield from [pair for pair in found if pair[0].partition(".")[0] in ("dask", "distributed")]


def test_private_names_stand_in_two_places() -> None:
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        if any(path == place or place in path.parents for place in FENCED) or "testing" in path.parts:
            continue
        for module, name in imported(path):
            known = PUBLIC.get(module, ())
            if name.startswith("_") or (known is not None and name not in known):
                wrong.append(f"{path.relative_to(PACKAGE)}: {module} {name}")
    assert wrong == []


def names(kind: str) -> list[str]:
    """Return the names that `dask_api` takes from Dask: the needed ones, or the optional ones."""
    found = []
    for path in sorted((PACKAGE / "dask_api").glob("*.py")):
        if path.stem not in MODULES:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = {
            node.targets[0].id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if kind == "optional" and isinstance(node, ast.Call) and getattr(node.func, "id", "") == "optional":
                module, *rest = [constants.get(a.id) if isinstance(a, ast.Name) else a.value for a in node.args]
                found += [f"{module}.{name}" for name in rest if module is not None]
            if kind == "needed" and isinstance(node, ast.Try):
                imports = [part for part in node.body if isinstance(part, ast.ImportFrom)]
                found += [f"{part.module}.{alias.name}" for part in imports for alias in part.names]
    if kind == "optional" and "expressions" in MODULES:
        copied = importlib.import_module("dask_mars.dask_api.expressions")._COPIED
        found += [f"{module}.{name}" for module, names in copied.items() for name in names]
    return found


def outcomes(*deleted: list[str]) -> list[dict[str, Any]]:
    script = Path(__file__).with_name("deleted_names.py")
    done = subprocess.run(
        [sys.executable, str(script), *map(",".join, deleted)],
        env=environment_for_scripts("deleted"),
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def parts() -> list[list[str]]:
    """Return the optional names in parts: neighbours, which belong together, are gone in different ones."""
    found = [names("optional")[start::6] for start in range(6)]
    assert min(map(len, found)) > 8
    return found


def right(gone: list[str]) -> dict[str, Any]:
    return {"names": gone, "error": None, "warned": gone, "differs": False}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_names_that_are_gone_cost_a_warning_or_are_named() -> None:
    needed = names("needed")
    first, *others = outcomes(parts()[0], *[[name] for name in needed])
    assert first == right(parts()[0])
    for name, found in zip(needed, others, strict=True):
        assert found["error"], name
        assert "UnknownDask" in found["error"], found
        assert name.rpartition(".")[2] in found["error"], found
        assert errors.TESTED_DASK in found["error"]


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_all_optional_names_may_go() -> None:
    gone = parts()[1:]
    assert outcomes(*gone) == list(map(right, gone))


def test_dotted_names_exist() -> None:
    for path in [*known.APPENDING, known.APPENDING_BEHIND, known.MAKER_OF_FILES, *known.WRITERS]:
        parts = path.split(".")
        for count in range(len(parts) - 1, 0, -1):
            try:
                value: Any = importlib.import_module(".".join(parts[:count]))
            except ImportError:
                continue
            for name in parts[count:]:
                value = getattr(value, name)
            break
        assert callable(value), path


def test_nothing_is_missing() -> None:
    for module in MODULES:
        importlib.import_module(f"dask_mars.dask_api.{module}")
    assert dask_api.missing == []


@pytest.mark.usefixtures("runtime")
def test_an_expression_that_is_not_understood_becomes_tasks(monkeypatch: Any) -> None:
    def changed(*_: Any) -> None:
        raise TypeError("took another argument")

    monkeypatch.setattr(prepare, "symbolic_graph", changed)
    monkeypatch.setattr(dask_api, "_warned", False)
    x = da.ones((20, 20), chunks=5) + 1
    with pytest.warns(errors.DaskDiffers, match=r"took another argument") as caught:
        assert x.sum().compute(scheduler=dask_mars.get) == 800
    assert dask.__version__ in str(caught[0].message)
    assert dask_mars.__version__ in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert x.sum().compute(scheduler=dask_mars.get) == 800


@pytest.mark.usefixtures("runtime")
def test_an_error_of_the_users_graph_is_raised_as_it_is(monkeypatch: Any) -> None:
    monkeypatch.setattr(dask_api, "_warned", False)

    class Odd(dask.highlevelgraph.Layer):  # type: ignore[misc]
        def is_materialized(self) -> bool:
            raise TypeError("of the user's")

        def __getitem__(self, key: Any) -> Any:
            raise TypeError("of the user's")

        def __iter__(self) -> Any:
            raise TypeError("of the user's")

        def __len__(self) -> int:
            return 1

        def get_output_keys(self) -> set[Any]:
            return {"x"}

    graph = dask.highlevelgraph.HighLevelGraph({"x": Odd()}, {"x": set()})
    with pytest.raises(TypeError, match="of the user's"):
        dask_mars.get(graph, "x")
