"""Cuts a chunk graph into subtasks, and assigns each to a host.

It is pure, as `scheduler` is. It knows hosts as ids with slots and bytes, and nothing of Dask's workers. Begin
with `subtasks`.
"""
