"""Names of Dask's bags; import it only after `dask.bag`."""

from __future__ import annotations

from dask_mars.dask_api import optional

# The steps of a shuffle through files, which our store replaces.
barrier = optional("dask.bag.chunk", "barrier")
collect, groupby, partition, partition_all = optional(
    "dask.bag.core", "collect", "groupby", "partition", "partition_all"
)
