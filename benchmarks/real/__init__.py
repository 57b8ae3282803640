"""What people compute by Xarray, flox, zarr, netCDF and dask-image, each after a public source, and scaled down.

The sources' data lie in the cloud and have terabytes. Here data of the same form are made, and what is computed of
them is written anew. Open `fields` first.
"""

from __future__ import annotations

from benchmarks.real.fields import FIELD_WORKLOADS
from benchmarks.real.images import IMAGE_WORKLOADS

REAL_WORKLOADS = (*FIELD_WORKLOADS, *IMAGE_WORKLOADS)

__all__ = ["REAL_WORKLOADS"]
