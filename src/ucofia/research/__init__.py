"""What only researchers need: ablations, the shapes data set, the paper's tables and figures."""
