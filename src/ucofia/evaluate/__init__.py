"""Numbers about rankings: any system's matrices, retrieval on a data set, the paper's tables."""
