"""A checkpoint as a GGUF file, without the file: which tensors and which keys an export writes, and of what numbers.

Imports, comparisons, costs and verification ask it too. Writing the file is for gguf_export.
"""
