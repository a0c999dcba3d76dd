"""The cost of a checkpoint at a length, with the arithmetic: bytes of weights and cache, FLOPs, tokens of `verify`."""
