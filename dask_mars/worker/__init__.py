"""What one host does: shared memory, worker processes, and the running of operands in them."""
