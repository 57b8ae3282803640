"""Turns Dask's graphs into chunk graphs; the only package that reads Dask's graphs.

It compiles layers to programs without Dask's task objects, composes chains, folds small steps into their
consumers, and lets readers recompute chunks where that is faster than keeping them. It knows nothing of the
execution of a chunk graph. Begin with `prepare`.
"""
