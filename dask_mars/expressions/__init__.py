"""Elementwise chains and the reductions at their ends, evaluated a tile at a time, without temporaries."""
