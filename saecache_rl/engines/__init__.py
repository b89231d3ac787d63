"""What drives a cache: the simulator, and the measures that judge it."""
