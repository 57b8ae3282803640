"""Plans: costs of collections, estimated before a computation. Begin with `plan`."""
