"""The RoPE table of a server: its answers compared with the same model under every candidate table."""
