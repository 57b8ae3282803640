"""Starts a worker process, and ends it."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from multiprocessing import resource_tracker
from typing import Any

from dask_mars import process_role
from dask_mars.descriptors import hold_streams
from dask_mars.protocol import channel, main_module, messages
from dask_mars.protocol.control import ControlPage
from dask_mars.protocol.locks import InterprocessLock
from dask_mars.protocol.pickling import dumps
from dask_mars.store.arena import Arena
from dask_mars.store.arena_capacity import not_mapped
from dask_mars.store.in_place_sealing import limit_memory, make_heap
from dask_mars.store.store import Store
from dask_mars.worker.exiting import end_process
from dask_mars.worker.interrupts import SIGNAL
from dask_mars.worker.loop import WorkerProcess, overflow_files
from dask_mars.worker.outbox import InputStream, OutputStream
from dask_mars.worker.preload import load_what_arrays_need


def main(options: Mapping[str, Any], imported: Callable[[], None]) -> None:
    """Run a worker process; call `imported` when it has imported its modules."""
    # Ctrl-C goes to the whole terminal; the client decides what it means for tasks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    modules = dict(sys.modules)
    # A forked process has descriptors under other numbers than its parent.
    numbers = options.get("numbers", {})
    descriptor = numbers.get(options["socket"], options["socket"])
    connection = socket.socket(fileno=descriptor)
    process_role.die_with_parent(options["parent"])
    hold_streams()
    # Crash reports go to the user's standard error, even if tasks replace Python's.
    faulthandler.enable(file=2, all_threads=False)
    load_what_arrays_need()
    for name in options["modules"]:
        # The tasks that need the module raise the error again.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    imported()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(channel.frame(dumps([messages.as_plain(messages.Loaded())])))
    start = _receive_start(connection, numbers)
    for inherited in (descriptor, start.locks, start.wake):
        # Programs that tasks start must not inherit these.
        os.set_inheritable(inherited, False)
    process_role.in_worker = True
    sys.argv[:] = start.arguments
    main_module.take_over(start.main)
    InterprocessLock.descriptor = start.locks
    try:
        store, page = _make_store(start)
    except (OSError, MemoryError) as reason:
        # The engine's process had enough address space, and may have loaded fewer libraries.
        error = not_mapped(reason, start.memory_limit, len(start.arenas) - 1, start.capacity_bytes)
        connection.sendall(channel.frame(dumps([messages.as_plain(messages.CannotStart(error))])))
        return
    part, overflow = page.part_of(start.worker), partial(overflow_files, page)
    _serve(WorkerProcess(connection, store, part, start.idle_trim_s, overflow))
    end_process(modules)


def _make_store(start: messages.Start) -> tuple[Store, ControlPage]:
    """Map the arenas and the control page; return the store and the page."""
    arenas = [Arena(arena, start.capacity_bytes) for arena in start.arenas]
    control = Arena(start.control, start.control_bytes)
    for mapped in (*start.arenas, start.control):
        os.close(mapped)
    threshold_bytes = start.arena_threshold_bytes
    heap = make_heap(arenas[start.worker], start.live, threshold_bytes)
    page = ControlPage(control.view(0, start.control_bytes).data)
    quota = None
    if heap is not None and threshold_bytes is not None:
        quota = limit_memory(heap, threshold_bytes, page.part_of(start.worker), start.wake, SIGNAL)
    return Store(arenas, start.worker, start.live, start.inline_bytes, heap, quota), page


def _serve(process: WorkerProcess) -> None:
    """Serve until the connection ends, with output, warnings and signals of tasks going to the process."""
    sys.stdin = InputStream(open(os.devnull, "rb"))  # noqa: PTH123, SIM115
    sys.stdout = OutputStream(process.send_output, "stdout", sys.stdout)
    sys.stderr = OutputStream(process.send_output, "stderr", sys.stderr)
    process.use_streams(sys.stdout, sys.stderr)

    def show(message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
        process.send_warning(message, category, filename, lineno)

    warnings.showwarning = show  # type: ignore[assignment]
    _track_elsewhere(process)
    os.register_at_fork(after_in_child=process.leave_engine)
    signal.signal(SIGNAL, process.interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL})
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.serve()
    # Destructors and exit handlers of user code print to the original streams from now on.
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    process.forget_all()


def _track_elsewhere(process: WorkerProcess) -> None:
    """Have the user's process track shared memory: a worker's own tracker would remove it when the worker ends."""

    def through_engine(plain: Callable[[Any, str], None], is_open: bool) -> Callable[[Any, str], None]:
        def note(name: Any, rtype: str) -> None:
            if rtype != "shared_memory" or not process.send_tracked(name, is_open):
                plain(name, rtype)

        return note

    resource_tracker.register = through_engine(resource_tracker.register, True)  # type: ignore[assignment]
    resource_tracker.unregister = through_engine(resource_tracker.unregister, False)  # type: ignore[assignment]


def _receive_start(connection: socket.socket, numbers: Mapping[int, int]) -> messages.Start:
    """Return the start message, with this process's numbers of its descriptors."""
    start = channel.receive_start(connection)
    if not numbers:
        return start
    return replace(
        start,
        arenas=[numbers[descriptor] for descriptor in start.arenas],
        control=numbers[start.control],
        locks=numbers[start.locks],
        wake=numbers[start.wake],
    )
