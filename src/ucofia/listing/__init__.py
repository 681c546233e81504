"""Lists as people read them: one hit per content, matches first, videos and segments by id."""
