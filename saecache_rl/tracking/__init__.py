"""Where a run's figures go: local files, Weights & Biases, the terminal, plots."""
