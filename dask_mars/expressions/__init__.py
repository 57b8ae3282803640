"""Elementwise chains and the reductions at their ends, evaluated a block at a time, without temporaries.

The package finds regions in an operand's program and makes one step of each, with NumPy's values bit for bit. It
knows NumPy's functions, its random numbers, and numexpr, and nothing of graphs, workers or the locations of
arrays. Begin with `rewrite`, which a worker calls; `regions` is the pure part, `native` passes chains to C.
"""
