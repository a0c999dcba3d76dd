"""Baking: what a runtime cannot be told, put into the weights as tensor edits, and the writer that carries them out.

Knows where a family's queries and keys are made; not how a plan is chosen or shown.
"""
