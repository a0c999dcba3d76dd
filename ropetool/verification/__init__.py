"""Verification: the effect of a longer context on a checkpoint, measured and judged."""
