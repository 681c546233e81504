"""From features to scores: pure functions with required masks."""
