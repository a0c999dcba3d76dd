"""Readback: whether a checkpoint is what its plan says, in its tables, its tensors and its other files."""
