"""Random Dask programs, each computed by Dask's synchronous scheduler and by dask_mars, and compared."""
