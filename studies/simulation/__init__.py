"""Clusters that do not exist, and what policies of placement would make of them."""
