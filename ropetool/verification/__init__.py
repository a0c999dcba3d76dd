"""Verification: what a longer context does to a checkpoint, measured and judged."""
