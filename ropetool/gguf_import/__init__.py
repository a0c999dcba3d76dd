"""Import of GGUF files: a Hugging Face checkpoint that computes what llama.cpp does with the file."""
