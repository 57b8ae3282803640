"""Marks and times on which clients, agents and the plugins of Dask's scheduler agree."""

from __future__ import annotations

#: How workers say that they are agents, and annotations that a task is ours.
MARK = "dask-mars"
#: How agents say which one they are: at the same address there may be another one later.
IDENTITY = "dask-mars-id"
#: What the scheduler says of subtasks that somebody has cancelled on its page.
CANCELLED_ON_PAGE = "cancelled on dask_mars's page"
#: How long a host that is to leave may take to hand its results to others.
LEAVE_S = 30.0

__all__ = ["CANCELLED_ON_PAGE", "IDENTITY", "LEAVE_S", "MARK"]
