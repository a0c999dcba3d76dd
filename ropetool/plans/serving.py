"""The command lines that serve an output as it is: its files state everything, so that they need the context alone.

Each program's reading is decoded; releases that would compute something else get the reason instead of a line.
"""

from __future__ import annotations

import re
from pathlib import Path

from ropetool import runtimes
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.escaping import word
from ropetool.rope.tables import in_words
from ropetool.runtimes.decoded import Decoded
from ropetool.runtimes.inspection import Inspection

# A server takes the context of the file at most: llama-server caps -c at it (tools/server/server-context.cpp of the
# llama.cpp within llama-cpp-python 0.3.36), vLLM and SGLang refuse more.
COMMANDS = {
    "vllm": "vllm serve {} --max-model-len {}",
    "sglang": "python -m sglang.launch_server --model-path {} --context-length {}",
    GgufCheckpoint.runtime: "llama-server -m {} -c {}",
}
# They hold llama.cpp and read the file's keys with it, but take a context of their own unless they are told. KoboldCpp leaves
# the keys in force up to the file's context; beyond it, it changes the base (CalcGradientAIRopeFreqBase of its
# gpttype_adapter.cpp). LM Studio's CLI asks for the model where none is named (lmstudio.ai/docs/cli/load).
EMBEDDED = {
    "KoboldCpp": "koboldcpp --model {} --contextsize {}  # Context Size in its window, without custom RoPE",
    "LM Studio": "lms load --context-length {1}  # Context Length in its window, RoPE frequency base and scale left alone",
}
# The same by two numbers, where these say all: what KoboldCpp and LM Studio hand to llama.cpp's rope_freq_base and
# rope_freq_scale (gpttype_adapter.cpp; lmstudio.ai/docs/typescript/api-reference/llm-load-model-config).
BY_TWO_NUMBERS = {
    "KoboldCpp": "koboldcpp --model {} --contextsize {} --ropeconfig {} {}",
    "LM Studio": "Context Length {1}, RoPE Frequency Scale {2}, RoPE Frequency Base {3} in its window",
}
NO_FLAG = "not possible with flags"
OLLAMA = "ollama create {} -f {}  # Ollama 0.30 and later, which run llama.cpp"


def serving_lines(found: Inspection, shown: str) -> list[str]:
    """Return a line for each server, or stretch of its releases, that reads the format; none for an unknown family.

    shown: the output's name in the lines.
    """
    wanted = (GgufCheckpoint.runtime,) if found.format == "gguf" else ("vllm", "sglang")
    alike: dict[str, list[str]] = {}
    for reading in found.readings:
        program = reading.name.partition("@")[0]
        if program in wanted:
            alike.setdefault(_line(program, reading, found, shown), []).append(reading.name)
    lines = [f"{', '.join(runtimes.display_ranges(names))}: {line}" for line, names in alike.items()]
    as_meant = (
        found.rope is not None
        and f"{GgufCheckpoint.runtime}: {COMMANDS[GgufCheckpoint.runtime].partition(' ')[0]}" in "".join(lines)
    )
    return [*lines, *_embedded_lines(shown, found.rope.max_position_embeddings)] if found.rope and as_meant else lines


def gguf_lines(shown: str, context: int, modelfile: Path | None = None) -> list[str]:
    """Return a line for llama.cpp and each program that holds it, for a file that it is known to read as meant.

    modelfile: where one for Ollama stands.
    """
    lines = [serving_line(GgufCheckpoint.runtime, shown, context), *_embedded_lines(shown, context)]
    if modelfile is not None:
        lines.append(f"Ollama: {OLLAMA.format(_ollama_name(shown), word(modelfile))}")
    return lines


def _embedded_lines(shown: str, context: int) -> list[str]:
    return [f"{program}: {line.format(word(Path(shown)), context)}" for program, line in EMBEDDED.items()]


def embedded_flags(path: Path, context: str, numbers: tuple[str, str] | None) -> list[str]:
    """Return how the programs that hold llama.cpp serve a file otherwise than it says, by these numbers: base and scale."""
    if numbers is None:
        return [f"{', '.join(BY_TWO_NUMBERS)}: {NO_FLAG}: they accept only a base and a scale"]
    base, scale = numbers
    return [f"{program}: {line.format(word(path), context, scale, base)}" for program, line in BY_TWO_NUMBERS.items()]


def _ollama_name(shown: str) -> str:
    """Return a name that Ollama takes: letters, digits and some signs, 80 of them at most."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(shown).stem)[:80].strip("-._") or "model"


def commands(lines: list[str]) -> list[str]:
    """Return the command lines alone, without the programs' names and without reasons."""
    every = [*COMMANDS.values(), *EMBEDDED.values(), OLLAMA]
    starts = tuple(command.partition(" {")[0] for command in every)
    bare = [line.partition(": ")[2] for line in lines]
    return list(dict.fromkeys(line for line in bare if line.startswith(starts)))


def _line(program: str, reading: Decoded, found: Inspection, shown: str) -> str:
    if reading.rope is None or found.rope is None:
        return f"not known: {reading.refuses}" if not reading.known else f"does not load it: {reading.refuses}"
    reason = in_words(found.rope.differences(reading.rope))
    if reason:
        return f"would compute something else: {reason}"
    return serving_line(program, shown, found.rope.max_position_embeddings).partition(": ")[2]


def serving_line(program: str, shown: str, context: int) -> str:
    """Return the line of a program, with its name, for an output that it is known to read as meant."""
    return f"{program}: {COMMANDS[program].format(word(Path(shown)), context)}"
