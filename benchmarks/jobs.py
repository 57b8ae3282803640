"""What the parent asks of a child process, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "failed", "timeout", "skipped"]


@dataclass(frozen=True, slots=True)
class Job:
    """One workload under one peer in one round: what one fresh child process does."""

    peer: str
    workload: str
    #: Counted from 0.
    round_index: int
    #: How many timed runs the child makes, if they fit in the timeout.
    repeat: int
    workers: int
    scale: float
    #: How long the child may live. Runs that would not fit are left out.
    timeout_s: float


@dataclass(frozen=True, slots=True)
class DataJob(Job):
    """A workload that may read files."""

    #: Where they are.
    data_directory: str


@dataclass(frozen=True, slots=True)
class LimitedJob(Job):
    """A case of the benchmarks of memory."""

    #: What the scheduler may use, where it has a limit.
    limit_bytes: int
    #: Where it may spill.
    directory: str
    #: The folder of a control group that has the limit, of which the scheduler is not told; empty for none.
    control_group: str = ""


@dataclass(frozen=True, slots=True)
class ClusterJob(Job):
    """A workload on a cluster, whose hosts have `workers` processes each."""

    hosts: int
    #: What the processes of a host may use together.
    limit_bytes: int
    #: Of the network between hosts, empty for the machine's own.
    network: str


@dataclass(frozen=True, slots=True)
class ClimatologyJob(ClusterJob):
    """A climatology from one store to another."""

    source: str
    target: str
    #: Component of time that values are grouped by.
    by: str


@dataclass(frozen=True, slots=True)
class ViewersJob(Job):
    """A graph that is computed while others look at it."""

    viewers: int


@dataclass(frozen=True, slots=True)
class ByHandJob(DataJob):
    """Loops by hand beside schedulers; the peer is the place of the arrays."""

    #: Of all arrays of a loop.
    size_bytes: int


@dataclass(slots=True)
class Measurement:
    """What came of a job."""

    job: Job
    status: Status = "ok"
    #: Why the status is not ``"ok"``, or what else a reader should know.
    detail: str = ""
    #: One duration per timed run.
    seconds: list[float] = field(default_factory=list)
    #: How long the process lived in which they were made, where that is asked for.
    process_seconds: list[float] = field(default_factory=list)
    #: How long the run took that ended in an error; None where none did, or it does not say.
    seconds_to_error: float | None = None
    #: The digest of each timed run's result. Run n of every job has the same seed, so these compare
    #: across peers.
    values: list[list[float]] = field(default_factory=list)
    #: Figures of each workload, where a job has several.
    figures: dict[str, Any] = field(default_factory=dict)
    #: What hosts sent each other in each timed run, where there are several.
    moved_bytes: list[int] = field(default_factory=list)
    #: Of the whole process tree, or of the host that takes most, in a run of its own; None where that run did not
    #: take place.
    peak_memory_bytes: int | None = None
    #: What the scheduler wrote to disk in that run; None where it does not say.
    spilled_bytes: int | None = None
    #: Workers that were ended and replaced on the way.
    lost_workers: int = 0
    #: Processes that outlived the child and had to be killed.
    stray_processes: int = 0
    #: Files with something in them that it left where it could spill.
    stray_files: int = 0

    @property
    def trouble(self) -> str:
        """How the job failed, empty if it did not."""
        return "" if self.status == "ok" else f"{self.status}: {self.detail}"
