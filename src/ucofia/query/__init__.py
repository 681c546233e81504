"""The text of a query: parsing, its kind and prompt, its words, hints about it."""
