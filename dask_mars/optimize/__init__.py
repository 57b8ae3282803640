"""From Dask's graphs to chunk graphs."""
