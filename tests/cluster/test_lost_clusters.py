"""Clusters that are lost whole at any moment of a computation: its call goes on when they are back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client

import dask_mars
from dask_mars.cluster import backend, submission
from dask_mars.cluster.local_tasks import LocalTasks
from tests.cluster.conftest import Place
from tests.conftest import PATIENCE_S

pytestmark = pytest.mark.slow

WAITING = {"dask-mars.cluster.reconnect-timeout": f"{PATIENCE_S} s"}


def first_time(place: Place, is_first: list[bool]) -> None:
    """Lose the scheduler and its agents, once."""
    if is_first:
        is_first.clear()
        place.stop()
        place.start()


def lost_before(place: Place, function: Callable[..., Any]) -> Callable[..., Any]:
    is_first = [True]

    def call(*args: Any, **kwargs: Any) -> Any:
        first_time(place, is_first)
        return function(*args, **kwargs)

    return call


def lost_after(place: Place, function: Callable[..., Any]) -> Callable[..., Any]:
    is_first = [True]

    def call(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        first_time(place, is_first)
        return found

    return call


MOMENTS = {
    "cut": (submission, "cut_for", lost_before),
    "progress": (submission.ProgressReceiver, "open", lost_before),
    "to be sent": (submission._Submission, "_send", lost_before),
    "sent": (Client, "get", lost_after),
    "sent once": (submission, "register_once", lost_after),
    "fetched": (LocalTasks, "fetch", lost_before),
    "released": (submission, "unregister_once", lost_before),
}


#: Those of which the others are likenesses.
SHORT = ("progress", "to be sent", "sent")


@pytest.mark.parametrize("moments", [SHORT, pytest.param([*MOMENTS, *MOMENTS], marks=pytest.mark.nightly)])
def test_the_scheduler_is_lost_at_any_moment(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moments: Sequence[str]
) -> None:
    x = da.random.default_rng(5).random((40, 40), chunks=10) + 1
    expected = x.compute(scheduler="sync")
    with Client(place.address), dask.config.set(WAITING):
        for number, moment in enumerate(moments):
            owner, name, lost = MOMENTS[moment]
            saved = tmp_path / "saved" if (number < len(moments) // 2) else None
            with (
                monkeypatch.context() as patch,
                dask.config.set({"dask-mars.checkpoint.directory": saved and str(saved)}),
            ):
                patch.setattr(owner, name, lost(place, getattr(owner, name)))
                computation = dask_mars.submit(x)
                np.testing.assert_array_equal(computation.result(PATIENCE_S), expected, moment)
            assert not saved or list(saved.iterdir()) == []
        backend.close()
