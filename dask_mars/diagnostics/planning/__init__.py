"""Plans: what computing collections takes, told before anything runs. Begin with `plan`."""
