"""A checkpoint on disk, of either format: its settings, tensors, record, identity and edits."""
