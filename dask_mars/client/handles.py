"""`Computation`: the user's handle of a computation in the background."""

from __future__ import annotations

import difflib
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn, Self

import dask
from dask.callbacks import Callback
from dask.utils import parse_timedelta

from dask_mars.client.backend import GraphBackend
from dask_mars.client.background import background
from dask_mars.client.records import RUNNING, Record, Records, ValueDescription
from dask_mars.client.request import Backend, InlineBackend, Options, Request, checkpoint_settings
from dask_mars.client.showing import Explanation, as_html, as_text
from dask_mars.client.summaries import summary
from dask_mars.errors import EngineStopped
from dask_mars.graph.chunks import refuse_unhashable
from dask_mars.observe.counts import ChunkCounts, LayerCounts
from dask_mars.observe.profile import ComputationProfile, profile_of

#: Interval at which a waiting thread wakes for Ctrl-C, in seconds; some systems' waits cannot be interrupted.
_AWAKE_S = 2.0
#: Longest name, in characters; lists show it.
_NAME_CHARACTERS = 200
_IS_NO_VALUE = (
    "a Computation is no value, and stays in the process that has submitted it: take what its result() returns, "
    "as in dask.delayed(f)(computation.result())"
)

Timeout = float | str | timedelta | None


class Outcome:
    """The result of a computation, freed when no handle refers to it."""

    def __init__(self) -> None:
        #: Set once there is a value, or the reason for a missing one.
        self.done = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    def set(self, value: Any = None, error: BaseException | None = None) -> None:
        """Set the result or the error. Only the first call counts."""
        if not self.done.is_set():
            self.value, self.error = value, error
            self.done.set()


