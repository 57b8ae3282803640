"""Several machines: dask_mars on the engine of `dask.distributed`. No other package of ours imports that."""
