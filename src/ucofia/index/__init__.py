"""Search over a person's own videos: files in, rows on disk, ranked hits with evidence out."""
