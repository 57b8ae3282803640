"""The client: from a call of Dask's in the user's process to its result.

It prepares graphs with `optimize`, gives them to an engine, runs what only the user's process can, feeds Dask's
callbacks and puts results together. It knows nothing of clusters. Begin with `computation`.
"""