class Computation:
    """A computation that runs in the background; `dask_mars.submit` creates it.

    It runs on without a reference to this handle, but its result is kept only while a handle exists. It ends with
    the interpreter, and when its runtime is closed. It belongs to the process that has submitted it, and is no
    Dask collection: pass its `result` to other tasks, or its `id` to other processes.

    Attributes
    ----------
    id : str
        A UUID.
    name : str
        The name given to `submit`.
    state : str
        ``"queued"``, ``"preparing"``, ``"running"``, ``"finished"``, ``"failed"`` or ``"cancelled"``.
    progress : ChunkCounts
        Its chunks: ``total``, ``waiting``, ``running``, ``finished``, ``failed``, and the ``fraction`` finished.
    layers : list of LayerCounts
        The same for each layer of the graph, with the seconds that workers have spent on it, and the bytes it
        took.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_mars
    >>> computation = dask_mars.submit(da.arange(10, chunks=5).sum(), name="sum")
    >>> int(computation.result())
    45
    >>> computation
    <Computation 'sum' finished: 3 of 3 chunks>
    """

    def __init__(self, record: Record, outcome: Outcome) -> None:
        self._record = record
        self._outcome = outcome
        _computations.add(self)

    def to_dict(self) -> dict[str, Any]:
        """Return its state as a plain dict, as `Runtime.computations` does, with its ``layers``."""
        return {**summary(self._record), "layers": [layer._asdict() for layer in self.layers]}

    @property
    def id(self) -> str:
        """The computation's id, a UUID as text."""
        return self._record.id

    @property
    def name(self) -> str:
        """The user's name for it."""
        return self._record.name

    @property
    def state(self) -> str:
        """One of queued, preparing, running, finished, failed or cancelled."""
        return self._record.state

    @property
    def progress(self) -> ChunkCounts:
        """The number of chunks, and of computed ones; see `ChunkCounts`."""
        return self._record.counts()

    @property
    def layers(self) -> list[LayerCounts]:
        """The progress of each layer; see `LayerCounts`."""
        return list(self._record.layers())

    def done(self) -> bool:
        """Return whether it is over, so that `result` returns or raises at once."""
        return self._outcome.done.is_set()

    def wait(self, timeout: Timeout = None) -> bool:
        """Wait until it is over.

        Parameters
        ----------
        timeout : float, str or timedelta, optional
            Longest wait, in seconds or as in ``"5 minutes"``. Default: no limit.

        Returns
        -------
        bool
            Whether it is over.

        Raises
        ------
        ValueError
            The timeout is not a number or a duration.
        """
        done = self._outcome.done
        end_s = None if timeout is None else time.monotonic() + _seconds(timeout)
        while not done.is_set():
            left_s = _AWAKE_S if end_s is None else min(end_s - time.monotonic(), _AWAKE_S)
            if left_s <= 0:
                return False
            done.wait(left_s)
        return True

    def result(self, timeout: Timeout = None) -> Any:
        """Wait for the result, and return it.

        Ctrl-C ends the wait, not the computation.

        Parameters
        ----------
        timeout : float, str or timedelta, optional
            Longest wait, as `wait` takes it. Default: no limit.

        Returns
        -------
        object
            The value of one collection, or a tuple for several.

        Raises
        ------
        TimeoutError
            It is not over yet.
        Cancelled
            It was cancelled.
        EngineStopped
            Its runtime was closed.
        Exception
            Any exception of a task.
        """
        if not self.wait(timeout):
            raise self._too_early(timeout)
        if self._outcome.error is not None:
            raise self._outcome.error
        return self._outcome.value

    def exception(self, timeout: Timeout = None) -> BaseException | None:
        """Wait as `result` does, and return what that would raise; None if there is a result."""
        if not self.wait(timeout):
            raise self._too_early(timeout)
        return self._outcome.error

    def _too_early(self, timeout: Timeout) -> TimeoutError:
        waited = f"{timeout} s" if isinstance(timeout, (int, float)) else str(timeout)
        return TimeoutError(f"the computation is {self.state} after {waited} of waiting; it goes on")

    def cancel(self) -> bool:
        """Cancel it: `result` raises `errors.Cancelled`. Running chunks end as `Runtime.cancel` describes.

        While its graph is being prepared it is over at once, and its thread ends at the next step of the
        preparation.

        Returns
        -------
        bool
            False if it is over already.
        """
        return self._record.cancel()

    def explain(self, key: Any = None) -> str:
        """Explain what it waits for, or why a key of it is not computed; see `Runtime.explain`."""
        if key is None:
            return Explanation(self._record.explain())
        refuse_unhashable(key)
        try:
            return Explanation(self._record.explain(key))
        except KeyError:
            why = (
                "has no such key: chunks of a chain have that of its last" if self.state == RUNNING else self.state
            )
            raise KeyError(f"nothing is to be said of {key!r}: the computation {why}") from None

    def profile(self) -> ComputationProfile:
        """Return the cost of each layer so far, as `Runtime.profile` does for all computations."""
        return profile_of(self._record.layers())

    def __copy__(self) -> Self:
        # A copy is a handle of the same computation.
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(_IS_NO_VALUE)

    def __dask_graph__(self) -> NoReturn:
        # A task would get the handle, and cannot compute with it.
        raise TypeError(_IS_NO_VALUE)

    def __repr__(self) -> str:
        return as_text(self._record)

    def _repr_html_(self) -> str:
        return as_html(self._record)


_computations: weakref.WeakSet[Computation] = weakref.WeakSet()


def _after_fork() -> None:
    """Fail all running computations in a forked process: they go on in the parent."""
    for computation in list(_computations):
        if not computation._outcome.done.is_set():
            outcome = computation._outcome = Outcome()
            error = EngineStopped()
            outcome.set(error=error)
            computation._record.abandon(error)


os.register_at_fork(after_in_child=_after_fork)


def submit(
    backend: Backend,
    collections: Sequence[Any],
    name: str | None,
    id: str | None,
    options: Mapping[str, Any],
    optimize_graph: bool,
    traverse: bool,
) -> Computation:
    """Compute collections in the background; see `Runtime.submit`."""
    chosen = _chosen(options)
    if collections and callable(collections[0]) and not dask.is_dask_collection(collections[0]):
        # distributed's Client takes a function and arguments; dask.compute would return both unchanged.
        raise TypeError(
            f"submit takes what dask.compute takes, and no function like {collections[0]!r}: submit "
            f"dask.delayed(function)(...) instead"
        )
    template = _request(backend, name, id, chosen)

    # A plain function: Dask treats a scheduler that has `persist`, or belongs to an object with it, differently.
    def schedule(dsk: Any, keys: Any, **others: Any) -> Any:
        return backend.compute(template._replace(graph=dsk, keys=keys))

    def compute() -> Any:
        values = dask.compute(*collections, scheduler=schedule, optimize_graph=optimize_graph, traverse=traverse)
        return values[0] if len(collections) == 1 else values

    return _start(backend, template, compute)


