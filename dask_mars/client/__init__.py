"""What runs in the user's process: a computation from Dask's call to its result.

It prepares graphs with `optimize`, gives them to an engine, runs what only the user's process can, feeds Dask's
callbacks and puts results together. It knows nothing of clusters. Begin with `computation`.
"""
