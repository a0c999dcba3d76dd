"""Clients for servers of language models: the served model, its limits, and log probabilities of tokens."""
