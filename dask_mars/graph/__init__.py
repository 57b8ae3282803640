"""Chunk graphs, the programs of their operands, function ids and subtask ids.

It is plain data, and all that the scheduler and the workers know of a computation. It knows nothing of Dask, of
arrays, of processes or of how a graph is run. Begin with `chunks`.
"""
