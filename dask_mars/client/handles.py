"""`Computation`: what users hold of a computation that goes on without them."""

from __future__ import annotations

import difflib
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn, Self

import dask
from dask.utils import parse_timedelta

from dask_mars.backend import Backend, InlineBackend, Options
from dask_mars.client import background
from dask_mars.client.backend import GraphBackend
from dask_mars.client.records import RUNNING, ChunkCounts, LayerCounts, Record, Records, ValueDescription
from dask_mars.client.showing import Explanation, as_html, as_text
from dask_mars.client.summaries import profiles_of, summary
from dask_mars.engine.profile import ComputationProfile
from dask_mars.errors import EngineStopped, refuse_unhashable

#: How often a waiting thread wakes, so that Ctrl-C is seen wherever the system's waits are deaf to it.
_AWAKE_S = 2.0
#: The longest name: it stands in lists.
_NAME_CHARACTERS = 200
_IS_NO_VALUE = (
    "a Computation is no value, and stays in the process that has submitted it: take what its result() returns, "
    "as in dask.delayed(f)(computation.result())"
)

Timeout = float | str | timedelta | None


class Outcome:
    """What comes of a computation; whoever holds none of it lets it go.

    Attributes
    ----------
    done : threading.Event
        Set once there is a value or an error.
    value : object
        The result.
    error : BaseException or None
        Why there is none.
    """

    def __init__(self) -> None:
        self.done = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    def set(self, value: Any = None, error: BaseException | None = None) -> None:
        """Say what has come of it; whoever says so first is right."""
        if not self.done.is_set():
            self.value, self.error = value, error
            self.done.set()


class Computation:
    """A computation that goes on in the background; `dask_mars.submit` makes it.

    It goes on when nobody holds it, and its result is kept as long as somebody does. It ends with the interpreter,
    and when its runtime is closed. It belongs to the process that has submitted it, and is no Dask collection:
    pass its `result` on, or its `id`.

    Attributes
    ----------
    id : str
        A UUID.
    name : str
        As given.
    state : str
        ``"queued"``, ``"preparing"``, ``"running"``, ``"finished"``, ``"failed"`` or ``"cancelled"``.
    progress : ChunkCounts
        Its chunks: ``total``, ``waiting``, ``running``, ``finished``, ``failed``, and the ``fraction`` finished.
    layers : list of LayerCounts
        The same of each layer of the graph, with the seconds that workers have spent on it, and the bytes it took.

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
        """Return what is known of it as a plain dict, as `Runtime.computations` has it, with its ``layers``."""
        return {**summary(self._record), "layers": [layer._asdict() for layer in self.layers]}

    @property
    def id(self) -> str:
        """The computation's id, a UUID as text."""
        return self._record.id

    @property
    def name(self) -> str:
        """What the user calls it."""
        return self._record.name

    @property
    def state(self) -> str:
        """How it is: queued, preparing, running, finished, failed or cancelled."""
        return self._record.state

    @property
    def progress(self) -> ChunkCounts:
        """How many chunks there are, and how many are computed; see `ChunkCounts`."""
        return self._record.counts()

    @property
    def layers(self) -> list[LayerCounts]:
        """How far each layer is; see `LayerCounts`."""
        return list(self._record.layers())

    def done(self) -> bool:
        """Say whether it is over, and `result` returns or raises at once."""
        return self._outcome.done.is_set()

    def wait(self, timeout: Timeout = None) -> bool:
        """Wait until it is over.

        Parameters
        ----------
        timeout : float, str or timedelta, optional
            For how many seconds at most, or for how long, as in ``"5 minutes"``. Default: as long as it takes.

        Returns
        -------
        bool
            Whether it is over.

        Raises
        ------
        ValueError
            The time is none.
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

        Ctrl-C ends the waiting and not the computation.

        Parameters
        ----------
        timeout : float, str or timedelta, optional
            How long to wait at most, as `wait` takes it. Default: as long as it takes.

        Returns
        -------
        object
            For one collection its value, for several a tuple of theirs.

        Raises
        ------
        TimeoutError
            It is not over yet.
        Cancelled
            It was cancelled.
        EngineStopped
            Its runtime was closed.
        Exception
            Whatever a task has raised.
        """
        if not self.wait(timeout):
            raise self._too_early(timeout)
        if self._outcome.error is not None:
            raise self._outcome.error
        return self._outcome.value

    def exception(self, timeout: Timeout = None) -> BaseException | None:
        """Wait until it is over, and return what `result` would raise; None if there is a result.

        Parameters
        ----------
        timeout : float, str or timedelta, optional
            How long to wait at most, as `wait` takes it. Default: as long as it takes.

        Raises
        ------
        TimeoutError
            It is not over yet.
        """
        if not self.wait(timeout):
            raise self._too_early(timeout)
        return self._outcome.error

    def _too_early(self, timeout: Timeout) -> TimeoutError:
        waited = f"{timeout} s" if isinstance(timeout, (int, float)) else str(timeout)
        return TimeoutError(f"the computation is {self.state} after {waited} of waiting; it goes on")

    def cancel(self) -> bool:
        """Cancel it: `result` raises `errors.Cancelled`. What runs is ended as `Runtime.cancel` says.

        While its graph is being prepared it is over at once, and its thread ends at the next step of that.

        Returns
        -------
        bool
            False if it is over already.
        """
        return self._record.cancel()

    def explain(self, key: Any = None) -> str:
        """Say in words what it waits for.

        Parameters
        ----------
        key : key, optional
            A Dask key: why this one is not being computed.

        Raises
        ------
        KeyError
            It has no such key, or no chunks are being computed.
        TypeError
            It cannot be a key: a list of keys, say.
        """
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
        """Return what each layer has taken so far, or did take.

        Returns
        -------
        ComputationProfile
            A dict that shows itself as a table, with `to_dict` and `to_pandas`. By the name of the layer
            ``count``, ``total_s``, ``mean_s`` and ``stored_bytes``, as `Runtime.profile` has them.
        """
        return profiles_of(self._record.layers())

    def __copy__(self) -> Self:
        # All of them are of the same computation.
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(_IS_NO_VALUE)

    def __dask_graph__(self) -> NoReturn:
        # A task would get the handle, which is nothing to compute with.
        raise TypeError(_IS_NO_VALUE)

    def __repr__(self) -> str:
        return as_text(self._record)

    def _repr_html_(self) -> str:
        return as_html(self._record)


