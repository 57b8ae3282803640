"""The client: from a call of Dask's in the user's process to its result.

It prepares graphs with `optimize`, submits them to an engine, runs tasks that only the user's process can run,
feeds Dask's callbacks and assembles results. It does not know clusters. Begin with `computation`.
"""
