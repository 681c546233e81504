"""How sure a hit is: confidence of one text, and of several together; pure functions."""
