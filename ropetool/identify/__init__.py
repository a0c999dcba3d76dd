"""Find the RoPE table of a server: compare its answers with the same model under each candidate table."""
