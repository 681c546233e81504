"""What scores mean: the bank, its Sinkhorn biases, and calibrated confidence."""
