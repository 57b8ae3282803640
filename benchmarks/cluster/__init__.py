"""Clusters of several hosts: dask_mars's agents beside the workers of `dask.distributed`."""
