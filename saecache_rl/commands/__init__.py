"""What the commands are made of: options, the command line, runs, workers, and the parts of a comparison."""
