"""The process that computes for a service. It unpickles graphs of users, and never listens on a port.

It gets commands and sends reports as lines of JSON over an inherited socket; graphs and results are files of the
service's directory. It ends when the front does.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask

from dask_mars import Runtime, config
from dask_mars.checkpointing.block import CheckpointSettings, configured
from dask_mars.client.assembling import is_assembly
from dask_mars.client.backend import EngineBackend, GraphBackend
from dask_mars.client.records import FailureText, Record, Records, ValueDescription
from dask_mars.client.request import Options, Request
from dask_mars.client.summaries import remaining_s
from dask_mars.errors import Cancelled, GraphRefused
from dask_mars.files import replace_file
from dask_mars.graph.chunks import ChunkGraph, DeclaredSizes
from dask_mars.observe.counts import ChunkCounts
from dask_mars.optimize.client_only import stores_chunk
from dask_mars.process_role import die_with_parent
from dask_mars.protocol.failures import pack_error
from dask_mars.web.monitor import Json
from dask_mars.web.runtime_monitor import RuntimeMonitor
from dask_mars.web.service import results
from dask_mars.web.service.on_cluster import ServiceClusterMonitor
from dask_mars.web.service.process import Lines
from dask_mars.web.service.store import SPARE_BYTES

logger = logging.getLogger("dask_mars.web")

#: Largest pickled exception that is sent, in bytes; of larger ones only the text is sent.
_ERROR_BYTES = 256 << 10
#: Interval for progress reports to the front, in seconds.
_REPORT_S = 0.25
#: Longest error message in a list, and longest traceback, in characters.
_MESSAGE, _TEXT = 2_000, 50_000
_OF_MODULES = (
    ". The service has to find the modules that you use, as they are: install them where it runs, or start it "
    "with PYTHONPATH, and start it anew when they change. Or have modules of yours travel with what you submit: "
    "cloudpickle.register_pickle_by_value(module)"
)


class RunnerJob:
    """A computation in this process, with a thread of its own."""

    def __init__(self, runner: Runner, order: Json) -> None:
        self.runner = runner
        self.number: int = order["number"]
        # With an id of its own: an earlier attempt may have had the front's id here.
        self.record: Record = runner.records.new(order["name"])
        self._order = order
        self._told: ChunkCounts | None = None

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name=f"computation-{self.number}", daemon=True).start()

    def say(self, what: str, **facts: Any) -> None:
        """Report a fact about this computation to the front."""
        self.runner.lines.send({"say": what, "number": self.number, **facts})

    def say_progress(self) -> None:
        """Report the number of computed chunks to the front, if it has changed."""
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
        # Objects of users may raise anything.
        except BaseException as error:
            told, failure = {"say": "failed"}, _failure(error)
        if failure:
            # The front keeps this in the row, which each list reads.
            told["error"] = {"type": failure["type"], "message": failure["message"][:_MESSAGE]}
        told.setdefault("file_bytes", 0)
        try:
            told["file_bytes"] += self.runner.keep_details(self, failure)
        except Exception:
            # A failure to write the details must not fail the computation.
            logger.exception("the details of a computation could not be written")
        self.runner.jobs.pop(self.number, None)
        self.say(told.pop("say"), **told, progress={"chunks": _counted(self.record.counts())})

    def _compute(self) -> tuple[ValueDescription, int]:
        header, submitted = self._unpickled()
        is_graph = header["kind"] == "graph"
        backend = self.runner.backend()
        checkpoint = self.runner.checkpoint
        if checkpoint is not None:
            checkpoint = checkpoint._replace(directory=Path(self._order["checkpoint"]))
        options = Options.known(header.get("options", {}))

        def schedule(dsk: Any, keys: Any, **others: Any) -> Any:
            return backend.compute(
                Request(dsk, keys, options, record=self.record, checkpoint=checkpoint, on_graph=self._check)
            )

        if is_graph:
            value = schedule(*submitted)
        else:
            (value,) = dask.compute(submitted, scheduler=schedule)
        # A graph may be large, and so may a result.
        del submitted
        self.record.raise_if_cancelled()
        directory = self.runner.directory
        incoming = directory / "incoming" / f"result-{self.number}-{self._order['attempt']}"
        target = directory / "results" / str(self.number)
        try:
            return results.write(value, is_graph, incoming, target, self.record.raise_if_cancelled)
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
        """Refuse graphs that would not do here what the user expects."""
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
    """All computations of this process."""

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
        #: Computations by number.
        self.jobs: dict[int, RunnerJob] = {}
        self._ending = threading.Event()

    def serve(self) -> None:
        """Execute the front's commands until it closes the connection."""
        self.lines.send({"say": "ready"})
        reporter = threading.Thread(target=self._report, name="progress", daemon=True)
        reporter.start()
        for message in self.lines:
            getattr(self, f"_do_{message['do']}")(message)
        # The next service restarts computations that end only because of this.
        self.lines.mute()
        self._ending.set()

    def _report(self) -> None:
        """Report the progress of computations periodically, and keep the recorder listening."""
        while not self._ending.wait(_REPORT_S):
            live = list(self.jobs.copy().values())
            if live:
                self._monitor.watch()
            for run in live:
                run.say_progress()

    def _do_run(self, message: Json) -> None:
        run = RunnerJob(self, message)
        self.jobs[run.number] = run
        self._monitor.watch()
        run.start()

    def _do_cancel(self, message: Json) -> None:
        run = self.jobs.get(message["number"])
        if run is not None:
            run.record.cancel()

    def _do_ask(self, message: Json) -> None:
        # A slow answer must not delay cancellations.
        threading.Thread(target=self._answer, args=(message,), name="answer", daemon=True).start()

    def _answer(self, message: Json) -> None:
        told = {"say": "answer", "question": message["question"]}
        try:
            told["answer"] = self._found(message["what"], message["number"], *message["arguments"])
        except (KeyError, ModuleNotFoundError) as error:
            # The front turns this into its own error.
            told["missing"] = str(error)
        except OSError as error:
            logger.warning("the question for %s could not be answered: %s", message["what"], error)
            told["missing"] = str(error)
        except Exception as error:
            logger.exception("the question for %s could not be answered", message["what"])
            told["missing"] = str(error)
        self.lines.send(told)

    def _found(self, what: str, number: int | None, *arguments: Any) -> Json:
        method: Callable[..., Json] = getattr(self._monitor, what)
        if what == "state":
            return method()
        return method(None if number is None else self.jobs[number].record.id, *arguments)

    def keep_details(self, run: RunnerJob, failure: Json) -> int:
        """Write the details of an ended computation, and return their size in bytes."""
        monitor, id = self._monitor, run.record.id
        # Not the last snapshot: the final state.
        monitor.look_again()
        details = {
            "error": failure,
            "computation": {"layers": monitor.computation(id)["layers"]},
            "log": monitor.log(id),
            "timeline": monitor.timeline(id),
            "graph": monitor.graph(id, None),
        }
        text = json.dumps(details, separators=(",", ":")).encode()
        replace_file(self.directory / "details" / f"{run.number}.json", text)
        return len(text)


