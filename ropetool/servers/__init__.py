"""Servers of language models, asked over HTTP: what they serve, how far, and how likely they find the next token."""
