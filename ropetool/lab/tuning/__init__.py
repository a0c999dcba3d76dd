"""Tuning: a search for the table and the gains of one model, and one judgement of what it found on text that it never saw."""
