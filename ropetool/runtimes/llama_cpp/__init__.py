"""llama.cpp: how it reads a GGUF file, how a table is written for it, and the rotary keys of ropetool's export."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ropetool.checkpoint.opening import Checkpoint
from ropetool.escaping import word
from ropetool.rope.tables import RopeSet
from ropetool.runtimes.base import Decode, PlannedChange, Refuses, Serving

__all__ = ["FORMATS", "NAME", "RUN_BY", "SERVING", "SUMMARY", "VERSIONS", "decode"]

NAME = "llama.cpp"
FORMATS = ("gguf",)  # it also reads a directory through ropetool's export, but only if the user requests it
VERSIONS = "llama-cpp-python 0.3.36"
SUMMARY = "llama.cpp: reads a fixed list of keys for each architecture and silently ignores the rest"
# Older releases of Ollama run another engine.
RUN_BY = {
    "ollama": "0.30", "koboldcpp": "", "lm-studio": "", "lmstudio": "", "llama-server": "", "llama-cpp-python": "",
}  # fmt: skip
# llama-server caps -c at the context of the file: tools/server/server-context.cpp of the llama.cpp within
# llama-cpp-python 0.3.36.
COMMAND = "llama-server -m {} -c {}"
# These programs read the file's keys with llama.cpp, but need the context as an option. KoboldCpp uses the keys up to
# the file's context; beyond it, it changes the base (CalcGradientAIRopeFreqBase of its gpttype_adapter.cpp). LM
# Studio's CLI asks for the model if none is named (lmstudio.ai/docs/cli/load).
EMBEDDED = {
    "KoboldCpp": "koboldcpp --model {} --contextsize {}  # Context Size in its window, without custom RoPE",
    "LM Studio": "lms load --context-length {1}  # Context Length in its window, RoPE frequency base and scale left alone",
}
OLLAMA = "ollama create {} -f {}  # Ollama 0.30 and later, which run llama.cpp"


def decode(checkpoint: Checkpoint) -> RopeSet:
    """Return the rotation that llama.cpp computes from a GGUF model, or from ropetool's export of a checkpoint.

    Raises: Refuses, also if llama.cpp does not load the model for a reason outside its rotation.
    """
    # Other runtimes are read without llama.cpp's rules, and a file without the export's.
    if checkpoint.format == "hf":
        from ropetool.runtimes.llama_cpp.exported import read_exported

        return read_exported(checkpoint)
    from ropetool.runtimes.llama_cpp import decoding, key_rules

    rope = decoding.decode(checkpoint)
    refusals = list(key_rules.of_keys(checkpoint, ()).values())
    if refusals:
        raise Refuses(
            refusals[0] + (f" ({len(refusals) - 1} more: ropetool doctor shows them)" if refusals[1:] else "")
        )
    return rope


def embedded_lines(shown: str, context: int, modelfile: Path | None) -> Sequence[str]:
    """Return a line for each program that runs llama.cpp, for a file that is served unchanged.

    context: in tokens.
    modelfile: the place of the Modelfile for Ollama; without one there is no line for Ollama.
    """
    lines = [f"{program}: {line.format(word(Path(shown)), context)}" for program, line in EMBEDDED.items()]
    if modelfile is not None:
        lines.append(f"Ollama: {OLLAMA.format(_ollama_name(shown), word(modelfile))}")
    return lines


def _ollama_name(shown: str) -> str:
    """Return a name that Ollama takes: letters, digits and some signs, 80 of them at most."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(shown).stem)[:80].strip("-._") or "model"


def flags(change: PlannedChange, _: Decode) -> Sequence[str]:
    """Return the lines of llama-server and the programs that run llama.cpp, for the source of a change as its target.

    There are no lines if ropetool does not know the export of a directory. Raises: NoFlags if no options reach the
    target.
    """
    from ropetool.runtimes.llama_cpp import server_options  # only a dry run needs it

    return server_options.lines(change)


SERVING = Serving(COMMAND, flags, embedded_lines, takes_exports=True, listening="--port {} --alias {}")
