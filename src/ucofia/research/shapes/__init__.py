"""A synthetic data set, made from a seed, on which the paper's claims can be tried in minutes."""
