"""Several machines: dask_mars on the engine of `dask.distributed`. No other package of ours imports that."""

from __future__ import annotations

try:
    import distributed  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "distributed":
        raise
    raise ModuleNotFoundError(
        "dask_mars needs dask.distributed to compute on several machines; "
        "'pip install dask-mars[distributed]' installs it",
        name="distributed",
    ) from None
