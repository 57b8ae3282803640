"""The process that computes for a service. It reads what users have pickled, and never listens.

It is told what to do, and tells what becomes of it, in lines of JSON over a socket that it has inherited; graphs
and results are files of the service's directory. It ends when the front does.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask

from dask_mars import Runtime, config
from dask_mars.backend import Options
from dask_mars.checkpointing.settings import CheckpointSettings, configured
from dask_mars.client.assembling import is_assembly
from dask_mars.client.backend import EngineBackend, GraphBackend
from dask_mars.client.records import ChunkCounts, Record, Records, ValueDescription
from dask_mars.client.summaries import remaining_s
from dask_mars.errors import Cancelled, GraphRefused
from dask_mars.graph.chunks import ChunkGraph, DeclaredSizes
from dask_mars.optimize.client_only import stores_chunk
from dask_mars.process_role import die_with_parent
from dask_mars.protocol.pickling import pack_error
from dask_mars.web.monitor import Json
from dask_mars.web.runtime_monitor import RuntimeMonitor
from dask_mars.web.service import results
from dask_mars.web.service.lines import Lines
from dask_mars.web.service.on_cluster import ClusterMonitor
from dask_mars.web.service.store import SPARE_BYTES

logger = logging.getLogger("dask_mars.web")

#: Pickled exceptions that are larger stay here; what they say is told.
_ERROR_BYTES = 256 << 10
#: How often the front is told how far computations are.
_REPORT_S = 0.25
#: The longest message of an exception in a list, and the longest message and traceback otherwise, in characters.
_MESSAGE, _TEXT = 2_000, 50_000
_OF_MODULES = (
    ". The service has to find the modules that you use, as they are: install them where it runs, or start it "
    "with PYTHONPATH, and start it anew when they change. Or have modules of yours travel with what you submit: "
    "cloudpickle.register_pickle_by_value(module)"
)


class Run:
    """A computation in this process, and a thread that computes it.

    Parameters
    ----------
    runner : Runner
        Where.
    order : dict
        What the front has said.

    Attributes
    ----------
    number : int
        By which the front knows it.
    record : Record
        What others know of it in this process, by an id of its own: the front's may have been here before.
    """

    def __init__(self, runner: Runner, order: Json) -> None:
        self.runner = runner
        self.number: int = order["number"]
        self.record: Record = runner.records.new(order["name"])
        self._order = order
        self._told: ChunkCounts | None = None

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name=f"computation-{self.number}", daemon=True).start()

    def say(self, what: str, **facts: Any) -> None:
        """Tell the front something of this computation."""
        self.runner.lines.send({"say": what, "number": self.number, **facts})

    def say_progress(self) -> None:
        """Tell the front how many chunks are computed, if that is news."""
        counts = self.record.counts()
        if counts != self._told and not self.record.is_over:
            self._told = counts
            left_s = remaining_s(self.record, counts, self.record.layers(), time.time())
            self.say("progress", progress={"chunks": _counted(counts), "remaining": left_s})

    def _run(self) -> None:
        told: Json
        failure: Json = {}
        try:
            with self.record:
                description, size_bytes = self._compute()
                self.record.result = description
            told = {"say": "finished", "result": description, "file_bytes": size_bytes}
        except Cancelled:
            told = {"say": "cancelled"}
        except GraphRefused as error:
            told, failure = {"say": "refused"}, _failure(error)
        # What users pickle may raise anything.
        except BaseException as error:
            told, failure = {"say": "failed"}, _failure(error)
        if failure:
            # The front keeps this in the row, which is read for each list.
            told["error"] = {"type": failure["type"], "message": failure["message"][:_MESSAGE]}
        told.setdefault("file_bytes", 0)
        try:
            told["file_bytes"] += self.runner.keep_details(self, failure)
        except Exception:
            # The computation counts, and not what there is to say of it.
            logger.exception("the details of a computation could not be written")
        self.runner.forget(self)
        self.say(told.pop("say"), **told, progress={"chunks": _counted(self.record.counts())})

    def _compute(self) -> tuple[ValueDescription, int]:
        header, submitted = self._unpickled()
        is_graph = header["kind"] == "graph"
        backend = self.runner.backend()
        if self.runner.checkpoint is not None:
            backend.checkpoint = self.runner.checkpoint._replace(directory=Path(self._order["checkpoint"]))
        backend.check = self._check
        options = Options.known(header.get("options", {}))

        def schedule(dsk: Any, keys: Any, **others: Any) -> Any:
            backend.record = self.record
            return backend.compute(dsk, keys, options)

        if is_graph:
            value = schedule(*submitted)
        else:
            (value,) = dask.compute(submitted, scheduler=schedule)
        # A graph may be large, and so is a result.
        del submitted
        self.record.checkpoint()
        directory = self.runner.directory
        incoming = directory / "incoming" / f"result-{self.number}-{self._order['attempt']}"
        target = directory / "results" / str(self.number)
        try:
            return results.write(value, is_graph, incoming, target, self.record.checkpoint)
        finally:
            incoming.unlink(missing_ok=True)

    def _unpickled(self) -> tuple[Json, Any]:
        try:
            return results.read(Path(self._order["graph"]))
        except MemoryError:
            raise
        except BaseException as error:
            text = f"it cannot be unpickled: {type(error).__name__}: {error}"
            if isinstance(error, (ImportError, AttributeError)):
                text += _OF_MODULES
            raise GraphRefused(text) from error

    def _check(self, graph: ChunkGraph) -> None:
        """Refuse what would not do here what the user wants of it."""
        for operand in graph.operands:
            if operand.in_client and stores_chunk(operand.functions):
                raise GraphRefused(
                    "it stores into an array or a store in the memory of your process, which a service does not "
                    "reach; store into files, or into a zarr store on disk"
                )
        limit = self.runner.memory_limit
        if limit is not None:
            result_bytes = _declared_bytes(graph)
            if result_bytes > limit:
                raise GraphRefused(
                    f"the result has {result_bytes:,} bytes, more than the memory limit of {limit:,} bytes; "
                    "reduce it, or write it into files"
                )
        self.say("taken")


class Runner:
    """All computations of this process.

    Parameters
    ----------
    lines : Lines
        To the front.
    directory : Path
        The service's.
    backend : callable
        Returns what computes one graph.
    monitor : RuntimeMonitor
        Of what computes.
    records : Records
        Of the computations.
    memory_limit : int or None
        The most bytes that a result may have.
    checkpoint : CheckpointSettings or None
        How what is computed is saved.
    """

    def __init__(
        self,
        lines: Lines,
        directory: Path,
        backend: Callable[[], GraphBackend],
        monitor: RuntimeMonitor,
        records: Records,
        memory_limit: int | None,
        checkpoint: CheckpointSettings | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.lines = lines
        self.directory = directory
        self.backend = backend
        self.records = records
        self.memory_limit = memory_limit
        self._monitor = monitor
        self._lock = threading.Lock()
        self._runs: dict[int, Run] = {}
        self._ending = threading.Event()

    def serve(self) -> None:
        """Do what the front says, until it has gone."""
        self.lines.send({"say": "ready"})
        reporter = threading.Thread(target=self._report, name="progress", daemon=True)
        reporter.start()
        for message in self.lines:
            getattr(self, f"_do_{message['do']}")(message)
        # Computations that end because everything does are begun again by the next service.
        self.lines.mute()
        self._ending.set()

    def _report(self) -> None:
        """Tell now and then how far computations are, and listen for what is to be told when they are over."""
        while not self._ending.wait(_REPORT_S):
            live = self._live()
            if live:
                self._monitor.watch()
            for run in live:
                run.say_progress()

    def _live(self) -> list[Run]:
        with self._lock:
            return list(self._runs.values())

    def _do_run(self, message: Json) -> None:
        run = Run(self, message)
        with self._lock:
            self._runs[run.number] = run
        self._monitor.watch()
        run.start()

    def _do_cancel(self, message: Json) -> None:
        run = self._runs.get(message["number"])
        if run is not None:
            run.record.cancel()

    def _do_ask(self, message: Json) -> None:
        # What takes longer must not keep others from being cancelled.
        threading.Thread(target=self._answer, args=(message,), name="answer", daemon=True).start()

    def _answer(self, message: Json) -> None:
        told = {"say": "answer", "question": message["question"]}
        try:
            told["answer"] = self._found(message["what"], message["number"], *message["arguments"])
        except (KeyError, ModuleNotFoundError) as error:
            # The front knows what to say of what nobody knows.
            told["missing"] = str(error)
        except OSError as error:
            logger.warning("the question for %s could not be answered: %s", message["what"], error)
            told["missing"] = str(error)
        except Exception as error:
            logger.exception("the question for %s could not be answered", message["what"])
            told["missing"] = str(error)
        self.lines.send(told)

    def _found(self, what: str, number: int | None, *arguments: Any) -> Json:
        if what == "arrow":
            source = self.directory / "results" / str(number)
            incoming = self.directory / "incoming" / f"{number}-{threading.get_ident()}.arrow"
            results.write_arrow(source, incoming, source.with_name(f"{number}.arrow"))
            return {}
        method: Callable[..., Json] = getattr(self._monitor, what)
        if what == "state":
            return method()
        return method(None if number is None else self._runs[number].record.id, *arguments)

    def keep_details(self, run: Run, failure: Json) -> int:
        """Write what there is to say of a computation when it is over, and return how many bytes that are."""
        monitor, id = self._monitor, run.record.id
        # As it is now that it is over, and not as it was seen last.
        monitor.look_again()
        details = {
            "error": failure,
            "computation": {"layers": monitor.computation(id)["layers"]},
            "log": monitor.log(id),
            "timeline": monitor.timeline(id),
            "graph": monitor.graph(id, None),
            "profile": monitor.profile(id),
        }
        text = json.dumps(details, separators=(",", ":")).encode()
        incoming = self.directory / "incoming" / f"details-{run.number}"
        incoming.write_bytes(text)
        incoming.rename(self.directory / "details" / f"{run.number}.json")
        return len(text)

    def forget(self, run: Run) -> None:
        """Let a computation go that is over."""
        with self._lock:
            self._runs.pop(run.number, None)


def _declared_bytes(graph: ChunkGraph) -> int:
    """Return how many bytes the results of a graph have at least, as far as that is known beforehand."""
    sizes = DeclaredSizes(graph)
    found = 0
    for chunk in graph.outputs:
        operand = graph.operand_of[chunk]
        assembled = graph.inputs[chunk] if operand >= 0 and is_assembly(graph.operands[operand]) else [chunk]
        found += sum([sizes[part] or 0 for part in assembled])
    return found


def _counted(counts: ChunkCounts) -> Json:
    return {name: int(count) for name, count in counts._asdict().items()}


def _failure(error: BaseException) -> Json:
    """Return all there is to say of an exception."""
    try:
        message = str(error)
    except Exception:
        message = "<its message cannot be printed>"
    told = {
        "type": type(error).__name__,
        "message": message[:_TEXT],
        "traceback": "".join(traceback.format_exception(error))[-_TEXT:],
    }
    with contextlib.suppress(Exception):
        payload = pack_error(error).payload
        if len(payload) <= _ERROR_BYTES:
            told["pickle"] = base64.b64encode(payload).decode()
    return told


def _checkpoint(directory: Path) -> CheckpointSettings | None:
    """Return how what is computed is saved, for those that come after this process."""
    if not config.get("web.checkpoints"):
        return None
    root = directory / "checkpoints"
    # What users annotate is honoured where there is a directory.
    dask.config.set({"dask-mars.checkpoint.directory": str(root)})
    # The targets of stores were made before the graph was submitted, and nobody makes them anew.
    return configured(str(root))._replace(trusts_targets=True, spare_bytes=SPARE_BYTES)


def main(settings: Json) -> None:
    """Compute for the front that has started this process.

    Parameters
    ----------
    settings : dict
        ``socket``, the descriptor; ``directory``; ``num_workers``, ``memory_limit`` and ``scheduler``, as on the
        command line of the service.
    """
    # Ctrl-C in a terminal is the front's, which ends this process when it is done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What users unpickle may hold this process up, so that it would not notice that the front has gone.
    die_with_parent(settings["parent"])
    lines = Lines(socket.socket(fileno=settings["socket"]))
    directory = Path(settings["directory"])
    address = settings["scheduler"]
    with Runtime(settings["num_workers"], settings["memory_limit"]) as runtime:

        def here() -> GraphBackend:
            return EngineBackend(runtime.engine, lambda: runtime.settings.store_limit)

        if address is None:
            # Before the first computation, so that all of that is seen.
            runtime.engine()
            monitor, limit = RuntimeMonitor(runtime), runtime.settings.memory_limit
            Runner(lines, directory, here, monitor, runtime.records, limit, _checkpoint(directory)).serve()
        else:
            cluster = ClusterMonitor(runtime, address)
            Runner(lines, directory, cluster.backend, cluster, runtime.records, None).serve()
    # Threads that compute what nobody waits for any more would have Python wait for them.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
