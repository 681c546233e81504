"""A model as other libraries want it: each is optional, and one file knows it."""
