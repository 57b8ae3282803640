"""Pictures of chunk graphs."""
