"""Settings: defaults, schema, who comes before whom, and how much memory there is."""

from __future__ import annotations

import dataclasses
import math
import re
import tempfile
import warnings
from pathlib import Path

import dask
import numpy as np
import pytest
from dask.system import CPU_COUNT

from dask_mars import Runtime, config, setting_table
from dask_mars.errors import MemoryLimitTooLow

jsonschema = pytest.importorskip("jsonschema")

DEFAULTS = setting_table.defaults()
SCHEMA = setting_table.schema()


# -- defaults and schema ----------------------------------------------------------------------------------------


def test_defaults_satisfy_the_schema_and_settings_have_names_of_their_own():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(DEFAULTS["dask-mars"], SCHEMA)
    names = [setting.name for setting in setting_table.SETTINGS]
    assert len(set(names)) == len(names)


def test_every_setting_is_read_somewhere():
    package = Path(setting_table.__file__).parent
    code = "".join(path.read_text() for path in package.rglob("*.py") if path.name != "setting_table.py")
    unread = [setting.name for setting in setting_table.SETTINGS if f'{setting.name}"' not in code]
    assert not unread


def test_defaults_are_in_dask_s_configuration_below_what_the_user_says():
    assert set(dask.config.get("dask-mars")) >= set(DEFAULTS["dask-mars"])
    with dask.config.set({"dask-mars.retries": 7}):
        config.load_defaults()
        assert config.get("retries") == 7
    dask.config.defaults.pop()


def test_the_address_of_a_scheduler_may_come_from_the_environment():
    assert config.scheduler_address() is None
    for name in ("DASK_MARS__SCHEDULER_ADDRESS", "DASK_DASK_MARS__SCHEDULER_ADDRESS"):
        with dask.config.set(dask.config.collect_env({name: "tcp://10.0.0.1:8786"})):
            assert config.scheduler_address() == "tcp://10.0.0.1:8786"


def test_every_default_resolves_to_a_number():
    with dask.config.set(DEFAULTS):
        settings = config.settings()
    for field in dataclasses.fields(settings):
        if not isinstance(getattr(settings, field.name), str | dict | Path | None):
            assert getattr(settings, field.name) >= 0, field.name
    assert (settings.policy, settings.assignment, settings.resources) == ("mars", "breadth-first", {})
    assert settings.store_limit == settings.memory_limit // 2
    assert settings.retries == 0
    assert (settings.cancel_grace_s, settings.start_timeout_s, settings.idle_timeout_s) == (0.2, 60.0, 600.0)


@pytest.mark.parametrize(
    ("name", "text", "field", "expected"),
    [
        ("cancel-grace", "2s", "cancel_grace_s", 2.0),
        ("start-timeout", "1 minute", "start_timeout_s", 60.0),
        ("retries", 4, "retries", 4),
        ("idle-timeout", "1 hour", "idle_timeout_s", 3600.0),
        ("idle-timeout", None, "idle_timeout_s", None),
    ],
)
def test_settings_come_from_the_configuration(name, text, field, expected):
    with dask.config.set({f"dask-mars.{name}": text}):
        assert getattr(config.settings(), field) == expected


# -- number of workers ------------------------------------------------------------------------------------------


def test_argument_comes_first_then_dask_then_ours_then_the_processors():
    with dask.config.set({"num_workers": None, "dask-mars.num-workers": None}):
        assert config.settings().num_workers == CPU_COUNT
        with dask.config.set({"dask-mars.num-workers": 3}):
            assert config.settings().num_workers == 3
            with dask.config.set({"num_workers": 5}):
                assert config.settings().num_workers == 5
                assert config.settings(num_workers=7).num_workers == 7


def test_memory_limit_of_the_call_comes_before_the_configuration():
    with dask.config.set({"dask-mars.memory-limit": "1 GiB"}):
        assert config.settings().memory_limit == 1 << 30
        assert config.settings(memory_limit="2 GiB").memory_limit == 2 << 30
    with dask.config.set({"dask-mars.memory-limit": None}):
        assert config.settings().memory_limit == int(config.memory_available() * 0.8)


# -- memory -----------------------------------------------------------------------------------------------------


