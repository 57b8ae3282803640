"""What is computed: chunk graphs, their operands' programs, functions by number, ids.

It is plain data, and all that the scheduler and the workers know of a computation. It knows nothing of Dask, of
arrays, of processes or of how a graph is run. Begin with `chunks`.
"""
