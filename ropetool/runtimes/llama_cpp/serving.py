"""The command lines of llama-server, and of the programs that run llama.cpp: KoboldCpp, LM Studio and Ollama."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.gguf_edits import patch_of
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.escaping import command, word
from ropetool.files.gguf import Patch
from ropetool.rope.tables import RopeSet
from ropetool.runtimes.base import NO_FLAG, Decode, NoFlags, NotKnown, PlannedChange, Refuses, Serving
from ropetool.runtimes.llama_cpp import decoding
from ropetool.runtimes.llama_cpp.exported import exported

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
# The same with two numbers, if these set everything: what KoboldCpp and LM Studio pass to llama.cpp's rope_freq_base
# and rope_freq_scale (gpttype_adapter.cpp; lmstudio.ai/docs/typescript/api-reference/llm-load-model-config).
BY_TWO_NUMBERS = {
    "KoboldCpp": "koboldcpp --model {} --contextsize {} --ropeconfig {} {}",
    "LM Studio": "Context Length {1}, RoPE Frequency Scale {2}, RoPE Frequency Base {3} in its window",
}
OLLAMA = "ollama create {} -f {}  # Ollama 0.30 and later, which run llama.cpp"
EXPORTED = Path("EXPORTED.gguf")


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

    A directory is served by its export, which contains the source unchanged. There are no lines if ropetool does not
    know the export. Raises: NoFlags if no options reach the target.
    """
    if isinstance(change.source, HfCheckpoint):
        return _exported_lines(change.source, change)
    source, patch = change.source, patch_of(change.edits)
    return _lines(source, patch, decoding.decode(source.after(patch)), change, source.path)


def _exported_lines(source: HfCheckpoint, change: PlannedChange) -> Sequence[str]:
    assert isinstance(change.output, HfCheckpoint)
    try:
        _, before = exported(source)
        _, after = exported(change.output)
    except NotKnown:
        return []
    except Refuses as refusal:
        raise NoFlags(str(refusal)) from None
    changed = {key: value for key, value in after.values.items() if before.values.get(key) != value}
    # A vector that the file has stays in force, and llama.cpp requires it: it would have to become ones.
    vectors = {name: np.ones(info.shape[0], np.float32) for name, info in before.tensors.items()}
    vectors |= {name: after.vector(name) for name in after.tensors}
    same = {name for name in vectors if name in before.tensors and np.array_equal(vectors[name], before.vector(name))}
    vectors = {name: vector for name, vector in vectors.items() if name not in same}
    patch = Patch(changed, frozenset(before.values.keys() - after.values.keys()), vectors)
    return _lines(before, patch, decoding.decode(after), change, EXPORTED)


def _lines(view: GgufCheckpoint, patch: Patch, target: RopeSet, change: PlannedChange, path: Path) -> Sequence[str]:
    """Return the lines for a file at a path as if a patch had made it compute the target."""
    from ropetool.runtimes.llama_cpp import server_options  # only a dry run needs it

    options = server_options.options_of(view, patch, target, change)
    own = command("llama-server", "-m", path, *options)
    return [own, *_by_two_numbers(path, options[1], server_options.base_and_scale(view, options))]


def _by_two_numbers(path: Path, context: str, numbers: tuple[str, str] | None) -> Sequence[str]:
    """Return how the programs that run llama.cpp serve a file with a new base and scale of positions.

    numbers: base and scale; None if these two do not set everything.
    """
    if numbers is None:
        return [f"{', '.join(BY_TWO_NUMBERS)}: {NO_FLAG}: they accept only a base and a scale"]
    base, scale = numbers
    return [f"{program}: {line.format(word(path), context, scale, base)}" for program, line in BY_TWO_NUMBERS.items()]


SERVING = Serving(COMMAND, flags, embedded_lines, takes_exports=True)
