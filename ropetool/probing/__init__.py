"""Probing: the rotary facts of a model_type, read from its classes in transformers and proven on a tiny random model.

The result is plain data with the field names of a family, or a reason why there are no facts.
"""
