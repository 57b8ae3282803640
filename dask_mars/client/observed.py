"""The computations of a runtime, as its user observes and cancels them."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from dask_mars.client.records import Records

if TYPE_CHECKING:
    from dask_mars.client.handles import Computation


class Observed:
    """A runtime with records of its computations."""

    records: Records

    def computations(self) -> list[dict[str, Any]]:
        """Return the current and the most recent computations, the newest first.

        Returns
        -------
        list of dict
            For each its ``id``, ``name``, ``state``, the engine's id of it as ``graph``; the times ``created``,
            ``started`` and ``ended``, in seconds since 1970; its ``chunks`` by state, as in
            `Computation.progress`; and its ``error`` as ``type`` and ``message``. Computations by `get` are
            included.
        """
        from dask_mars.client.summaries import summary

        return [summary(record) for record in self.records]

    def cancel(self, computation: int | str | Computation) -> bool:
        """Cancel a computation, from any thread. The call that has started it raises `errors.Cancelled`.

        Queued chunks are dropped at once. A running task gets `errors.ExecutionInterrupted`, which is a
        KeyboardInterrupt; if it still runs after ``dask-mars.cancel-grace``, its worker is ended and replaced. A
        task in the user's process runs to its end first. Other computations are not disturbed.

        A computation that is being prepared has no graph id yet; cancelled by its id, it ends at the next step of
        the preparation.

        Parameters
        ----------
        computation : int, str or Computation
            Its graph id, as in `state`, its id, as in `computations` and `Computation`, or its handle. A cluster
            has no graph ids.

        Returns
        -------
        bool
            False if there was no such computation, or it was over.

        Raises
        ------
        TypeError
            It is none of these.
        """
        # A handle has an id.
        id: Any = getattr(computation, "id", computation)
        if isinstance(id, str):
            try:
                return self.records.find(id).cancel()
            except KeyError:
                return False
        try:
            graph_id = operator.index(id)
        except TypeError:
            raise TypeError(f"expected an id, a number or a Computation, not {id!r}") from None
        return self._cancel_graph(graph_id)

    def _cancel_graph(self, graph_id: int) -> bool:
        """Cancel the computation with a graph id; return False if there is none."""
        raise TypeError(f"expected an id or a Computation, not {graph_id!r}: on a cluster there are no numbers")
