"""All names of distributed outside its top level, with the consequence of their removal in a release."""

from __future__ import annotations

from typing import Any

import distributed

from dask_mars.dask_api import optional
from dask_mars.errors import UnknownDask

try:
    from distributed._signals import wait_for_signals
    from distributed.client import ClosedClientError, FutureCancelledError, FuturesCancelledError
    from distributed.comm import CommClosedError, connect, get_address_host, get_address_host_port
    from distributed.core import Status, coerce_to_address
    from distributed.preloading import validate_preload_argv
    from distributed.protocol.serialize import Serialized, serialize
    from distributed.utils import sync
    from distributed.worker import thread_state
    from distributed.worker_state_machine import GatherDepSuccessEvent
except ImportError as _error:
    raise UnknownDask(distributed.__version__, str(_error)) from None

# Classes for comparison: barriers of Dask's own shuffles stay Dask tasks.
P2PBarrierTask, ShuffleId, barrier_key = optional(
    "distributed.shuffle._core", "P2PBarrierTask", "ShuffleId", "barrier_key"
)


def most_workers(cluster: Any) -> float:
    """Return how many workers an adaptive cluster may have; 0 for others, and if Dask hides it."""
    adaptive = getattr(cluster, "_adaptive", None)
    # None after its end.
    return float(getattr(adaptive, "maximum", 0)) if getattr(adaptive, "periodic_callback", None) else 0.0


def requested_workers(cluster: Any) -> int:
    """Return how many workers the user has asked a cluster for; 0 for clusters that do not say."""
    return len(getattr(cluster, "plan", ()))
