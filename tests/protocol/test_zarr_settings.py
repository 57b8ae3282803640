"""Settings of zarr as variables of the environment: what the user has changed, and nothing else."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from dask_mars.protocol import zarr_settings


def test_nothing_without_zarr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "zarr.core.config", raising=False)
    assert zarr_settings.in_force() == {}
    zarr_settings.read_again()


def test_what_differs_from_defaults(zarr: Any) -> None:
    assert zarr_settings.in_force() == {}
    with zarr.config.set({"threading.max_workers": 3, "codecs.zstd": "mine.Zstd", "async.concurrency": 10}):
        assert zarr_settings.in_force() == {"ZARR_THREADING__MAX_WORKERS": "3", "ZARR_CODECS__ZSTD": "'mine.Zstd'"}
    assert zarr_settings.in_force() == {}


def test_what_no_variable_can_say_stays(zarr: Any) -> None:
    with zarr.config.set({"json_indent": object(), "array.order": "F"}):
        assert zarr_settings.in_force() == {"ZARR_ARRAY__ORDER": "'F'"}


@pytest.mark.parametrize("value", [None, True, 0, 2.5, "", "a 'b'", "3"])
def test_values_come_back_from_variables(zarr: Any, monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    with zarr.config.set({"a.setting": value}):
        variables = zarr_settings.in_force()
    if value is None:
        # As much as no such setting.
        assert variables == {}
        return
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    zarr_settings.read_again()
    assert zarr.config.get("a.setting") == value
    monkeypatch.undo()
    zarr_settings.read_again()
    assert zarr.config.get("a.setting", None) is None


def test_other_versions_of_zarr_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (object(), type("Module", (), {"config": type("Config", (), {"defaults": [], "config": {}})})):
        monkeypatch.setitem(sys.modules, "zarr.core.config", module)
        assert zarr_settings.in_force() == {}
