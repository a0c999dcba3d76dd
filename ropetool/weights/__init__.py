"""Baking: factors that a runtime ignores as tensor edits, and the writer of these edits."""
