"""What a checkpoint costs at a length, by arithmetic that is shown: bytes of weights and cache, FLOPs, tokens of `verify`."""
