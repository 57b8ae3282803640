"""Wrong settings are errors with name, value and what is allowed; unknown ones warn with the nearest name."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from dask_mars import config, setting_checks


@pytest.fixture(autouse=True)
def nothing_was_warned_of(monkeypatch):
    monkeypatch.setattr(setting_checks, "_known_unknowns", set())
    monkeypatch.setattr(config, "_checked", None)


WRONG = [
    ("num-workers", 0, "a whole number of at least 1, or null, and not 0"),
    ("num-workers", "two", "a whole number of at least 1, or null, and not 'two'"),
    ("num-workers", 2.5, "a whole number of at least 1, or null, and not 2.5"),
    ("num-workers", True, "a whole number of at least 1, or null, and not True"),
    ("spill-directory", 7, "text, or null, and not 7"),
    ("checkpoint.limit", "-1", "0 or more bytes, or text such as '16 kiB', or null, and not '-1'"),
    ("checkpoint.limit", False, "0 or more bytes, or text such as '16 kiB', or null, and not False"),
    ("writable-inputs", "no", "true or false, and not 'no'"),
    ("start-timeout", "soon", "a duration of 0 or more, such as '10 s' or 10, in seconds, and not 'soon'"),
    ("retries", -1, "a whole number of at least 0, and not -1"),
    ("retries", "often", "a whole number of at least 0, and not 'often'"),
    ("web.patience", "-3s", "a duration .*, and not '-3s'"),
    ("web.patience", None, "a duration .*, and not None"),
    ("retries", 1.5, "a whole number of at least 0, and not 1.5"),
    ("cancel-grace", "3 parsecs", "a duration .*, and not '3 parsecs'"),
    ("start-in-threads", 1, "true or false, and not 1"),
    ("idle-timeout", -5, "a duration .*, or null, and not -5"),
    ("idle-timeout", [], r"a duration .*, or null, and not \[\]"),
    ("policy", None, "text, and not None"),
    ("resources", 5, "a mapping, and not 5"),
    ("resources", {"GPU": "two"}, "a number of more than 0, and not 'two'"),
    ("resources", {"GPU": 0}, "a number of more than 0, and not 0"),
    ("assignment", "widest-first", "one of 'breadth-first', 'depth-first', and not 'widest-first'"),
    ("expressions", "auto", "a mapping, and not 'auto'"),
    ("web.history.age", "for ever", "a duration .*, or null, and not 'for ever'"),
]


def test_a_wrong_setting_is_named_with_its_value_and_what_is_allowed():
    for name, value, allowed in WRONG:
        path = f"dask-mars.{name}.GPU" if isinstance(value, dict) else f"dask-mars.{name}"
        with (
            dask.config.set({f"dask-mars.{name}": value}),
            pytest.raises(ValueError, match=f"^{path} must be {allowed}$"),
        ):
            config.get("num-workers")


def test_values_of_passwords_are_not_in_messages():
    with (
        dask.config.set({"dask-mars.web.token": "hunter2"}),
        pytest.raises(ValueError, match="32 characters") as caught,
    ):
        config.get("web.token")
    assert "hunter2" not in str(caught.value)
    assert "not 7 characters" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num-workers", np.int64(2)),
        ("memory-limit", np.float64(0.5)),
        ("memory-limit", "60%"),
        ("spill-directory", Path("here")),
        ("idle-timeout", 60),
        ("cancel-grace", "1.5 minutes"),
        ("resources", {"GPU": np.int8(1), "a_b": 0.5}),
    ],
)
def test_what_people_write_instead_of_plain_numbers_and_text_is_right(name, value):
    with warnings.catch_warnings(), dask.config.set({f"dask-mars.{name}": value}):
        warnings.simplefilter("error")
        assert config.get(name) == value


def test_names_with_underscores_are_the_same_settings():
    with warnings.catch_warnings(), dask.config.set({"dask_mars": {"start_timeout": "1 s"}}):
        warnings.simplefilter("error")
        assert config.get("start-timeout") == "1 s"
        # A section that was replaced has our defaults for what it does not say.
        assert config.get("web.history.age") == "30 days"
        assert config.settings().start_timeout_s == 1.0


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("dask-mars.num-worker", "dask-mars.num-workers"),
        ("dask-mars.memory_limits", "dask-mars.memory-limit"),
        ("dask-mars.expressions.reduction", "dask-mars.expressions.reductions"),
        ("mars.memory-limit", "dask-mars.memory-limit"),
    ],
)
def test_an_unknown_setting_warns_once_with_the_nearest_name(path, nearest):
    variable = f"DASK_{nearest.upper().replace('-', '_').replace('.', '__')}"
    expected = rf"^nothing reads the setting {path}: did you mean {nearest} \(in the environment {variable}\)\?$"
    with dask.config.set({path: 1}):
        with pytest.warns(UserWarning, match=expected):
            config.get("retries")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            config._checked = None
            config.get("retries")


def test_an_unknown_setting_that_is_like_none_says_where_all_are():
    with dask.config.set({"dask-mars.xyzzy": 1}), pytest.warns(UserWarning, match="xyzzy; dask.config.get"):
        config.get("retries")


def test_a_section_that_is_no_mapping_is_an_error():
    with (
        dask.config.set({"dask-mars": 5}),
        pytest.raises(ValueError, match=r"^dask-mars must be a mapping, and not 5$"),
    ):
        config.get("retries")


def test_a_wrong_setting_fails_the_call_and_not_the_engine(get):
    task = {"x": (sum, [1, 2])}
    assert get(task, "x") == 3
    with dask.config.set({"dask-mars.retries": "many"}), pytest.raises(ValueError, match=r"dask-mars.retries"):
        get(task, "x")
    assert get(task, "x") == 3


CALL = "import sys, dask_mars\nprint(dask_mars.get({'x': (sum, [1, 2])}, 'x'))\n"


def test_a_wrong_setting_of_the_environment_is_named(scripts: Any) -> None:
    done = scripts.run("-c", CALL, env={"DASK_DASK_MARS__RETRIES": "many"})
    assert done.returncode == 1
    assert "dask-mars.retries must be a whole number of at least 0, and not 'many'" in done.stderr
    done = scripts.run("-c", CALL, env={"DASK_MARS__RETRIES": "2", "DASK_MARS__SCHEDULER_ADDRESS": ""})
    assert done.stdout == "3\n"
    (told,) = [line for line in done.stderr.splitlines() if "nothing reads the setting" in line]
    assert "mars.retries: did you mean dask-mars.retries (in the environment DASK_DASK_MARS__RETRIES)?" in told


@pytest.mark.slow
def test_whoever_changes_no_setting_loads_no_validator(scripts: Any) -> None:
    loaded = "print([name for name in ('fastjsonschema', 'dask_mars.setting_checks') if name in sys.modules])\n"
    set_by_tests = ("DASK_DASK_MARS__NUM_WORKERS", "DASK_DASK_MARS__START_AT_IMPORT")
    unset = f"import os\nfor name in {set_by_tests}: del os.environ[name]\n"
    done = scripts.run("-c", unset + CALL + loaded)
    assert done.stdout.splitlines() == ["3", "[]"], done.stderr
