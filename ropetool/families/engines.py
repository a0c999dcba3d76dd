"""How each inference engine treats a family, as far as that is a fact about the family.

A family without an engine's part is one whose treatment there is not known. What the engines compute stands in
runtimes/, with the releases that it was read in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal

from ropetool.families.loading import parsed, record


@dataclass(frozen=True)
class Vllm:
    """vLLM. on_transformers: the release from which on transformers' own model code runs, empty for none.

    formula: the model file's own reading of the rope keys, a program in runtimes/vllm.py. wider_window: the release from
    which on sliding layers see one token more than the config says, empty for none. made_half: its rotary modules are made
    for half layout and turned interleaved afterwards, which those of longrope do not heed. turns_rows: it turns the rows
    of queries and keys at load, so that its rotary modules are of half layout and compute the interleaved one. stops: the
    error that a stretch of releases stops with, by the first of them.
    """

    on_transformers: str = ""
    formula: Literal["", "deepseek", "gpt_oss"] = ""
    wider_window: str = ""
    made_half: bool = False
    turns_rows: bool = False
    stops: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sglang:
    """SGLang. on_transformers: transformers' own model code runs, for want of a model file.

    formula: as for vLLM; gemma3: transformers' own functions make the tables of each kind of layer. scaling: whether the
    model file hands more than the base over. whole_base: it hands it over as an integer. window: whether its sliding
    layers slide. wider_window: they see one token more than the config says. base: what it takes whatever the config says,
    where it looks for rope_theta in a place that transformers 5 no longer fills. layout: which channels it pairs where
    that is not what transformers does. turns_rows: as for vLLM.
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
class MlxReading:
    """Where a model file of mlx-lm or mlx-vlm looks for what the layers of one kind rotate by.

    bases: places of the base, the first that is stated counts; a dot stands between the names of nested objects. base:
    where none is stated; None: the file does not load. places: objects of scaling keys in the order they are looked at,
    each with what comes of it by rope type: `scales`, `ignored`, `stops` or `odd`, which is not decoded; two words, of a
    type stated only under rope_type and of one stated under `type` too; `absent`: where there is no such object,
    `named` where the key must be there and may be null.
    """

    bases: tuple[str, ...] = ()
    base: float | None = None
    places: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class MlxFile:
    """What a model file of mlx-lm or mlx-vlm does with a config, as scripts/engine_files/mlx_files.py found by asking it.

    file: its name. readings: by kind of layer. shares: places of the share of a head that rotates, share: where none
    is stated, 0 where it does not load without. head_dim: `needed` where that is so of it, `odd` where its own
    differs from transformers'.
    window: whether its sliding layers slide. listed: whether it goes by the config's list of layers. layout: which
    channels it pairs. scaled_score: whether mscale_all_dim multiplies the score. odd: why it is not decoded.
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
    """exllamav3. layout: which channels it pairs, whatever the config says. window: whether its sliding layers slide;
    gemma2's do not, for it looks for their window under another name.

    base: where the config has none. local_base: that of sliding layers, whatever the config says; None: that of the
    others. mscales: whether they count as DeepSeek has them, for MLA. wider_window: whether sliding layers see one token more
    than the config says. nested: whether rope keys of a kind of layer count: `beside` those at the top, or only `inside`,
    where their type, base and share do. zero: keys that it takes only at 0. refused: why it does not load. file: where that
    stands; odd: why it is not decoded.
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
    """llama.cpp, for an architecture that runtimes/llama_cpp/architectures.py does not describe.

    layout: which channels it pairs. vectors: whether its graph divides by frequency vectors (rope_freqs.weight).
    whole_heads: rope.dimension_count must be the head's. For plain ones: no sliding layers, every layer rotates.
    """

    layout: Literal["half", "interleaved"]
    vectors: bool = False
    whole_heads: bool = False


@cache
def _files(program: str) -> dict[str, Any]:
    file = f"{program.replace('-', '_')}.json"
    text = resources.files(__package__).joinpath("engine_files").joinpath(file).read_text(encoding="utf-8")
    return parsed(text, f"engine_files/{file}")


def _file(kind: type[Any], program: str, model_type: str, text_type: str) -> Any:
    files = _files(program)
    name = model_type if model_type == text_type else f"{model_type} of {text_type}"
    return record(kind, files[name], f"engine_files/{program}.json: {name}") if name in files else None


def mlx_file(program: str, model_type: str, text_type: str) -> MlxFile | None:
    """Return what mlx-lm or mlx-vlm makes of a config of this type, None where it has no model of it.

    text_type: the type of the text model inside, the same where it is not inside another.
    """
    found: MlxFile | None = _file(MlxFile, program, model_type, text_type)
    return found


def mlx_has(program: str, model_type: str) -> bool:
    """Return whether mlx-lm or mlx-vlm has a model file that it runs this type by, one of another name too."""
    found = _files("mlx-models")[program]
    return found["renamed"].get(model_type, model_type) in found["files"]


def exllamav3_file(model_type: str, text_type: str) -> Exllamav3 | None:
    """Return what exllamav3 makes of a config of this type, as scripts/engine_files/exllamav3_files.py found, None without a model."""
    found: Exllamav3 | None = _file(Exllamav3, "exllamav3", model_type, text_type)
    return found
