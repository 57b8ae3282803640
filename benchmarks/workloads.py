"""The catalogue of workloads and probes, by name and by group.

Sizes follow one factor, `scale`. Array workloads shrink shapes and chunks together, so that the
graph keeps its form and a smoke test walks the same paths; task workloads shrink their number of
tasks.
"""

from __future__ import annotations

import dataclasses
from typing import get_args

from benchmarks.arrays import ARRAY_WORKLOADS
from benchmarks.frames import FRAME_WORKLOADS
from benchmarks.latency import PROBES, Probe
from benchmarks.real import REAL_WORKLOADS
from benchmarks.tasks import TASK_WORKLOADS
from benchmarks.workload import Group, Workload

#: What a new process computes once, from its first import on.
_COLD = (
    "random-sum",
    "elementwise",
    "standardise",
    "rechunk",
    "products",
    "zarr-filter",
    "satellite-index",
    "anomalies",
)

_WARM = {workload.name: workload for workload in (*ARRAY_WORKLOADS, *REAL_WORKLOADS, *FRAME_WORKLOADS)}
_COLD_WORKLOADS = [
    dataclasses.replace(_WARM[name], name=f"{name}:cold", group="cold", summary=f"{_WARM[name].summary}, once")
    for name in _COLD
]

#: Everything that can be asked for, by name, in the order of the report.
CATALOGUE: dict[str, Workload | Probe] = {
    **_WARM,
    **{workload.name: workload for workload in (*_COLD_WORKLOADS, *TASK_WORKLOADS)},
    **PROBES,
}


def group_of(name: str) -> Group:
    """Tell to which group a workload or probe belongs.

    Parameters
    ----------
    name
        A key of `CATALOGUE`.

    Returns
    -------
    str
        One of `Group`.
    """
    subject = CATALOGUE[name]
    return "latency" if isinstance(subject, Probe) else subject.group


def tolerance_of(name: str) -> float:
    """Tell how far apart two right answers may lie.

    Parameters
    ----------
    name
        A key of `CATALOGUE`.

    Returns
    -------
    float
        Relative to the answer.
    """
    subject = CATALOGUE[name]
    return 0.0 if isinstance(subject, Probe) else subject.tolerance


#: Names by group.
GROUPS: dict[Group, list[str]] = {
    group: [name for name in CATALOGUE if group_of(name) == group] for group in get_args(Group)
}
