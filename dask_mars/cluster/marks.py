"""Names and times that clients, agents and the scheduler's plugins share."""

from __future__ import annotations

#: Key by which workers identify themselves as agents, and name of our task annotation.
MARK = "dask-mars"
#: Key of an agent's unique id; another agent may reuse its address.
IDENTITY = "dask-mars-id"
#: Key of how long an agent waits for a lost scheduler, in seconds; 0 if it does not.
RECONNECTS = "dask-mars-reconnects"
#: Default wait for a lost scheduler, in seconds.
RECONNECT_S = 600.0
#: The scheduler's reason for subtasks that were cancelled on its page.
CANCELLED_ON_PAGE = "cancelled on dask_mars's page"
#: Longest time for a leaving host to hand its results to others, in seconds.
LEAVE_S = 30.0
#: Name of the plugins by which stock workers become agents; and of the one by which they get agents beside them.
TAKE_OVER = "dask-mars-take-over"
ATTACH = "dask-mars-attach"
