"""The numbers that shape the state machine's decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dask_mars.scheduler.assigner import Traversal


@dataclass(frozen=True, slots=True)
class Parameters:
    """The policy, and the numbers that shape the machine's decisions."""

    #: Order of chunks and choice of workers: a name in `policies.POLICIES`.
    policy: str = "mars"
    #: Search order for dividing initial chunks among workers, if the policy does that.
    assignment: Traversal = "breadth-first"
    num_workers: int = 1
    resources: Mapping[str, float] = field(default_factory=dict)
    #: Seconds of estimated work that a worker's queue may hold. Small enough that queueing delays nothing, large
    #: enough that a message carries many small operands.
    window_s: float = 0.02
    batch_limit: int = 2000
    #: Silence after which a worker gets no new work and, if another is idle, its queue is recalled (exponential
    #: back-off).
    silence_s: float = 0.02
    #: Number of worker deaths at one chunk before the chunk is FATAL; see `allowed_losses`.
    allowed_worker_losses: int = 3
    #: Delay before the first retry, doubled for each further one up to the limit.
    retry_delay_s: float = 0.1
    retry_delay_limit_s: float = 10.0
    #: Seconds without writes after a disk has failed.
    disk_delay_s: float = 5.0
    #: None disables accounting.
    store_limit: int | None = None
    #: Bytes that the store may hold if nothing else helps.
    memory_limit: int = 0
    #: Bytes that a result may take, None if that is at least the memory limit.
    result_limit: int | None = None
    #: Growth of a worker's memory that needs no grant and is counted nowhere else; None without quotas.
    quota_slack_bytes: int | None = None
    #: Maximum number of chunks without room that one search passes, and of dispatches in a row that pass any.
    look_ahead: int = 8
    pass_limit: int = 100

    def allowed_losses(self, crashed: bool) -> int:
        """Return how often a worker may die on the same chunk: once if its code crashes."""
        return min(self.allowed_worker_losses, 1) if crashed else self.allowed_worker_losses
