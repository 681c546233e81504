"""The same verbs on many machines: Ray runs them, Lance keeps what they make."""
