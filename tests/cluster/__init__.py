"""Tests of clusters. A package, so that they share one cluster while they last."""
