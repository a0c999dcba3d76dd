"""Baking: factors that a runtime ignores as tensor edits, and the writer of these edits.

Knows where a family's queries and keys are made; not how a plan is chosen or shown.
"""
