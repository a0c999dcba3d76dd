"""How each inference engine treats a family, for facts that belong to the family.

If a family has no entry for an engine, its treatment there is unknown. runtimes/ has the computation of each engine,
with the releases that it was read from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal

from ropetool.families.loading import parsed, record


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
class MlxReading:
    """The places from which a model file of mlx-lm or mlx-vlm reads the rope keys of one layer type.

    bases: places of the base; the first existing place counts. Dots lead into objects.
    base: the default base; None if the model does not load without one.
    places: places of scaling objects in order, each with the effect by rope type: `scales`, `ignored`, `stops`, or
      `odd` for
      an effect that ropetool does not decode. Two words: for a type only in rope_type, and for one also in `type`. The
        type `absent` means that the object is missing, and `named` that the key must exist but may be null.
    """

    bases: tuple[str, ...] = ()
    base: float | None = None
    places: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class MlxFile:
    """How a model file of mlx-lm or mlx-vlm treats a config. scripts/engine_files/mlx_files.py found this by running
    the file.

    file: its name.
    readings: the places of rope keys, by layer type.
    shares: places of the rotating share of a head.
    share: the default share; 0 if the model does not load without one.
    head_dim: `needed` if the model does not load without one; `odd` if the default differs from transformers.
    window: whether the sliding layers slide.
    listed: whether it uses the config's list of layers.
    layout: the layout of the channels.
    scaled_score: whether mscale_all_dim multiplies the score.
    odd: why ropetool does not decode this model; empty if it does.
    """

    file: str
    readings: dict[str, MlxReading] = field(default_factory=dict)
    shares: tuple[str, ...] = ()
    share: float = 1.0
    head_dim: Literal["", "needed", "odd"] = ""
    window: bool = False
    listed: bool = True
    layout: Literal["half", "interleaved"] = "half"
    scaled_score: bool = False
    odd: str = ""


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
      reads type,
      base and share only from them. Empty: it ignores them.
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
def _files(program: str) -> dict[str, Any]:
    file = f"{program.replace('-', '_')}.json"
    text = resources.files(__package__).joinpath("engine_files").joinpath(file).read_text(encoding="utf-8")
    return parsed(text, f"engine_files/{file}")


def _file(reading_class: type[Any], program: str, model_type: str, text_type: str) -> Any:
    files = _files(program)
    name = model_type if model_type == text_type else f"{model_type} of {text_type}"
    return record(reading_class, files[name], f"engine_files/{program}.json: {name}") if name in files else None


def mlx_file(program: str, model_type: str, text_type: str) -> MlxFile | None:
    """Return how mlx-lm or mlx-vlm treats a config of this type, or None if it has no model for it.

    text_type: the type of the text model inside; equal to model_type for a config without a wrapper.
    """
    file: MlxFile | None = _file(MlxFile, program, model_type, text_type)
    return file


def mlx_has(program: str, model_type: str) -> bool:
    """Return whether mlx-lm or mlx-vlm has a model file for this type, also under a different name."""
    models = _files("mlx-models")[program]
    return models["renamed"].get(model_type, model_type) in models["files"]


def exllamav3_file(model_type: str, text_type: str) -> Exllamav3 | None:
    """Return how exllamav3 treats a config of this type, or None if it has no model for it.

    scripts/engine_files/exllamav3_files.py found this by running exllamav3's code.
    """
    file: Exllamav3 | None = _file(Exllamav3, "exllamav3", model_type, text_type)
    return file
