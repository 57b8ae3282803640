"""From what Dask hands a scheduler to chunk graphs: all that reads Dask's graphs.

Layers are compiled to programs without Dask's task objects, chains are composed, small steps are folded into what
needs them, and chunks that are made again faster than kept are made by what reads them. It knows nothing of how or
where a chunk graph is run. Begin with `prepare`.
"""
