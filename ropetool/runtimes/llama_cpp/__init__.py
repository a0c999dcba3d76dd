"""llama.cpp: what it computes from a GGUF file, how a table is written for it, and what our export of a checkpoint states."""

from ropetool.runtimes.llama_cpp.decoding import FORMATS, NAME, SUMMARY, VERSIONS, decode

__all__ = ["FORMATS", "NAME", "SUMMARY", "VERSIONS", "decode"]
