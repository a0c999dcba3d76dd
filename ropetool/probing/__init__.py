"""Probing: the rotary facts of a model_type, read from its classes in transformers and proven on a tiny random model.

The result is plain data: facts of transformers alone, under the names that families have them, and a reason where there
are none. Nothing here knows files, families or other runtimes.
"""
