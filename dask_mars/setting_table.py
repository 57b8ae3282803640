"""The settings: names, defaults, allowed values and meanings, of which Dask's defaults and the schema are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

SECTION = "dask-mars"


class Setting(NamedTuple):
    """A setting."""

    #: Below `SECTION`, with dots.
    name: str
    #: As YAML has it.
    default: Any
    #: A JSON Schema; its formats are those of `dask_mars.config`.
    allowed: Mapping[str, Any]
    #: For users.
    meaning: str


def _or_null(allowed: Mapping[str, Any]) -> dict[str, Any]:
    types = allowed["type"]
    return {**allowed, "type": [*([types] if isinstance(types, str) else types), "null"]}


_FLAG = {"type": "boolean"}
_TEXT = {"type": "string"}
_PATH = _or_null(_TEXT)
_COUNT = {"type": "integer", "minimum": 0}
_AMOUNT = {"type": "number", "exclusiveMinimum": 0}
_MEMORY = {"type": ["number", "string"], "format": "memory"}
_SIZE = {"type": ["number", "string"], "format": "size", "minimum": 0}
_DURATION = {"type": ["number", "string"], "format": "duration", "minimum": 0}
_TOKEN = {"type": ["string", "null"], "writeOnly": True, "minLength": 32}

# fmt: off
SETTINGS = (
    Setting("num-workers", None, {"type": ["integer", "null"], "minimum": 1},
        "Worker processes; null for as many as there are processors that cgroups and the process's affinity "
        "allow. Dask's own `num_workers`, as setting or argument, comes first."),
    Setting("memory-limit", "80%", _or_null(_MEMORY),
        'Memory of all processes: bytes, text like "4 GiB", or a share of what cgroups and the machine allow. '
        "It is at least the memory of the workers before they compute anything."),
    Setting("store-limit", "50%", _MEMORY,
        "Results in shared memory: bytes, text, or a share of the memory limit. Beyond it results go to disk, "
        "those first that are not needed for the longest time."),
    Setting("spill-directory", None, _PATH,
        "Where results go that have no room in memory; null for Dask's `temporary-directory`, else /var/tmp."),
    Setting("writable-inputs", False, _FLAG,
        "Whether tasks get writable copies of arrays from the start. Otherwise they read arrays in place, and a "
        "task that tries to write runs again with copies."),
    Setting("retries", 0, _COUNT,
        "How often a task that raises is tried again, unless the call or an annotation says otherwise."),
    Setting("cancel-grace", "200 ms", _DURATION,
        "How long a task of a cancelled computation may clean up before its process is ended."),
    Setting("start-in-threads", True, _FLAG,
        "Whether threads of the user's process compute tasks of well-known libraries until worker processes are "
        "up."),
    Setting("start-at-import", True, _FLAG,
        "Whether a process from which worker processes are forked starts in the background when a program imports "
        "dask_mars, and its modules are imported while the program waits. It is read at that import."),
    Setting("start-timeout", "60 s", _DURATION,
        "How long a worker process that starts may make no progress before it is ended and started again."),
    Setting("idle-timeout", "10 minutes", _or_null(_DURATION),
        "Time without work after which worker processes end, to start again with the next computation; null for "
        "never. Persisted data stay."),
    Setting("event-log", None, _PATH,
        "File for a log of all that the engines of this process do, in Chrome's trace event format. It is "
        "replaced when the first engine starts, written twice a second and ended with the process. `{pid}` in "
        "it stands for the process's number."),
    Setting("scheduler-log", None, _PATH,
        "File in which each engine logs the events and decisions of its scheduler, for `python -m "
        "dask_mars.scheduler.replay`. It is replaced. `{pid}` and `{engine}` in it stand for the numbers of the "
        "process and of the engine in it."),
    Setting("scheduler-address", None, _PATH,
        'Address of a Dask scheduler, like "tcp://10.0.0.1:8786": `dask_mars.get` computes on the '
        "dask-mars-workers of its cluster. With null it does so if there is a current `distributed.Client` "
        "whose cluster has such workers."),
    Setting("cluster.reconnect-timeout", None, {"type": ["number", "string", "null"]},
        "How long a computation waits for a lost scheduler to come back at its address, or in its scheduler "
        "file, with an agent; then it is submitted again. With null it waits as long as the agents, if all were "
        "started with `--reconnect`, or 10 minutes if it has a checkpoint; otherwise, and with 0, it fails at "
        "once, as under Dask's own scheduler. It is also how long `dask-mars-worker --reconnect` waits, by "
        "default 10 minutes."),
    Setting("policy", "mars", _TEXT,
        'In which order chunks run, and on which workers. "mars" has Mars\'s rules behind what frees memory, '
        '"mars-strict" these rules alone, "memory" the graph\'s order and any worker; other packages may bring '
        'policies by the entry point "dask_mars.policies".'),
    Setting("resources", {}, {"type": "object", "additionalProperties": _AMOUNT},
        "Amounts of resources of this machine, such as {GPU: 1}. Tasks annotated by "
        "dask.annotate(resources=...) run side by side only as far as these go. Without any, these annotations "
        "have no effect, as under Dask's own schedulers."),
    Setting("assignment", "breadth-first", {"enum": ["breadth-first", "depth-first"]},
        "How a graph is searched when its initial chunks are divided among the hosts of a cluster, or among "
        'workers by Mars\'s policies.'),
    Setting("expressions.reductions", True, _FLAG,
        "Whether a reduction at the end of a chain is computed block by block, so that its input is never stored. "
        "Its elements are added up in another order within a chunk."),
    Setting("checkpoint.directory", None, _PATH,
        "Where chunks are saved whose loss would cost much more than saving them does. A computation whose "
        "process has died continues from these when it is computed again, and its files go when it has "
        "succeeded. With null only `with dask_mars.checkpoint(...)` saves any."),
    Setting("checkpoint.limit", None, _or_null(_SIZE), "The most bytes in the directory; null for any number."),
    Setting("checkpoint.cost-share", 0.05, _AMOUNT, "The share of the time that saving may take."),
    Setting("checkpoint.token", None, _or_null(_TEXT),
        "A text that changes with the content of sources that are not on local disks. With null, computations "
        "that read such sources are computed again from the beginning."),
    Setting("checkpoint.age", "30 days", _or_null(_DURATION),
        "How long unused chunks stay in the directory; null for ever. They are removed when something else is "
        "computed there."),
    Setting("web.token", None, _TOKEN,
        "The token that opens the pages and the API for everything, as from `secrets.token_urlsafe(32)`. With "
        "null each server makes its own, and Dask's scheduler has none: there everybody may look, and no one "
        "cancels."),
    Setting("web.view-token", None, _TOKEN,
        "The token that opens them for looking only; null for a new one for each server."),
    Setting("web.directory", None, _PATH,
        "Where a standing service keeps its records, graphs and results, and listens; null for dask-mars below "
        "XDG_STATE_HOME, or ~/.local/state."),
    Setting("web.address", None, _PATH,
        "The service that `dask_mars.connect` finds: a URL, or the path of a socket, of a connection file or of "
        "a service's directory; null for the one that uses the directory above."),
    Setting("web.patience", "5 m", _DURATION,
        "How long a client tries again when its service is out of reach, or full. It holds from the next "
        "request on."),
    Setting("web.body-limit", "16 GiB", _SIZE, "The largest submission that a service takes; beyond is 413."),
    Setting("web.checkpoints", True, _FLAG,
        "Whether a standing service saves chunks, as checkpoint.cost-share and checkpoint.limit say, and "
        "continues from these when its processes die."),
    Setting("web.history.age", "30 days", _or_null(_DURATION),
        "How long a standing service remembers computations that are over; null for ever."),
    Setting("web.history.bytes", "20 GiB", _or_null(_SIZE),
        "The most that their results and logs take on disk; null for any. The oldest go first, the newest stays."),
)
# fmt: on


def defaults() -> dict[str, Any]:
    """Return the configuration with all defaults, for Dask."""
    tree: dict[str, Any] = {}
    for setting in SETTINGS:
        *sections, name = [SECTION, *setting.name.split(".")]
        inner = tree
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = setting.default
    return tree


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the section."""
    tree = _object()
    for setting in SETTINGS:
        *sections, name = setting.name.split(".")
        inner = tree
        for section in sections:
            inner = inner["properties"].setdefault(section, _object())
        inner["properties"][name] = {**setting.allowed, "description": setting.meaning}
    return tree


def _object() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}
