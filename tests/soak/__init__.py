"""Random work under random troubles."""
