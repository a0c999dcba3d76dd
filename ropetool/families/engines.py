"""How each inference engine treats a family, for facts that belong to the family.

If a family has no entry for an engine, its treatment there is unknown. runtimes/ has the computation of each engine,
with the releases that it was read from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal, TypeVar

from ropetool.families.loading import parsed, record

T = TypeVar("T")


@dataclass(frozen=True)
class Vllm:
    """vLLM's treatment of a family.

    on_transformers: the first release that runs transformers' own model code; empty for none.
    formula: the model file's own interpretation of the rope keys, a function in runtimes/vllm.py.
    wider_window: the first release whose sliding layers see one token more than the config sets; empty for none.
    made_half: the rotary modules are created for the half layout and become interleaved afterwards, which longrope
      ignores.
    turns_rows: at load, it reorders the rows of queries and keys, so that rotary modules of the half layout compute the
      interleaved one.
    stops: error messages of releases that do not load the family, each by its first release.
    """

    on_transformers: str = ""
    formula: Literal["", "deepseek", "gpt_oss"] = ""
    wider_window: str = ""
    made_half: bool = False
    turns_rows: bool = False
    stops: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sglang:
    """SGLang's treatment of a family.

    on_transformers: runs transformers' own model code, because it has no model file.
    formula: as for vLLM. gemma3: transformers' own functions create the tables of each layer type.
    scaling: whether the model file uses more rope keys than the base.
    whole_base: it converts the base to an integer.
    window: whether the sliding layers slide.
    wider_window: they see one token more than the window of the config.
    base: a fixed base, because it reads rope_theta from a place that transformers 5 leaves empty; None to read the
      config.
    layout: the layout if it differs from transformers; empty if it does not.
    turns_rows: as for vLLM.
    """

    on_transformers: bool = False
    formula: Literal["", "deepseek", "gemma3"] = ""
    scaling: bool = True
    whole_base: bool = False
    window: bool = False
    wider_window: bool = False
    base: float | None = None
    layout: Literal["", "half"] = ""
    turns_rows: bool = False


@dataclass(frozen=True)
class MlxLm:
    """mlx-lm's treatment of a family.

    base: the default base.
    needs: keys without which the model does not load.
    scaling: whether it uses rope_scaling.
    window: whether the sliding layers slide.
    mla: the table belongs to the decoupled keys.
    formula: the model file's own interpretation of the rope keys, a function in runtimes/mlx_lm.py.
    """

    base: float = 10000.0
    needs: tuple[str, ...] = ()
    scaling: bool = True
    window: bool = False
    mla: bool = False
    formula: Literal["", "phi3", "deepseek_v2", "gemma3", "qwen3"] = ""


@dataclass(frozen=True)
class Exllamav3:
    """exllamav3's treatment of a family.

    layout: the layout of the channels, which the config cannot change.
    window: whether the sliding layers slide. gemma2's do not, because it reads their window from a different key.
    base: the default base.
    local_base: the fixed base of sliding layers; None if they use the base of the others.
    mscales: whether it uses DeepSeek's mscale keys, for MLA.
    wider_window: whether sliding layers see one token more than the window of the config.
    nested: how it reads rope keys per layer type: `beside` reads them in addition to the keys at the top, `inside`
      reads type, base and share only from them. Empty: it ignores them.
    zero: keys that it accepts only with 0.
    refused: why it does not load the family; empty if it does.
    file: the file with these facts.
    odd: why ropetool does not decode this family; empty if it does.
    """

    layout: Literal["half", "interleaved"] = "half"
    window: bool = False
    base: float = 10000.0
    local_base: float | None = None
    mscales: bool = True
    wider_window: bool = False
    nested: Literal["", "beside", "inside"] = ""
    zero: tuple[str, ...] = ()
    refused: str = ""
    file: str = ""
    odd: str = ""


@dataclass(frozen=True)
class LlamaCpp:
    """llama.cpp's treatment of an architecture that runtimes/llama_cpp/architectures.py does not describe.

    It has no sliding layers, and every layer rotates.
    layout: the layout of the channels.
    vectors: whether its graph divides by frequency vectors (rope_freqs.weight).
    whole_heads: rope.dimension_count must equal the head size.
    """

    layout: Literal["half", "interleaved"]
    vectors: bool = False
    whole_heads: bool = False


@cache
def files(program: str) -> dict[str, Any]:
    """Return what scripts/engine_files recorded of a program, as its JSON file has it: by model type, for most programs."""
    file = f"{program.replace('-', '_')}.json"
    text = resources.files(__package__).joinpath("engine_files").joinpath(file).read_text(encoding="utf-8")
    return parsed(text, f"engine_files/{file}")


def model_file(facts: type[T], program: str, model_type: str, text_type: str) -> T | None:
    """Return how a program's model file reads a config of this type, or None if the program has no model of it.

    facts: the dataclass of what is recorded.
    text_type: the type of the text model inside; the same as `model_type` if the model is not inside another.
    """
    known = files(program)
    name = model_type if model_type == text_type else f"{model_type} of {text_type}"
    return record(facts, known[name], f"engine_files/{program}.json: {name}") if name in known else None