def submit_graph(
    backend: Backend, dsk: Any, keys: Any, name: str | None, id: str | None, options: Mapping[str, Any]
) -> Computation:
    """Compute keys of a Dask graph in the background, as `submit` does with collections."""
    chosen = _chosen(options)
    template = _request(backend, name, id, chosen)
    return _start(backend, template, partial(backend.compute, template._replace(graph=dsk, keys=keys)))


def _chosen(options: Mapping[str, Any]) -> Options:
    """Return the options of a computation. Unlike schedulers, `submit` gets no foreign options from Dask."""
    names = ("name", "id", "optimize_graph", "traverse", *Options._fields)
    for option in options:
        if option not in Options._fields:
            nearest = difflib.get_close_matches(option, names, 1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"it has {', '.join(names)}"
            raise TypeError(f"submit has no option {option!r}; {hint}")
    chosen = Options.known(options)
    if chosen.callbacks is None:
        # Others may be active when the computation begins, and Dask's handling of them is not thread-safe.
        chosen = chosen._replace(callbacks=list(Callback.active))
    return chosen


def _request(backend: Backend, name: str | None, id: str | None, options: Options) -> Request:
    """Return a request without graph and keys."""
    if not isinstance(name, str | None):
        raise TypeError(f"the name of a computation is text, and not {name!r}")
    if name is not None and len(name) > _NAME_CHARACTERS:
        raise ValueError(f"the name of a computation has at most {_NAME_CHARACTERS} characters, not {len(name)}")
    records = backend.records if isinstance(backend, GraphBackend) else Records()
    record = records.new(name or "", id, is_submitted=True)
    return Request(None, None, options, record=record, checkpoint=checkpoint_settings())


def _start(backend: Backend, template: Request, compute: Callable[[], Any]) -> Computation:
    """Call a function in the background, and return a handle of its computation."""
    record = template.record
    assert record is not None
    outcome = Outcome()
    works = [compute]

    def work() -> None:
        try:
            with record:
                # pop: the objects that the function holds must be freed when it has returned.
                value = works.pop()()
                record.result = describe(value)
            outcome.set(value)
        except BaseException as error:
            record.end(error)
            outcome.set(error=error)

    def leave(reason: Exception) -> None:
        background.remove(record)
        outcome.set(error=reason)

    computation = Computation(record, outcome)
    if isinstance(backend, InlineBackend):
        # A background computation would outlive the task that runs now.
        work()
        return computation
    record.may_be_left(leave)
    try:
        background.start(record, work)
    except BaseException as error:
        # At the interpreter's end no threads can start, for example.
        record.end(error)
        raise
    return computation


def _seconds(timeout: float | str | timedelta) -> float:
    try:
        seconds = float(parse_timedelta(timeout) if isinstance(timeout, (str, timedelta)) else timeout)
    except (TypeError, ValueError, KeyError, AttributeError):
        seconds = math.nan
    if math.isnan(seconds):
        raise ValueError(f"a timeout is a number of seconds, or text like '5 minutes', and not {timeout!r}")
    return seconds


def describe(value: Any) -> ValueDescription:
    """Return the kind, dtype, shape and size of a result."""
    if isinstance(value, tuple) and value:
        sizes = [describe(part)["bytes"] for part in value]
        known = [size for size in sizes if size is not None]
        return _described("tuple", shape=[len(value)], size_bytes=sum(known) if len(known) == len(sizes) else None)
    try:
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            kind = "array" if value.shape else "scalar"
            return _described(kind, str(value.dtype), [int(length) for length in value.shape], int(value.nbytes))
        if hasattr(value, "columns") and hasattr(value, "shape"):
            size_bytes = int(value.memory_usage().sum())
            return _described("frame", shape=[int(length) for length in value.shape], size_bytes=size_bytes)
    except Exception:
        # The user's object only resembles an array or a frame.
        return _described(type(value).__name__)
    return _described(type(value).__name__)


def _described(
    kind: str, dtype: str | None = None, shape: list[int | None] | None = None, size_bytes: int | None = None
) -> ValueDescription:
    return {"kind": kind, "dtype": dtype, "shape": shape, "bytes": size_bytes, "evicted": False}
