"""Settings: Dask's configuration under the key ``dask-mars``, with defaults from `setting_table`."""

from __future__ import annotations

import contextlib
import math
import numbers
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import dask
from dask.system import CPU_COUNT
from dask.utils import parse_bytes, parse_timedelta

from dask_mars import setting_table
from dask_mars.limits import memory_available
from dask_mars.setting_table import SECTION

_DEFAULTS = setting_table.defaults()
#: Frames of dask_mars that `admin.traceback.shorten` leaves out; not those of a user's own folder of that name.
_OUR_FRAMES = (
    r"dask_mars[\\\/](client|cluster|engine|expressions|graph|optimize|protocol|scheduler|store|worker)[\\\/]"
    r"|dask_mars[\\\/]runtimes\.py"
)
#: The settings that were last found to be right; at first ours, which need no check.
_checked: Any = _DEFAULTS[SECTION]


def load_defaults() -> None:
    """Add our defaults below what the user's Dask configuration says, and our frames to those it leaves out."""
    global _checked
    dask.config.update_defaults(deepcopy(_DEFAULTS))
    if dask.config.get("mars", None):
        # `DASK_MARS__MEMORY_LIMIT`, for example, sets this section, whose names are then checked at the first use.
        _checked = None
    left_out = dask.config.get("admin.traceback.shorten", None)
    if isinstance(left_out, list) and left_out and _OUR_FRAMES not in left_out:
        dask.config.update_defaults({"admin": {"traceback": {"shorten": [*left_out, _OUR_FRAMES]}}})


def begins_at_import() -> bool:
    """Return whether a template of worker processes begins at the import; not where the setting is malformed."""
    return dask.config.get(f"{SECTION}.start-at-import", True) is True


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one engine: sizes in bytes, durations in seconds. Those with a default are constants."""

    num_workers: int
    #: Bytes of all processes, and of results in memory. No arena may hold more than the memory limit.
    memory_limit: int
    store_limit: int
    spill_directory: Path
    retries: int
    cancel_grace_s: float
    start_timeout_s: float
    starts_in_threads: bool
    idle_timeout_s: float | None
    policy: str
    assignment: Literal["breadth-first", "depth-first"]
    #: Amount of each resource that tasks may take; empty: not counted.
    resources: dict[str, float]
    event_log: str | None
    scheduler_log: str | None
    #: NumPy's arrays of at least this size are made in shared memory in workers; None: results are copied there.
    arena_threshold_bytes: int | None = 16 << 10
    #: Results up to this size travel in messages instead of shared memory.
    inline_bytes: int = 16 << 10
    #: Idle seconds after which unused memory goes back to the system.
    idle_trim_s: float = 10.0


def settings(
    num_workers: int | None = None,
    memory_limit: int | float | str | None = None,
    policy: str | None = None,
    resources: Mapping[str, float] | None = None,
) -> Settings:
    """Resolve the settings of an engine."""
    if memory_limit is not None:
        limit = parse_memory(memory_limit, name="memory_limit")
    else:
        limit = parse_memory(get("memory-limit"), name="dask-mars.memory-limit")
    _warn_of_too_much(limit)
    # A share of a few bytes may be none, and then it is not the share that is too small.
    store_limit = parse_memory(get("store-limit"), max(limit, 100), "dask-mars.store-limit")
    return Settings(
        num_workers=worker_count(num_workers),
        memory_limit=limit,
        store_limit=min(store_limit, limit),
        spill_directory=_spill_directory(),
        retries=int(get("retries")),
        cancel_grace_s=_seconds("cancel-grace"),
        start_timeout_s=_seconds("start-timeout"),
        starts_in_threads=bool(get("start-in-threads")),
        idle_timeout_s=None if get("idle-timeout") is None else _seconds("idle-timeout"),
        policy=str(get("policy")) if policy is None else policy,
        assignment=get("assignment"),
        resources=_resources(get("resources") if resources is None else resources),
        event_log=None if (path := get("event-log")) is None else str(path),
        scheduler_log=None if (path := get("scheduler-log")) is None else str(path),
    )


def worker_count(num_workers: int | None = None) -> int:
    """Return the number of worker processes that the call, Dask's setting or ours asks for."""
    workers = num_workers
    if workers is None:
        workers = dask.config.get("num_workers", None) or get("num-workers") or CPU_COUNT
    try:
        count = int(workers)
        is_whole = not isinstance(workers, bool) and (isinstance(workers, str) or count == workers)
    except (TypeError, ValueError, OverflowError):
        is_whole = False
    if not is_whole:
        raise ValueError(f"the number of workers (num_workers) must be a whole number, not {workers!r}")
    if count < 1:
        raise ValueError(f"the number of workers must be at least 1, not {workers}")
    return count


