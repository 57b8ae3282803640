"""The contract of backends, for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client

from dask_mars import Runtime
from dask_mars.client.backend import EngineBackend
from dask_mars.client.request import Backend, InlineBackend, Options
from dask_mars.cluster.backend import cluster_of
from tests.client.backend_contract import BackendTests


class TestInline(BackendTests):
    @pytest.fixture
    def backend(self) -> Backend:
        return InlineBackend()


class TestEngine(BackendTests):
    @pytest.fixture
    def backend(self, runtime: Runtime) -> Backend:
        return EngineBackend(runtime.engine, lambda: runtime.settings.store_limit)


@pytest.mark.slow
class TestCluster(BackendTests):
    @pytest.fixture
    def backend(self, cluster: Any) -> Iterator[Backend]:
        with Client(cluster, set_as_default=False) as client:
            yield cluster_of(client)


def test_options_of_others_are_passed_over():
    known = Options.known({"retries": 3, "pool": object(), "callbacks": []})
    assert known == Options(retries=3, callbacks=[])
