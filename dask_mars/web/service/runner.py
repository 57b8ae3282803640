"""The process that computes for a service. It reads what users have pickled, and never listens.

It is told what to do, and tells what becomes of it, in lines of JSON over a socket that it has inherited; graphs and
results are files of the service's directory. It ends when the front does.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask

from dask_mars import Runtime
from dask_mars.backend import Options
from dask_mars.client.backend import EngineBackend, GraphBackend
from dask_mars.errors import Cancelled, GraphRefused
from dask_mars.graph.chunks import ChunkGraph, DeclaredSizes
from dask_mars.optimize.client_only import stores_chunk
from dask_mars.protocol.pickling import pack_error
from dask_mars.web.monitor import Json
from dask_mars.web.service import results
from dask_mars.web.service.lines import Lines

logger = logging.getLogger("dask_mars.web")

#: Pickled exceptions that are larger stay here; what they say is told.
_ERROR_BYTES = 256 << 10
#: The longest message and traceback of an exception, in characters.
_TEXT = 50_000


class Run:
    """A computation in this process, and a thread that computes it.

    Parameters
    ----------
    runner : Runner
        Where.
    order : dict
        What the front has said.
    """

    def __init__(self, runner: Runner, order: Json) -> None:
        self.runner = runner
        self.number: int = order["number"]
        self.id: str = order["id"]
        self.order = order
        self.graph: int | None = None
        self.cancelled = False

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name=f"computation-{self.number}", daemon=True).start()

    def say(self, what: str, **facts: Any) -> None:
        """Tell the front something of this computation."""
        self.runner.lines.send({"say": what, "number": self.number, **facts})

    def _run(self) -> None:
        try:
            self._compute()
        except Cancelled:
            self.say("cancelled")
        except GraphRefused as error:
            self.say("refused", error=_error(error))
        # What users pickle may raise anything.
        except BaseException as error:
            self.say("cancelled" if self.cancelled else "failed", error=_error(error))
        finally:
            self.runner.ended(self)

    def _compute(self) -> None:
        header, submitted = self._unpickled()
        is_graph = header["kind"] == "graph"
        backend = self.runner.backend()
        run = backend.run

        @functools.wraps(run)
        def checked(graph: ChunkGraph, *rest: Any) -> Any:
            self._check(graph)
            return run(graph, *rest)

        # Whatever computes graphs, they are looked at before.
        backend.run = checked  # type: ignore[method-assign]
        options = Options.known(header.get("options", {}))

        def schedule(dsk: Any, keys: Any, **others: Any) -> Any:
            return backend.compute(dsk, keys, options)

        if is_graph:
            value = schedule(*submitted)
        else:
            (value,) = dask.compute(submitted, scheduler=schedule)
        # A graph may be large, and so is a result.
        del submitted
        directory = self.runner.directory
        name = f"result-{self.number}-{self.order['attempt']}"
        incoming, target = directory / "incoming" / name, directory / "results" / str(self.number)
        try:
            description, size_bytes = results.write(value, is_graph, incoming, target)
        finally:
            incoming.unlink(missing_ok=True)
        self.say("finished", result=description, file_bytes=size_bytes)

    def _unpickled(self) -> tuple[Json, Any]:
        try:
            return results.read(Path(self.order["graph"]))
        except MemoryError:
            raise
        except BaseException as error:
            told = GraphRefused(f"it cannot be unpickled: {type(error).__name__}: {error}")
            raise told from error

    def _check(self, graph: ChunkGraph) -> None:
        """Refuse what would not do here what the user wants of it."""
        if self.cancelled:
            raise Cancelled(self.number)
        for operand in graph.operands:
            if operand.in_client and stores_chunk(operand.functions):
                raise GraphRefused(
                    "it stores into an array or a store in the memory of your process, which a service does not "
                    "reach; store into files, or into a zarr store on disk"
                )
        limit = self.runner.memory_limit
        if limit is not None:
            sizes = DeclaredSizes(graph)
            result_bytes = sum([sizes[chunk] or 0 for chunk in graph.outputs])
            if result_bytes > limit:
                raise GraphRefused(
                    f"the result has {result_bytes:,} bytes, more than the memory limit of {limit:,} bytes; reduce it, "
                    "or write it into files"
                )
        self.say("taken")

    def cancel(self) -> None:
        """End it as soon as that is possible."""
        self.cancelled = True


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
    runtime : Runtime or None
        What computes here; None for a cluster.
    """

    def __init__(
        self, lines: Lines, directory: Path, backend: Callable[[], GraphBackend], runtime: Runtime | None
    ) -> None:
        self.lines = lines
        self.directory = directory
        self.backend = backend
        self.memory_limit = None if runtime is None else runtime.settings.memory_limit
        self._runs: dict[int, Run] = {}

    def serve(self) -> None:
        """Do what the front says, until it has gone."""
        self.lines.send({"say": "ready"})
        for message in self.lines:
            getattr(self, f"_do_{message['do']}")(message)
        # Computations that end because everything does are begun again by the next service.
        self.lines.mute()

    def _do_ask(self, message: Json) -> None:
        answer = {"say": "answer", "question": message["question"]}
        try:
            answer["answer"] = self._answer(message["what"], *message["arguments"])
        except KeyError:
            # The front knows what to say of what nobody knows.
            pass
        except Exception:
            logger.exception("the question for %s could not be answered", message["what"])
        self.lines.send(answer)

    def _answer(self, what: str, *arguments: Any) -> Any:
        if what == "arrow":
            (number,) = arguments
            source = self.directory / "results" / str(number)
            results.write_arrow(
                source, self.directory / "incoming" / f"{number}.arrow", source.with_name(f"{number}.arrow")
            )
            return {}
        raise KeyError(what)

    def _do_run(self, message: Json) -> None:
        run = self._runs[message["number"]] = Run(self, message)
        run.start()

    def _do_cancel(self, message: Json) -> None:
        run = self._runs.get(message["number"])
        if run is not None:
            run.cancel()

    def ended(self, run: Run) -> None:
        """Forget a computation that is over."""
        self._runs.pop(run.number, None)


def _error(error: BaseException) -> Json:
    """Return an exception as the front keeps it."""
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
    lines = Lines(socket.socket(fileno=settings["socket"]))
    directory = Path(settings["directory"])
    address = settings["scheduler"]
    if address is not None:
        from dask_mars.cluster import backend as clusters

        Runner(lines, directory, lambda: clusters.cluster_of(clusters.connect(address)), None).serve()
        clusters.close()
    else:
        with Runtime(settings["num_workers"], settings["memory_limit"]) as runtime:
            Runner(lines, directory, lambda: local_backend(runtime), runtime).serve()
    # Threads that compute what nobody waits for any more would have Python wait for them.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def local_backend(runtime: Runtime) -> EngineBackend:
    """Return what computes one graph with a runtime."""
    return EngineBackend(runtime.engine, lambda: runtime.settings.store_limit)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
