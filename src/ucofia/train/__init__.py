"""Training: loss, optimiser, one step over many processes, one loop that can be resumed."""
