"""The context of a worker's tasks: settings, context variables and ``__main__`` of the user's process."""

from __future__ import annotations

from contextvars import Context

import dask

from dask_mars.protocol import ambient, main_module
from dask_mars.protocol.context import TaskContext
from dask_mars.worker.known_graph import KnownGraph

#: Number of contexts that a worker keeps.
_MOST_CONTEXTS = 16


class Surroundings:
    """Sets the context of a graph's tasks, and undoes the changes that they make to it."""

    def __init__(self) -> None:
        #: The graph whose loads or tasks may have changed the context since it was last restored; 0 for none.
        self.graph = 0
        #: The entered context.
        self.context: int | None = None
        #: Whether the context asks for copies of arrays, which tasks may write into.
        self.writable_inputs = False
        self._contexts: dict[int, bytes] = {}
        self._task_context = TaskContext()
        #: Tasks run in copies of it.
        self.variables: Context = self._task_context.variables

    def add(self, context_id: int, payload: bytes) -> None:
        """Add a context that has arrived."""
        self._contexts = {context_id: payload, **self._contexts}
        while len(self._contexts) > _MOST_CONTEXTS:
            self._contexts.popitem()

    def enter(self, context_id: int) -> None:
        """Apply the settings of a context, unless they are in force."""
        payload = self._contexts.get(context_id)
        if self.context != context_id and payload is not None:
            self.context = context_id
            self._apply(payload)
            self.writable_inputs = bool(dask.config.get("dask-mars.writable-inputs", False))

    def _apply(self, payload: bytes) -> None:
        self._task_context.enter(payload)
        self.variables = self._task_context.variables

    def turn_to(self, graph: KnownGraph) -> list[str]:
        """Give a graph's tasks their names of `__main__`; return warnings about settings that do not apply."""
        if self.graph:
            self.restore()
        self.graph = graph.id
        ambient.show_warnings_again()
        main_module.show(graph.main_names)
        failures = self._task_context.failures[:]
        self._task_context.failures.clear()
        return failures

    def restore(self) -> None:
        """Restore what tasks of the last graph may have changed."""
        self.graph = 0
        main_module.show({})
        self._task_context.restore()
        self.variables = self._task_context.variables
