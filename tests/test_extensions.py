"""What is said where the C extensions are missing, once in each program."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from dask_mars.extensions import missing_extensions

HIDING = """
import sys

class Hiding:
    def find_spec(self, name, path=None, target=None):
        if name in {hidden}:
            raise ImportError(name)

sys.meta_path.insert(0, Hiding())
"""
COMPUTING = """
import sys, warnings
import dask, dask.array as da, dask_mars

if __name__ == "__main__":
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for start in (True, False):
            dask.config.set({"dask-mars.start-in-threads": start})
            with dask_mars.Runtime(num_workers=1) as runtime:
                x = da.ones((300, 300), chunks=100).map_blocks(lambda block: block + 1)
                assert x.sum().compute(scheduler=runtime.get) == 180_000
                state = runtime.state()
    ours = [entry for entry in caught if issubclass(entry.category, dask_mars.errors.MissingExtensionWarning)]
    print(len(ours), state.missing_extensions)
    for entry in ours:
        print(entry.message)
    print(state)
"""
LEAVING = """
import sys
import dask, dask.array as da, dask_mars
from dask_mars.expressions import _native, _pcg64
from dask_mars.store import _arena

if __name__ == "__main__":
    with dask_mars.Runtime(num_workers=2) as runtime:
        # Threads compute the first, and a process the second.
        total = (da.ones((100, 100), chunks=50) + 1).sum().compute(scheduler=runtime.get)
        in_process = dask.delayed(lambda: sys._is_gil_enabled())().compute(scheduler=runtime.get)
        print(sys._is_gil_enabled(), in_process, float(total))
"""
pytestmark = pytest.mark.timeout(130)

ALL = ["dask_mars.store._arena", "dask_mars.expressions._native", "dask_mars.expressions._pcg64"]


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [ALL[:2], pytest.param([], marks=pytest.mark.nightly)], ids=["some", "none"])
def test_each_program_is_warned_once(hidden: list[str], scripts: Any, tmp_path: Path) -> None:
    if set(missing_extensions()) - set(hidden):
        pytest.skip("they are missing here")
    (tmp_path / "sitecustomize.py").write_text(HIDING.format(hidden=hidden))
    settings = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = scripts.run(str(scripts.write("computing.py", COMPUTING)), env=settings, timeout_s=100.0)
    assert (done.stderr, done.returncode) == ("", 0)
    first, *rest = done.stdout.splitlines()
    assert first == f"{int(bool(hidden))} {hidden}"
    assert all((name in rest[0]) == bool(hidden) for name in hidden)
    assert all((f"without {name}" in " ".join(rest[0].split())) == (name in hidden) for name in ALL)
    assert ("C compiler and Python's headers" in rest[0]) == bool(hidden)
    assert ("installed without" in " ".join(rest[1:])) == bool(hidden)


@pytest.mark.skipif(getattr(sys, "_is_gil_enabled", lambda: True)(), reason="there is a lock in any case")
def test_they_leave_the_lock_off(scripts: Any) -> None:
    done = scripts.run(str(scripts.write("leaving.py", LEAVING)), timeout_s=100.0)
    assert (done.stderr, done.stdout) == ("", "False False 20000.0\n")


def test_nothing_is_missing_where_it_could_be_built() -> None:
    assert set(missing_extensions()) <= set(ALL)
