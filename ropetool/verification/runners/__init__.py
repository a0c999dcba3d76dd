"""What computes with a model: torch for checkpoints of transformers, llama.cpp for GGUF files."""
