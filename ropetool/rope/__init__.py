"""Rotary positions as numbers: tables and what is done with them, the one comparison, formulas, methods. Knows no file."""