def get(name: str) -> Any:
    """Return a setting as the configuration has it, or our default where a whole section was replaced."""
    settings = dask.config.get(SECTION, None)
    if settings != _checked:
        _check(settings)
    found = dask.config.get(f"{SECTION}.{name}", _MISSING)
    return dask.config.get(f"{SECTION}.{name}", config=_DEFAULTS) if found is _MISSING else found


_MISSING = object()


def _check(settings: Any) -> None:
    global _checked
    # Imported for those only who have changed a setting.
    from dask_mars import setting_checks

    setting_checks.warn_of_misnamed("mars", dask.config.get("mars", None))
    if settings is not None:
        setting_checks.check(settings, _FORMATS)
    _checked = deepcopy(settings)


def scheduler_address() -> str | None:
    """Return the address of the Dask scheduler to compute on, None for this machine."""
    # It is ``dask-mars.scheduler-address``; in the environment ``DASK_MARS__SCHEDULER_ADDRESS`` will do, by which
    # Dask understands ``mars.scheduler-address``.
    address: str | None = get("scheduler-address") or dask.config.get("mars.scheduler-address", None)
    return address or None


def parse_duration(given: Any, name: str) -> float:
    """Turn a duration into seconds."""
    try:
        seconds = math.nan if isinstance(given, bool) else float(parse_timedelta(given))
    except (TypeError, ValueError, KeyError, AttributeError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(f"{name} must be a number of seconds, or text such as '10 minutes', and not {given!r}")
    return seconds


def reconnect_s() -> float | None:
    """Return how long computations wait for a scheduler that is lost, in seconds; None if it is not set."""
    given = get("cluster.reconnect-timeout")
    if given is None:
        return None
    return parse_duration(given, "dask-mars.cluster.reconnect-timeout") if given else 0.0


def _resources(given: Any) -> dict[str, float]:
    if not isinstance(given, Mapping):
        raise ValueError(f"resources are amounts by name, as in {{'GPU': 1}}, not {given!r}")
    resources = {str(name): float(amount) for name, amount in given.items()}
    if not all(0 < amount < math.inf for amount in resources.values()):
        raise ValueError(f"amounts of resources must be positive numbers, not {dict(given)}")
    return resources


def _seconds(name: str) -> float:
    return float(parse_timedelta(get(name)))


def _is_duration(text: str) -> bool:
    # Dask would parse a unit without a number as one of that unit, and its errors for other text are unclear.
    try:
        return any(map(str.isdigit, text)) and parse_timedelta(text) >= 0
    except (ValueError, KeyError, IndexError, OverflowError):
        return False


def _spill_directory() -> Path:
    """Return the directory to spill into: ours, Dask's, or one that is more likely than /tmp to be on a disk."""
    name, chosen = f"{SECTION}.spill-directory", get("spill-directory")
    if not chosen:
        name, chosen = "temporary-directory", dask.config.get("temporary-directory", None)
    if chosen is not None:
        path = Path(chosen).expanduser()
        # Whether it can be written to matters once something has to go to disk.
        with contextlib.suppress(PermissionError):
            if file := next((part for part in (path, *path.parents) if part.is_file()), None):
                raise ValueError(f"{name} must be a directory, but {file} is a file")
        return path
    lasting = Path("/var/tmp")
    return lasting if os.access(lasting, os.W_OK) else Path(tempfile.gettempdir())


def parse_memory(limit: int | float | str | None, total: int | None = None, name: str = "the memory limit") -> int:
    """Turn a memory limit into bytes; shares are of `total`, by default the available memory."""
    # Shares are floats up to 1, or text like ``60%``. None is 80 %.
    if total is None:
        total = memory_available()
    if limit is None:
        return int(total * 0.8)
    if isinstance(limit, str) and limit.strip().endswith("%"):
        share = _share(limit)
        size = None if share is None else int(total * share)
    elif _is_share(limit):
        size = int(total * float(limit))
    else:
        size = _bytes(limit)
    if size is None or size <= 0:
        raise ValueError(f"{name} must be {_MEMORY}, and not {limit!r}")
    return size


def as_number(limit: Any) -> Any:
    """Return a numeric text as a number, all else as it is: on command lines 0.5 is half of the memory."""
    try:
        value = float(limit)
    except (TypeError, ValueError):
        return limit
    return int(value) if 1 < value < math.inf else value


def parse_size(size: int | float | str, name: str) -> int:
    """Turn a size into bytes."""
    found = _bytes(size)
    if found is None or found < 0:
        raise ValueError(f"{name} must be {_SIZE}, and not {size!r}")
    return found


def _bytes(given: Any) -> int | None:
    """Return a setting as a number of bytes, None if it is not one."""
    # Python treats True as the number 1, which the user does not mean.
    if isinstance(given, bool):
        return None
    if isinstance(given, numbers.Real):
        number: Any = given
        return math.floor(number) if math.isfinite(number) else None
    # Dask would parse "MiB" as 1 MiB, and an empty text as one byte.
    if not isinstance(given, str) or not any(map(str.isdigit, given)):
        return None
    try:
        return int(parse_bytes(given))
    except (ValueError, OverflowError):
        return None


def _is_share(limit: Any) -> bool:
    """Return whether a limit is a share: a number with a fraction, of whatever type, up to 1."""
    # NumPy's float32 is not a float, and its integers are integral.
    return isinstance(limit, numbers.Real) and not isinstance(limit, numbers.Integral) and 0 < float(limit) <= 1


def _share(text: str) -> float | None:
    """Return a percentage as a share, or None if it is not above 0 and at most 100 %."""
    try:
        share = float(text.strip()[:-1]) / 100
    except ValueError:
        return None
    return share if 0 < share <= 1 else None


def _is_memory(text: str) -> bool:
    size = _share(text) if text.strip().endswith("%") else _bytes(text)
    return size is not None and size > 0


def _is_size(text: str) -> bool:
    size = _bytes(text)
    return size is not None and size >= 0


_MEMORY = (
    "a positive number of bytes, text such as '4 GiB', or a share of more than 0 % and at most 100 %, such as "
    "'60%' or 0.6"
)
_SIZE = "0 or more bytes, or text such as '16 kiB'"
#: The schema's formats: a description of each, and a function that checks a text.
_FORMATS: dict[str, tuple[str, Callable[[str], bool]]] = {
    "memory": (_MEMORY, _is_memory),
    "size": (_SIZE, _is_size),
    "duration": ("a duration of 0 or more, such as '10 s' or 10, in seconds", _is_duration),
}

_has_warned = False


def _warn_of_too_much(memory_limit: int) -> None:
    """Warn once of a limit above the available memory."""
    global _has_warned
    total = memory_available()
    if memory_limit > total and not _has_warned:
        _has_warned = True
        warnings.warn(
            f"the memory limit of {memory_limit:,} bytes (memory_limit, or dask-mars.memory-limit) is more than "
            f"the {total:,} bytes that this machine or its control group has: processes may be killed before it "
            "is reached",
            # The caller of Runtime.
            stacklevel=4,
        )
