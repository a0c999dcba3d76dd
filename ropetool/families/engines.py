"""How each inference engine treats a family, as far as that is a fact about the family.

A family without an engine's part is one whose treatment there is not known. What the engines compute stands in
runtimes/, with the releases that it was read in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Vllm:
    """vLLM. on_transformers: the release from which on transformers' own model code runs, empty for none.

    formula: the model file's own reading of the rope keys, a program in runtimes/vllm.py. wider_window: the release from
    which on sliding layers see one token more than the config says, empty for none. made_half: its rotary modules are made
    for half layout and turned interleaved afterwards, which those of longrope do not heed.
    """

    on_transformers: str = ""
    formula: Literal["", "deepseek", "gpt_oss"] = ""
    wider_window: str = ""
    made_half: bool = False


@dataclass(frozen=True)
class Sglang:
    """SGLang. on_transformers: transformers' own model code runs, for want of a model file.

    formula: as for vLLM. scaling: whether the model file hands more than the base over. whole_base: it hands it over
    as an integer. window: whether its sliding layers slide. base: what it takes whatever the config says, where it looks
    for rope_theta in a place that transformers 5 no longer fills.
    """

    on_transformers: bool = False
    formula: Literal["", "deepseek"] = ""
    scaling: bool = True
    whole_base: bool = False
    window: bool = False
    base: float | None = None


@dataclass(frozen=True)
class MlxLm:
    """mlx-lm. base: where the config has none. needs: the keys without which the file does not load.

    scaling: whether rope_scaling counts. window: whether its sliding layers slide. mla: it is the table of decoupled
    keys. formula: the model file's own reading of the rope keys, a program in runtimes/mlx_lm.py.
    """

    base: float = 10000.0
    needs: tuple[str, ...] = ()
    scaling: bool = True
    window: bool = False
    mla: bool = False
    formula: Literal["", "phi3", "deepseek_v2", "gemma3", "qwen3"] = ""


@dataclass(frozen=True)
class Exllamav3:
    """exllamav3. layout: which channels it pairs, whatever the config says. window: whether its sliding layers slide;
    gemma2's do not, for it looks for their window under another name.

    base: where the config has none. local_base: that of sliding layers, whatever the config says; None: that of the
    others. refused: why it does not load.
    """

    layout: Literal["half", "interleaved"] = "half"
    window: bool = False
    base: float = 10000.0
    local_base: float | None = None
    refused: str = ""


@dataclass(frozen=True)
class LlamaCpp:
    """llama.cpp, for an architecture that runtimes/llama_cpp/architectures.py does not describe.

    layout: which channels it pairs. vectors: whether its graph divides by frequency vectors (rope_freqs.weight).
    whole_heads: rope.dimension_count must be the head's. For plain ones: no sliding layers, every layer rotates.
    """

    layout: Literal["half", "interleaved"]
    vectors: bool = False
    whole_heads: bool = False