_computations: weakref.WeakSet[Computation] = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked process: what goes on goes on in the parent, and nobody is to wait for it here."""
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
    optimize_graph: bool = True,
    traverse: bool = True,
) -> Computation:
    """Compute collections in the background.

    Parameters
    ----------
    backend : Backend
        What computes them.
    collections : sequence
        As `dask.compute` takes them.
    name, id : str or None
        As `Runtime.submit` takes them.
    options : mapping
        As Dask's schedulers take them.
    optimize_graph, traverse
        As `dask.compute` takes them.

    Raises
    ------
    TypeError
        The first of them is a function.
    """
    chosen = _chosen(options)
    if collections and callable(collections[0]) and not dask.is_dask_collection(collections[0]):
        # As a Client of distributed takes it: Dask would return both as they are.
        raise TypeError(
            f"submit takes what dask.compute takes, and no function like {collections[0]!r}: submit "
            f"dask.delayed(function)(...) instead"
        )

    # A function: what has `persist`, or belongs to what has it, Dask takes for something else.
    def schedule(dsk: Any, keys: Any, **others: Any) -> Any:
        return backend.compute(dsk, keys, chosen)

    def compute() -> Any:
        values = dask.compute(*collections, scheduler=schedule, optimize_graph=optimize_graph, traverse=traverse)
        return values[0] if len(collections) == 1 else values

    return _start(backend, name, id, compute)


def submit_graph(
    backend: Backend, dsk: Any, keys: Any, name: str | None, id: str | None, options: Mapping[str, Any]
) -> Computation:
    """Compute keys of a Dask graph in the background, as `submit` does collections."""
    chosen = _chosen(options)
    return _start(backend, name, id, lambda: backend.compute(dsk, keys, chosen))


def _chosen(options: Mapping[str, Any]) -> Options:
    """Take the options of a computation. Dask passes `submit` none of others, unlike schedulers."""
    names = ("name", "id", "optimize_graph", "traverse", *Options._fields)
    for option in options:
        if option not in Options._fields:
            nearest = difflib.get_close_matches(option, names, 1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"it has {', '.join(names)}"
            raise TypeError(f"submit has no option {option!r}; {hint}")
    return Options.known(options)


def _start(backend: Backend, name: str | None, id: str | None, compute: Callable[[], Any]) -> Computation:
    """Call a function in the background, and return the handle of what it computes."""
    if not isinstance(name, str | None):
        raise TypeError(f"the name of a computation is text, and not {name!r}")
    if name is not None and len(name) > _NAME_CHARACTERS:
        raise ValueError(f"the name of a computation has at most {_NAME_CHARACTERS} characters, not {len(name)}")
    outcome = Outcome()
    if isinstance(backend, GraphBackend) and backend.records is not None:
        record = backend.record = backend.records.new(name or "", id, is_submitted=True)
    else:
        record = Records().new(name or "", id)
    works = [compute]

    def work() -> None:
        try:
            with record:
                # What it holds is to go when it has returned.
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
        # A task that goes on in the background would outlive the one that this is.
        work()
        return computation
    record.may_be_left(leave)
    try:
        background.start(record, work)
    except BaseException as error:
        # There can be no threads any more, for one.
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
    """Say what a result is like."""
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
        # It is of the user's making, and only looks like one of these.
        return _described(type(value).__name__)
    return _described(type(value).__name__)


def _described(
    kind: str, dtype: str | None = None, shape: list[int | None] | None = None, size_bytes: int | None = None
) -> ValueDescription:
    return {"kind": kind, "dtype": dtype, "shape": shape, "bytes": size_bytes, "evicted": False}


__all__ = ["Computation", "Outcome", "describe", "submit", "submit_graph"]
