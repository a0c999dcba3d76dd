"""What llama-server makes of a GGUF file when it is started with options that go before the file's keys.

Source: common/arg.cpp and src/llama-context.cpp of llama-cpp-python 0.3.36; each option says what a key says, and is decoded
as that key. `--yarn-attn-factor` is not read beside a ramp, and no key of most files holds `--yarn-beta-fast`.
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

TYPES = ("none", "linear", "yarn")  # --rope-scaling takes no other
SHARES = (0.5, 2.0)  # of the file's own number


def of_file(file: GgufCheckpoint) -> tuple[Hypothesis, ...]:
    """Return what llama.cpp computes from the file with an option of the wrong value, where it computes anything."""
    arch = str(value_of(file, keys.ARCHITECTURE, ValueType.STR))
    found = []
    for option, key, value in _options(file, arch):
        try:
            rope = decoding.decode(file.after(Patch(set={f"{arch}.{key}": value})))
        except (Refuses, InvalidRope):
            continue
        name = f"{option} {value.decode():g}" if value.type is ValueType.F32 else f"{option} {value.decode()}"
        found.append(Hypothesis(name, "llama-server was started with this option", rope))
    return tuple(found)


def _options(file: GgufCheckpoint, arch: str) -> Iterator[tuple[str, str, Value]]:
    for kind in TYPES:
        yield "--rope-scaling", keys.SCALING_TYPE, Value.of(ValueType.STR, kind)
    factor = value_of(file, f"{arch}.{keys.FACTOR}", ValueType.F32)
    length = value_of(file, f"{arch}.{keys.ORIGINAL_CONTEXT_LENGTH}", ValueType.U32)
    for share in SHARES:
        if factor:
            yield "--rope-scale", keys.FACTOR, Value.of(ValueType.F32, max(1.0, float(factor) * share))
        if length:
            yield "--yarn-orig-ctx", keys.ORIGINAL_CONTEXT_LENGTH, Value.of(ValueType.U32, int(length * share))