def _declared_bytes(graph: ChunkGraph) -> int:
    """Return the declared bytes of a graph's results: a lower bound, as some have no declared size."""
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
    """Return the description of an exception."""
    text = FailureText(error)
    told = {"type": text.type, "message": text.message, "traceback": text.traceback[-_TEXT:]}
    with contextlib.suppress(Exception):
        payload = pack_error(error).payload
        if len(payload) <= _ERROR_BYTES:
            told["pickle"] = base64.b64encode(payload).decode()
    return told


def _checkpoint(directory: Path) -> CheckpointSettings | None:
    """Return the checkpoint settings, which let a later process continue."""
    if not config.get("web.checkpoints"):
        return None
    root = directory / "checkpoints"
    # The user's save annotations need a configured directory.
    dask.config.set({"dask-mars.checkpoint.directory": str(root)})
    # Targets were created before the submission, and no retry recreates them.
    return configured(str(root))._replace(trusts_targets=True, spare_bytes=SPARE_BYTES)


def main(settings: Json) -> None:
    """Compute for the front that has started this process."""
    # Ctrl-C in a terminal is for the front, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Unpickling may block this process, so that it would not notice the front's end.
    die_with_parent(settings["parent"])
    lines = Lines(socket.socket(fileno=settings["socket"]))
    directory = Path(settings["directory"])
    address = settings["scheduler"]
    with Runtime(settings["num_workers"], settings["memory_limit"]) as runtime:

        def here() -> GraphBackend:
            return EngineBackend(runtime.engine, lambda: runtime.settings.store_limit)

        if address is None:
            # Before the first computation, so that the monitor sees all of it.
            runtime.engine()
            monitor, limit = RuntimeMonitor(runtime), runtime.settings.memory_limit
            Runner(lines, directory, here, monitor, runtime.records, limit, _checkpoint(directory)).serve()
        else:
            cluster = ServiceClusterMonitor(runtime, address)
            Runner(lines, directory, cluster.backend, cluster, runtime.records, None).serve()
    # Python would wait for the threads of abandoned computations.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
