"""Readback: compare the tables, the tensors and the other files of a checkpoint with its plan."""
