"""Every public function of `dask.array`: what needs what is as in Dask's own tasks, and so are the values."""

from __future__ import annotations

import dask
import pytest

from tests.array_calls import CALLS, NAMESPACES, Arrays, public_functions
from tests.symbolic import Here, assert_identical, dependencies, dependencies_of_dask


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_no_function_is_forgotten(namespace: str) -> None:
    module, calls, exclusions = NAMESPACES[namespace]
    assert public_functions(module) <= calls.keys() | exclusions.keys()
    assert not calls.keys() & exclusions.keys()
    assert all(exclusions.values())


#: The names of a few calls each: to compute them together takes a fraction of the time.
BATCHES = [list(CALLS)[start : start + 8] for start in range(0, len(CALLS), 8)]


#: Of every sixth in any run; of all where there is time.
QUICK = [pytest.param(names, marks=pytest.mark.slow if place % 6 else ()) for place, names in enumerate(BATCHES)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("names", QUICK, ids=" ".join)
def test_functions(names: list[str]) -> None:
    made = [CALLS[name](Arrays()) for name in names]
    here = Here()
    ours = dask.compute(made, scheduler=here)
    # Dask's own tasks come last: once a layer has them, it is symbolic no more.
    assert_identical(ours, dask.compute(made, scheduler="sync"))
    assert dependencies(here.converted) == dependencies_of_dask(here.expression, here.wanted)
