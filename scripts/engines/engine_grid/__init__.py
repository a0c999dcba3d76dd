"""Whole models in real engines, held against transformers with the table that our decoder says the engine computes."""
