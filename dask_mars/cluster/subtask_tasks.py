"""Dask tasks for subtasks: one computes a subtask, others split its result for its readers."""

from __future__ import annotations

import operator
import pickle
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from dask_mars.cluster.annotations import TaskAnnotations
from dask_mars.cluster.computation import ClusterComputation, DaskKey
from dask_mars.cluster.local_tasks import LocalTasks
from dask_mars.cluster.marks import MARK
from dask_mars.cluster.partition.subtasks import Subtask
from dask_mars.cluster.planning import Cut
from dask_mars.cluster.shuffles import barrier_task
from dask_mars.cluster.subtask_spec import Constraints, Packer, task_of_large
from dask_mars.dask_api.core import Task, TaskRef
from dask_mars.labels import label_of
from dask_mars.scheduler.events import CLIENT

#: Size limits of result groups, in bytes: for groups that other hosts read, and for groups that travel only if
#: another host takes over their readers.
_GROUP_BYTES = 1 << 25
_STAYING_GROUP_BYTES = 1 << 27


class SubtaskTasks:
    """Makes the Dask tasks for a computation's subtasks."""

    def __init__(self, computation: ClusterComputation, packer: Packer, cut: Cut, local_tasks: LocalTasks) -> None:
        graph = computation.graph
        self._computation = computation
        self._packer = packer
        self._subtasks, self._sizes = cut
        self._local_tasks = local_tasks
        self._annotations = TaskAnnotations(computation, self._subtasks)
        self._requested = frozenset(graph.outputs)
        #: Indices of the subtasks that read each chunk.
        self.readers: dict[int, list[int]] = defaultdict(list)
        for index, subtask in enumerate(self._subtasks):
            for chunk in subtask.inputs:
                self.readers[chunk].append(index)
        #: Keys of the tasks that compute subtasks; other tasks take their results apart.
        self._own_keys: dict[int, DaskKey] = {}
        #: Key of the task for each requested chunk that stays on the cluster.
        self.persisted_keys: dict[int, DaskKey] = {}
        #: Names of subtasks that must start only once.
        self.once: list[str] = []

    def of(self, index: int, subtask: Subtask) -> dict[DaskKey, tuple[Task, int]]:
        """Return the tasks that compute a subtask and take its result apart."""
        computation, local_tasks = self._computation, self._local_tasks
        values, found, tasks = {}, {}, {}
        for chunk in subtask.inputs:
            if chunk not in local_tasks.values or chunk in local_tasks.result_of:
                found[chunk] = local_tasks.result_of[chunk]
                continue
            own: DaskKey = (f"mars-data-{computation.name}", chunk)
            task = task_of_large(own, local_tasks.values[chunk])
            if task is None:
                values[chunk] = local_tasks.values[chunk]
            else:
                tasks[own] = task, index
                found[chunk] = own, None
        arguments = list(dict.fromkeys([key for key, _ in found.values()]))
        places = {key: place for place, key in enumerate(arguments)}
        sources = {chunk: (places[key], item) for chunk, (key, item) in found.items()}
        output_groups = self._output_groups(subtask)
        packed = self._packer.pack(
            subtask, output_groups, sources, values, self._constraints(index, subtask), computation.saving
        )
        local_tasks.result_of.update(found)
        # The task uses only the standard library: Dask's scheduler needs neither dask_mars nor the user's code.
        call = operator.call, Task(None, pickle.loads, packed), *map(TaskRef, arguments)
        spec = computation.shuffles.barriers.get(subtask.chunks[0])
        # Dask's scheduler groups durations and colours by the part before the hash.
        layer = label_of(computation.graph.layer_of((subtask.outputs or subtask.chunks)[-1]))
        own_key = f"{layer}-{computation.name}", subtask.id.hex()
        task = Task(own_key, *call) if spec is None else barrier_task(spec, *call)
        key = self._own_keys[index] = task.key
        tasks[key] = task, index
        for place_of_group, group in enumerate(output_groups):
            part = key
            if len(output_groups) > 1:
                part = f"mars-part-{computation.name}", index, place_of_group
                tasks[part] = Task(part, operator.getitem, TaskRef(key), place_of_group), index
            local_tasks.result_of.update({chunk: (part, item) for item, chunk in enumerate(group)})
            for item, chunk in enumerate(group if computation.persist else ()):
                if chunk in self._requested:
                    # The key is the one in the user's collection.
                    own = self.persisted_keys[chunk] = computation.output_keys[chunk]
                    tasks[own] = Task(own, operator.getitem, TaskRef(part), item), index
        return tasks

    def _constraints(self, index: int, subtask: Subtask) -> Constraints:
        """Return the constraints of a subtask, whose chunks are of one kind."""
        computation, first = self._computation, subtask.chunks[0]
        requirements = computation.requirements
        once = None
        if first in requirements.once:
            once = f"mars-once-{computation.name}-{index}"
            self.once.append(once)
        required_agent = None
        if self._annotations.needs_files(index):
            required_agent = computation.hosts[subtask.host].id
            self._local_tasks.agents_with_files[required_agent] = str(computation.graph.keys[subtask.chunks[-1]])
        return Constraints(
            requirements.locks.get(first, frozenset()), once, required_agent, self._annotations.in_thread(index)
        )

    def _output_groups(self, subtask: Subtask) -> list[list[int]]:
        """Group the outputs of a subtask by the hosts that read them."""
        # A group travels as one, through the agent's own memory, so that large groups are divided.
        output_groups: dict[tuple[frozenset[int], int, int], list[int]] = {}
        #: Number of full groups for each set of hosts, and the size of the last group.
        filled: dict[frozenset[int], tuple[int, int]] = {}
        for chunk in subtask.outputs:
            readers = self.readers[chunk]
            hosts = {self._subtasks[reader].host for reader in readers}
            if chunk in self._requested:
                hosts.add(CLIENT)
            # A Dask thread gets copies of the whole group, so its inputs form groups of their own.
            alone = any(map(self._annotations.in_thread, readers))
            reading_hosts = frozenset(hosts)
            limit = _STAYING_GROUP_BYTES if hosts == {subtask.host} else _GROUP_BYTES
            index, size = filled.get(reading_hosts, (0, 0))
            if size and size + self._sizes[chunk] > limit:
                index, size = index + 1, 0
            filled[reading_hosts] = index, size + self._sizes[chunk]
            output_groups.setdefault((reading_hosts, index, chunk if alone else -1), []).append(chunk)
        return list(output_groups.values())

    def annotated(self, task: Task, index: int, mark: Mapping[str, Any]) -> dict[str, Any]:
        """Return the annotations of a task; `mark` asks agents for reports."""
        record = self._computation.record
        annotations: dict[str, Any] = self._annotations.of_task(task, index, task.key == self._own_keys[index])
        annotations[MARK] |= mark
        if record.is_submitted:
            # Viewers of the cluster see the user's name for it.
            annotations[MARK] |= {"id": record.id, "title": record.name}
        return annotations
