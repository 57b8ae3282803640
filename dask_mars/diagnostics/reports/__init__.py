"""Reports: what was computed while somebody listened, on one page. Begin with `report`."""
