"""The client: from a call of Dask's in the user's process to its result.

It prepares graphs with `optimize`, submits them to an engine, runs tasks that only the user's process can run,
feeds Dask's callbacks and assembles results. It does not know clusters. Begin with `computation`.

``DASK_DISTRIBUTED__CLIENT__PRELOAD=dask_mars.client`` lets the methods of each of Dask's clients go our way while
its cluster has agents.
"""

from __future__ import annotations

import pkgutil
from typing import Any


def dask_setup(client: Any) -> None:
    """Switch the methods of one of Dask's clients. Dask calls this."""
    # Users write this package's name, but its code must not import clusters.
    pkgutil.resolve_name("dask_mars.cluster.client_methods:switch")(client)
