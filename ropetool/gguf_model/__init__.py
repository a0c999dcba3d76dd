"""The contents of a checkpoint's GGUF file, unwritten: the keys and tensors of an export, and the numbers in them.

Export, import, comparison, costs and verification use it. gguf_export writes the file.
"""
