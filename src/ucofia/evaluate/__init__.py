"""Numbers about rankings: any system's matrices, our own benchmarks, the paper's tables."""
