"""llama.cpp: how it reads a GGUF file, how a table is written for it, and the rotary keys of ropetool's export."""

from __future__ import annotations

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint
from ropetool.rope.tables import RopeSet
from ropetool.runtimes.base import Refuses
from ropetool.runtimes.llama_cpp import decoding, key_rules
from ropetool.runtimes.llama_cpp.exported import read_exported
from ropetool.runtimes.llama_cpp.serving import SERVING

__all__ = ["FORMATS", "NAME", "RUN_BY", "SERVING", "SUMMARY", "VERSIONS", "decode"]

NAME = "llama.cpp"
FORMATS = ("gguf",)  # it also reads a directory through ropetool's export, but only if the user requests it
VERSIONS = "llama-cpp-python 0.3.36"
SUMMARY = "llama.cpp: reads a fixed list of keys for each architecture and silently ignores the rest"
# Older releases of Ollama run another engine.
RUN_BY = {
    "ollama": "0.30", "koboldcpp": "", "lm-studio": "", "lmstudio": "", "llama-server": "", "llama-cpp-python": "",
}  # fmt: skip


def decode(checkpoint: Checkpoint) -> RopeSet:
    """Return the rotation that llama.cpp computes from a GGUF model, or from ropetool's export of a checkpoint.

    Raises: Refuses, also if llama.cpp does not load the model for a reason outside its rotation.
    """
    if isinstance(checkpoint, HfCheckpoint):
        return read_exported(checkpoint)
    rope = decoding.decode(checkpoint)
    refusals = list(key_rules.of_keys(checkpoint, ()).values())
    if refusals:
        raise Refuses(
            refusals[0] + (f" ({len(refusals) - 1} more: ropetool doctor shows them)" if refusals[1:] else "")
        )
    return rope
