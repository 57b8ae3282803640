"""Which host computes what: a chunk graph cut into subtasks, and each given to a host.

It is pure, as `scheduler` is. It knows hosts as numbers with slots and bytes, and nothing of Dask's workers. Begin
with `subtasks`.
"""
