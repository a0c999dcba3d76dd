"""Configs that contain or rename another family: multimodal wrappers, and model types with a second name.

Contains only data; families.of_config applies it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

IN_BOTH = "transformers 5.23.0 and 4.57.6, models/{}/configuration_*.py"
IN_V5 = "transformers 5.23.0, models/{}/configuration_*.py"
ON_HUB = "config.json of {}, whose class is remote code"
UNKNOWN = "nothing: the code of {} is not known"


@dataclass(frozen=True)
class Wrapper:
    """A config that contains the config of a text model.

    text: the key of the inner config, with dots between nested keys.
    default: the family that the class assumes if the inner config has no model_type; empty if the class then stops.
    fixed: the class always builds `default` and ignores the inner model_type.
    switch: a boolean key of the inner config that selects a different model when it is off.
    off: the family of that different model; empty if ropetool does not support it.
    needs: keys that the inner config must set, because the class has unusual defaults. One of several words is enough.
    renames: inner model types, each with the type that the class builds instead.
    in_v4: whether transformers 4.57 has the wrapper, with the same rule.
    source: the file that contains this rule.
    """

    text: str = "text_config"
    default: str = ""
    fixed: bool = False
    switch: str = ""
    off: str = ""
    needs: tuple[str, ...] = ()
    renames: Mapping[str, str] = field(default_factory=dict)
    in_v4: bool = False
    source: str = IN_V5

    @property
    def path(self) -> tuple[str, ...]:
        """The keys that lead to the inner config."""
        return tuple(self.text.split("."))

    def inner(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the config of the text model inside a config.json, or an empty mapping."""
        inner: Any = config
        for key in self.path:
            inner = inner.get(key) if isinstance(inner, Mapping) else None
        return inner if isinstance(inner, Mapping) else {}


def _alike(default: str, model_types: str, *, in_v4: bool, needs: tuple[str, ...] = ()) -> dict[str, Wrapper]:
    source = IN_BOTH if in_v4 else IN_V5
    return {n: Wrapper(default=default, needs=needs, in_v4=in_v4, source=source.format(n)) for n in model_types.split()}


SIZES = ("hidden_size", "num_hidden_layers", "num_key_value_heads", "max_position_embeddings")
WRAPPERS: dict[str, Wrapper] = {
    **_alike(
        "llama",
        """deepseek_vl deepseek_vl_hybrid idefics3 janus llava llava_next llava_next_video perception_lm smolvlm video_llava
        vipllava""",
        in_v4=True,
    ),
    **_alike("llama", "voxtral", in_v4=True, needs=(*SIZES, "head_dim", "rope_theta rope_parameters")),
    **_alike("llama", "glmasr", in_v4=False, needs=(*SIZES, "num_attention_heads", "rope_parameters")),
    **_alike("mistral", "idefics2 mistral3", in_v4=True),
    **_alike("qwen2", "got_ocr2 internvl llava_onevision ovis2 qwen2_audio", in_v4=True),
    **_alike(
        "qwen2",
        "audioflamingo3 fast_vlm musicflamingo pp_chart2table vibevoice vibevoice_asr video_llama_3",
        in_v4=False,
    ),
    **_alike("qwen3", "fun_asr_nano lighton_ocr moss_transcribe_diarize qianfan_ocr qwen3_asr", in_v4=False),
    **_alike("cohere2", "aya_vision cohere2_vision", in_v4=True),
    **_alike("granite", "granite_speech", in_v4=True),
    **_alike("granite", "granite_speech_plus", in_v4=False),
    **_alike("gemma3_text", "shieldgemma2", in_v4=True),
    **_alike("deepseek_v3", "kimi_k25", in_v4=False),
    **_alike("", "exaone4_5", in_v4=False),
    # Their default, opt, does not rotate. Checkpoints with Vicuna inside do.
    **_alike("opt", "blip-2 instructblip instructblipvideo", in_v4=True),
    # ropetool does not support their default families. Checkpoints with a different text model name its type.
    **_alike("gemma", "paligemma", in_v4=True),
    **_alike("lfm2", "lfm2_vl", in_v4=True),
    **_alike("persimmon", "fuyu", in_v4=True),
    # Remote code: internvl_chat builds transformers' own configs. The others have copies of DeepSeek's config, and
    # ignore its model_type. In deepseek_vl_v2's copy, a model has 30 layers by default, and plain attention without
    # use_mla.
    "internvl_chat": Wrapper("llm_config", source=ON_HUB.format("OpenGVLab/InternVL3-8B")),
    "deepseek_vl_v2": Wrapper(
        "language_config", "deepseek_v2", fixed=True, switch="use_mla", off="deepseek_ocr", needs=("num_hidden_layers",),
        source=ON_HUB.format("deepseek-ai/deepseek-vl2"),
    ),
    "kimi_vl": Wrapper(default="deepseek_v3", fixed=True, source=ON_HUB.format("moonshotai/Kimi-VL-A3B-Instruct")),
}  # fmt: skip

# Wrappers whose class reads the text model's keys from the top of the config if text_config is missing, as in published
# files. Source: transformers 5.23.0, models/{}/configuration_*.py
FLAT = frozenset({"paddleocr_vl", "qwen2_5_vl", "qwen2_vl"})

# Other model_types of published files, with their family. The remote code is a copy or a subclass of the family's
# class. Types whose code has different rules have files in remote/.
ALIASES: dict[str, str] = {
    "kimi_k2": "deepseek_v3",  # moonshotai/Kimi-K2-Instruct: configuration_deepseek.py and modeling_deepseek.py
    "mimo": "qwen2",  # XiaomiMiMo/MiMo-7B-Base, configuration_mimo.py: class MiMoConfig(Qwen2Config)
    "dots_ocr": "qwen2",  # rednote-hilab/dots.ocr, configuration_dots.py: class DotsOCRConfig(Qwen2Config)
    "llava_qwen": "qwen2",  # LLaVA-NeXT, llava/model/language_model/llava_qwen.py: class LlavaQwenConfig(Qwen2Config)
}

# model_types of two classes of remote code: a key that only configs of one class have, and the family of that class.
TOLD_APART: dict[str, tuple[str, str]] = {
    "bailing_moe": ("n_group", "bailing_moe_v2"),  # inclusionAI/Ling-mini-2.0, not inclusionAI/Ling-lite
    "cogvlm": ("num_multi_query_heads", "cogvlm2"),  # THUDM/cogvlm2-llama3-chat-19B, not THUDM/cogvlm-chat-hf
    "llada": ("num_experts", "lladamoe"),  # inclusionAI/LLaDA-MoE-7B-A1B-Base, not GSAI-ML/LLaDA-8B-Base
}

# Types that ropetool does not read, with the reason and often a replacement. Most exist only in remote code.
UNREAD: dict[str, str] = {
    "chatglm": (
        "its only rope key is rope_ratio, which multiplies the base in some releases of its remote code and divides positions "
        "in others; use its glm version (zai-org/glm-4-9b-chat-hf)"
    ),
    "dory": (
        "its config lists attention and MLP blocks as separate layers, and a loop runs some of them twice; ropetool reads "
        "neither"
    ),
    "internlm": "its remote code reads base and type from a separate object, rotary; use internlm2 or internlm3",
    "phi-msft": "its remote code fixes the base at 10000 and reads only rotary_dim; use its phi version",
}

# Possible prefixes of the text model's tensors inside a wrapper, instead of `model.`.
PREFIXES = ("model.language_model.", "language_model.model.", "model.text_model.")
