"""The tables that llama-server computes from a GGUF file if a command line option overrides a key of the file.

Source: common/arg.cpp and src/llama-context.cpp of llama-cpp-python 0.3.36. Each option replaces a key, so the decoder
gets a file with that key. llama.cpp does not read `--yarn-attn-factor` if the file has a ramp. Most files have no key
for `--yarn-beta-fast`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import InvalidRope
from ropetool.files.gguf import Patch, Value, ValueType
from ropetool.identify.hypotheses import Hypothesis
from ropetool.runtimes.base import Refuses
from ropetool.runtimes.llama_cpp import architectures as keys
from ropetool.runtimes.llama_cpp import decoding
from ropetool.runtimes.llama_cpp.layers import value_of

TYPES = ("none", "linear", "yarn")  # all values that --rope-scaling accepts
SHARES = (0.5, 2.0)  # multiples of the number in the file


def of_file(file: GgufCheckpoint) -> tuple[Hypothesis, ...]:
    """Return a hypothesis for each option with a wrong value, if llama.cpp computes a table with it."""
    arch = str(value_of(file, keys.ARCHITECTURE, ValueType.STR))
    hypotheses = []
    for option, key, value in _options(file, arch):
        try:
            rope = decoding.decode(file.after(Patch(set={f"{arch}.{key}": value})))
        except (Refuses, InvalidRope):
            continue
        name = f"{option} {value.decode():g}" if value.type is ValueType.F32 else f"{option} {value.decode()}"
        hypotheses.append(Hypothesis(name, "llama-server was started with this option", rope))
    return tuple(hypotheses)


def _options(file: GgufCheckpoint, arch: str) -> Iterator[tuple[str, str, Value]]:
    for scaling_type in TYPES:
        yield "--rope-scaling", keys.SCALING_TYPE, Value.of(ValueType.STR, scaling_type)
    factor = value_of(file, f"{arch}.{keys.FACTOR}", ValueType.F32)
    length = value_of(file, f"{arch}.{keys.ORIGINAL_CONTEXT_LENGTH}", ValueType.U32)
    for share in SHARES:
        if factor:
            yield "--rope-scale", keys.FACTOR, Value.of(ValueType.F32, max(1.0, float(factor) * share))
        if length:
            yield "--yarn-orig-ctx", keys.ORIGINAL_CONTEXT_LENGTH, Value.of(ValueType.U32, int(length * share))
