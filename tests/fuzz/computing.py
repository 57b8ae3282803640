"""Statements that compute, persist, optimise, copy or delete what a program has made."""

from __future__ import annotations

from tests.fuzz.drawing import Unfit
from tests.fuzz.maker import Maker
from tests.fuzz.operations import Variable

#: Settings for one computation.
_SETTINGS = [
    "'optimization.fuse.active': True",
    "'optimization.fuse.active': False",
    "'dask-mars.expressions.reductions': False",
    "'dask-mars.writable-inputs': True",
]
#: Kinds whose collections are expressions of Dask's.
_OF_FRAMES = {"frame", "series", "index", "scalar"}


def some_step(maker: Maker) -> None:
    """Add one more statement, whatever it is."""
    what = maker.weighted({"operate": 16, "compute": 2, "persist": 2, "optimize": 0.7, "copy": 0.7, "delete": 1})
    if not maker.variables:
        return
    try:
        match what:
            case "operate":
                for _ in range(8):
                    if maker.operate():
                        break
            case "compute":
                _compute(maker)
            case "persist":
                _several(maker, "persist")
            case "optimize":
                _several(maker, "optimize")
            case "copy":
                _copy(maker)
            case "delete":
                maker.delete()
    except Unfit:
        pass


def last_steps(maker: Maker) -> None:
    """Compute what a program has come to."""
    if not maker.variables:
        return
    maker.compute(f"dask.compute({', '.join(map(str, maker.variables[-4:]))})", "compute")
    for _ in range(maker.integer(0, 2)):
        try:
            _compute(maker)
        except Unfit:
            continue


def _several(maker: Maker, function: str) -> None:
    """Persist or optimise some."""
    chosen = maker.some(3)
    if function == "optimize":
        chosen = _alike(chosen)
    option = maker.choice(["", "", ", optimize_graph=False"]) if function == "persist" else ""
    text = f"dask.{function}({_listed(chosen)}{option})"
    maker.add(text, function, rounded=any(it.rounded for it in chosen), like=chosen)


def _copy(maker: Maker) -> None:
    first = maker.some(1, {"array", "bag", "delayed", "xarray"})[0]
    # Of dataframes nothing but the names of their expressions would be known to what waits for them.
    others = _listed(maker.some(2, {"array", "bag", "delayed", "xarray"}))
    seed = maker.seed()
    copied = [f"clone({first}, seed={seed})", f"bind({first}, [{others}], seed={seed})"]
    text = maker.choice([*copied, f"wait_on({first})", f"checkpoint({others})"])
    maker.add(text, "graph_manipulation", rounded=maker.rounded(text))


def _compute(maker: Maker) -> None:
    chosen = maker.some(4)
    first = chosen[-1]
    ways = {
        f"{first}.compute()": 5,
        f"{first}.compute(optimize_graph=False)": 2,
        f"dask.compute({_listed(chosen)})": 5,
        f"dask.compute({_listed([*chosen, first])})": 1,
        f"dask.compute({_listed(chosen)}, optimize_graph=False)": 2,
        f"dask.compute({_nested(chosen)})": 2,
        f"dask.compute(*dask.optimize({_listed(_alike(chosen))}))": 1,
        f"dask.compute({_listed(chosen)}, num_workers=1)": 0.5,
        **_ways_of_kind(maker, first),
    }
    if not any(it.kind in _OF_FRAMES for it in chosen):
        # Expressions of dataframes lock each other out in Python 3.11, whose cached properties have locks.
        ways[f"together({_listed(chosen)})"] = 1.5
    prefix = f"with dask.config.set({{{maker.choice(_SETTINGS)}}}): " if maker.chance(0.1) else ""
    maker.compute(maker.weighted(ways), "compute", prefix)


def _ways_of_kind(maker: Maker, first: Variable) -> dict[str, float]:
    match first.kind:
        case "array":
            others = [it for it in maker.some(3, {"array"}) if it.dtype.kind in "biufcM"]
            ways: dict[str, float] = {
                f"np.asarray({first})": 1,
                f"[it.compute() for it in {first}.to_delayed().ravel()[:2]]": 1,
            }
            if first.ndim:
                ways[f"[block.compute() for block in list({first}.blocks.ravel())[-2:]]"] = 1
            if others:
                ways[f"stored([{_listed(others)}])"] = 3
                ways[f"stored([{_listed(others)}], lock=False)"] = 1
            return ways
        case "xarray" | "dataset":
            return {f"{first}.copy().load()": 1, f"{first}.compute()": 1}
        case "frame" | "series":
            return {f"{first}.head(3)": 1, f"len({first})": 1, f"{first}.partitions[-1].compute()": 1}
        case "bag":
            return {f"{first}.take(2, npartitions=-1)": 1, f"list({first})": 1}
        case _:
            return {}


def _alike(variables: list[Variable]) -> list[Variable]:
    """Leave out dataframes or all else: Dask's `optimize` gives both together the keys of others."""
    return [it for it in variables if (it.kind in _OF_FRAMES) == (variables[-1].kind in _OF_FRAMES)]


def _listed(variables: list[Variable]) -> str:
    return ", ".join(map(str, variables))


def _nested(variables: list[Variable]) -> str:
    first, *rest = variables
    return f"{{'first': {first}, 'rest': [3, ({_listed(rest)}{',' if rest else ''})]}}"
