"""A checkpoint on disk, of either format: what it states, its tensors, its record, its identity, and edits of it."""
