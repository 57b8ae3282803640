"""Reports: a page about recorded computations. Begin with `report`."""
