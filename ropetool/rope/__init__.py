"""Rotary positions as numbers: tables, their comparison, formulas and methods, without access to files."""
