"""Several machines: dask_mars through `dask.distributed`. No other package imports `distributed`.

A client cuts a chunk graph into subtasks (`partition`), Dask's scheduler runs them as tasks, and on each host an
agent, one of Dask's workers, computes them on an engine. Begin with `submission` for the client's side and
`agent` for a host's.
"""

from __future__ import annotations

try:
    import distributed  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "distributed":
        raise
    raise ModuleNotFoundError(
        "dask_mars needs dask.distributed to compute on several machines; "
        "pip install 'dask-mars[distributed]' installs it",
        name="distributed",
    ) from None