@pytest.fixture
def total(monkeypatch) -> int:
    monkeypatch.setattr(config, "memory_available", lambda: 1000)
    return 1000


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, 800),
        (0.25, 250),
        (1.0, 1000),
        ("60%", 600),
        (" 12.5 % ", 125),
        ("100%", 1000),
        (1, 1),
        (5000, 5000),
        (2e9, 2_000_000_000),
        (np.int64(5000), 5000),
        (np.float64(0.25), 250),
        (np.float32(0.25), 250),
        (np.float32(5000), 5000),
        ("4 GiB", 4 << 30),
        ("4GB", 4_000_000_000),
        ("123", 123),
    ],
)
def test_memory_limit_in_all_its_forms(total, limit, expected):
    assert config.parse_memory(limit) == expected


SENSELESS = [
    *[0, 0.0, -1, -0.5, math.nan, math.inf, -math.inf, True, False, [], {}, b"4 GiB", 1j],
    *["", "0", "-4 GiB", "0%", "-5%", "150%", "nan%", "0.0001%", "much", "lots", "x%", "4 parsecs", "nan", "inf"],
]


def test_memory_limit_that_makes_no_sense(total):
    for limit in SENSELESS:
        told = rf"must be a positive number of bytes, text such as '4 GiB', .* not {re.escape(repr(limit))}$"
        with pytest.raises(ValueError, match=f"^the memory limit {told}"):
            config.parse_memory(limit)
        with pytest.raises(ValueError, match=f"^memory_limit {told}"):
            config.settings(memory_limit=limit)
        for name, given in (("memory-limit", {}), ("store-limit", {"memory_limit": 1000})):
            with (
                dask.config.set({f"dask-mars.{name}": limit}),
                pytest.raises(ValueError, match=f"^dask-mars.{name} {told}"),
            ):
                config.settings(**given)


@pytest.mark.parametrize(("size", "expected"), [(0, 0), (1.9, 1), ("0", 0), ("16 kiB", 1 << 14), (np.int64(5), 5)])
def test_sizes_in_all_their_forms(size, expected):
    assert config.parse_size(size, "x") == expected


@pytest.mark.parametrize("limit", [1, "10"])
def test_a_limit_of_a_few_bytes_is_too_low_for_the_processes(limit):
    """And not for a share of it that nobody has named."""
    with Runtime(1, memory_limit=limit) as runtime, pytest.raises(MemoryLimitTooLow, match="num_workers=1"):
        runtime.get({"x": (abs, -1)}, "x")


def test_a_limit_above_the_memory_that_there_is_warns_once(total, monkeypatch):
    monkeypatch.setattr(config, "_has_warned", False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config.settings(memory_limit=1000)
        assert not caught
        Runtime(memory_limit=1001)
        Runtime(memory_limit=2000)
    (warning,) = caught
    assert re.search(r"1,001 bytes .*memory-limit.* 1,000 bytes", str(warning.message))
    assert warning.filename == __file__


@pytest.mark.parametrize(
    "size", [-1, -0.5, "-1", math.nan, math.inf, True, [], "", "lots", "5%", "4 parsecs"], ids=repr
)
def test_sizes_that_make_no_sense(size):
    told = rf"^a size must be 0 or more bytes, or text such as '16 kiB', and not {re.escape(repr(size))}$"
    with pytest.raises(ValueError, match=told):
        config.parse_size(size, "a size")


# -- the disk ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dask-mars.spill-directory", "temporary-directory"])
@pytest.mark.parametrize("below", [".", "below", "below/deep"])
def test_a_file_to_spill_into(tmp_path, name, below):
    file = tmp_path / "file"
    file.touch()
    none = {"temporary-directory": None, "dask-mars.spill-directory": None}
    told = f"^{name} must be a directory, but .*/file is a file$"
    with dask.config.set(none | {name: str(file / below)}), pytest.raises(ValueError, match=told):
        config.settings()


def test_directory_to_spill_into(tmp_path, monkeypatch):
    with dask.config.set({"temporary-directory": str(tmp_path), "dask-mars.spill-directory": None}):
        assert config.settings().spill_directory == tmp_path
        with dask.config.set({"dask-mars.spill-directory": "~/spilled"}):
            assert config.settings().spill_directory == Path.home() / "spilled"
    with dask.config.set({"temporary-directory": None, "dask-mars.spill-directory": None}):
        assert config.settings().spill_directory == Path("/var/tmp")
        monkeypatch.setattr(config.os, "access", lambda *_: False)
        assert config.settings().spill_directory == Path(tempfile.gettempdir())


def test_store_limit_is_a_share_of_the_memory_limit_and_no_more_than_it():
    for limit, expected in (("25%", 250), (0.5, 500), (100, 100), ("1 GiB", 1000)):
        with dask.config.set({"dask-mars.store-limit": limit}):
            assert config.settings(memory_limit=1000).store_limit == expected
