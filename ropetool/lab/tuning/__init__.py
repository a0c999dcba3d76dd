"""Tuning: search a table and gains for a model, and evaluate the winner once on text that the search did not use."""
