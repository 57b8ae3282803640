"""Clients and agents say when others have another version of dask_mars."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest
from distributed.utils_test import captured_logger, gen_cluster

from dask_mars.cluster import versions
from dask_mars.cluster.agent import MarsWorker
from dask_mars.cluster.marks import MARK
from dask_mars.version import __version__


def test_a_client_warns_once_of_agents_of_other_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_warned", set())
    expected = rf"^this process has dask_mars {__version__}, and agents .* have 0\.0\.8, 0\.0\.9: .* same version"
    with pytest.warns(UserWarning, match=expected):
        versions.warn_of_other_versions(["0.0.9", __version__, "0.0.8"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.warn_of_other_versions(["0.0.8", "0.0.9"])
        versions.warn_of_other_versions([__version__])
        versions.warn_of_other_versions([])


@pytest.mark.slow
@gen_cluster(nthreads=[("127.0.0.1", 1)], worker_kwargs={"startup_information": {MARK: lambda worker: "0.0.9"}})
async def test_an_agent_that_starts_says_so(scheduler: Any, a: Any) -> None:
    with captured_logger("dask_mars.cluster.agent", level=logging.WARNING) as log:
        async with MarsWorker(scheduler.address, nthreads=1):
            pass
    assert f"this agent has dask_mars {__version__}, and agents of this cluster have 0.0.9" in log.getvalue()
