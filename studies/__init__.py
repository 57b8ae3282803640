"""Simulations and measurements that decisions were made by; the published figures come from `benchmarks`."""
