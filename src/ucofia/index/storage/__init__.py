"""What an index is on disk: Lance tables, their schema, the writer's lock, mapped vectors."""
