"""What `state()` returns: a dict, attributes, tables."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import dask
import pytest

from dask_mars import Runtime
from dask_mars.runtime_state import RuntimeState
from tests.conftest import eventually
from tests.tasks import wait_for

_arena = pytest.importorskip("dask_mars.store._arena")

TELLING = """
import dask.array as da, dask_mars

if __name__ == "__main__":
    with dask_mars.Runtime(num_workers=1) as runtime:
        da.ones(10).sum().compute(scheduler=runtime.get)
        state = runtime.state()
        print(state.object_quotas, "Python objects have no quotas" in " ".join(str(state).split()))
"""
STATE = RuntimeState(
    graphs=[{"graph": 7, "chunks": {"FINISHED": 1234, "RUNNING": 2, "READY": 3}}],
    persisted=1,
    reservations=[],
    workers=[
        {
            "worker": number,
            "label": f"worker {number}",
            "pid": 100 + number,
            "running": ("x" * 200, number),
            "step": "compute",
            "dispatched": 5000,
        }
        for number in range(70)
    ],
    store={"stored_bytes": 1 << 20, "limit_bytes": 1 << 30, "reserved_bytes": 2048, "spilled_bytes": 5 << 20},
)


def test_it_is_a_dict_and_its_entries_are_attributes() -> None:
    assert STATE.to_dict() == dict(STATE) == STATE
    assert type(STATE.to_dict()) is dict
    assert STATE.workers is STATE["workers"]
    assert "workers" in dir(STATE)
    with pytest.raises(
        AttributeError, match="tells no 'nothing', but graphs, persisted, reservations, workers, store"
    ):
        STATE.nothing
    assert pickle.loads(pickle.dumps(STATE)) == copy.deepcopy(STATE) == STATE
    assert isinstance(pickle.loads(pickle.dumps(STATE)), RuntimeState)


def test_it_is_shown_as_tables_with_units() -> None:
    text = str(STATE)
    title = " ".join(text.split())
    assert title.startswith(
        "70 workers; the store has 1.00 MiB of 1.00 GiB, 2.00 KiB reserved, 5.00 MiB written to disk; "
        "1 chunk persisted"
    )
    assert "and 6 more" in text
    assert "5,000" in text
    assert "1,234" in text
    assert "x" * 100 not in text
    page = STATE._repr_html_()
    assert page.count("<table") == 2
    assert "1,234" in page


def test_of_one_that_is_not_running(capsys: pytest.CaptureFixture[str]) -> None:
    state = Runtime(num_workers=1).state()
    assert state == {}
    assert str(state) == "no workers are running"
    assert "no workers" in state._repr_html_()
    with pytest.raises(AttributeError, match="tells no 'workers', but nothing"):
        state.workers


@pytest.mark.parametrize("allocator", ["default", pytest.param("debug", marks=pytest.mark.slow)])
def test_it_tells_whether_objects_have_quotas(allocator: str, scripts: Any) -> None:
    # One that checks blocks, like that of free threads, has none that can be counted.
    counted = allocator == "default" and _arena.can_limit_objects()
    done = scripts.run(str(scripts.write("telling.py", TELLING)), env={"PYTHONMALLOC": allocator})
    assert (done.stderr, done.stdout) == ("", f"{counted} {not counted}\n")


def test_of_one_that_computes(runtime: Runtime, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    computation = runtime.submit(dask.delayed(wait_for)(tmp_path / "go", dask_key_name="waits"), name="waiting")
    try:
        assert eventually(lambda: "waits" in str(runtime.state()), 20)
        frame: Any = runtime.state().to_pandas()
        assert isinstance(frame, pandas.DataFrame)
        assert list(frame.columns) == ["worker", "label", "pid", "running", "step", "dispatched"]
        assert runtime.explain().lines == runtime.explain().to_dict()["lines"]
        told = computation.to_dict()
        assert (told["name"], told["state"], told["id"]) == ("waiting", "running", computation.id)
    finally:
        (tmp_path / "go").touch()
    computation.result(100)
    assert [layer["finished"] for layer in computation.to_dict()["layers"]] == [1]
