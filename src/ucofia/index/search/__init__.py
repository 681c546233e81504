"""From a query to ranked segments: bounds, pruning, exact scores, top-k."""
