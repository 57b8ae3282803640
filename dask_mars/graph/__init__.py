"""Chunk graphs, the programs of their operands, function ids and subtask ids.

Plain data, and all that the scheduler and the workers know of a computation. The package knows nothing of Dask,
arrays, processes or the execution of graphs. Begin with `chunks`.
"""
