"""Small models of every type: their configs as files have them, with rope keys set, and what a program makes of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

from ropetool import families, names

FULL, SLIDING = names.FULL_ATTENTION, names.SLIDING_ATTENTION
TRAINED, CONTEXT, LENGTH = 32, 48, 64  # the last beyond the context, for dynamic, and beyond the windows
REMOVED = "removed"  # in place of a value: the key is taken away
MISTRAL = {
    "rope_type": "yarn", "type": "yarn", "factor": 1.0, "original_max_position_embeddings": TRAINED, "rope_theta": 1e6,
    "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
QWEN = {
    "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10],
    "mrope_interleaved": True,
}  # fmt: skip
# What published configs have beside what transformers' config classes write.
MORE: dict[str, dict[str, Any]] = {
    "apertus": {"mlp_bias": False, "post_norm": False, "qk_norm": True},
    "deepseek_v2": {names.ROPE_SCALING: {"type": "yarn", "factor": 1.0, "original_max_position_embeddings": 128}},
    "exaone4": {names.ROPE_SCALING: None},
    "exaone_moe": {"is_moe_layer": [False, True, True, True]},
    "gemma3": {"vocab_size": 128},
    "glm4_moe": {names.ROPE_SCALING: None, "use_qk_norm": False, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    "glm4v": {"eos_token_id": 1},
    "glm4v_moe": {"use_qk_norm": False},
    "glm_moe_dsa": {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "jamba": {"layers_block_type": ["mamba", "attention"] * 2},
    "kolibri1": {"num_experts": 4}, "mellum": {"num_experts": 4}, "qwen3_moe": {"num_experts": 4},
    "lfm2": {"block_dim": 160, "full_attn_idxs": [2]},
    "llama4_text": {names.ROPE_SCALING: None, "num_experts_per_tok": 1},
    "ministral3": {names.ROPE_PARAMETERS: MISTRAL}, "mistral4": {names.ROPE_PARAMETERS: MISTRAL},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [0, 1, 0, 1], "moe_layer_freq": [0, 1, 1, 1], "add_swa_attention_sink_bias": False,
        "add_full_attention_sink_bias": False, "sliding_window_size": 8, "n_shared_experts": None, "layernorm_epsilon": 1e-5,
        "swa_rope_theta": 10000.0, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    },
    "minicpm3": {names.ROPE_SCALING: {"type": "longrope", "factor": 1.0, "original_max_position_embeddings": 128}},
    "qwen3_5_text": {names.ROPE_PARAMETERS: QWEN}, "qwen3_5_moe_text": {names.ROPE_PARAMETERS: QWEN},
    "qwen3_omni_moe_text": {"num_experts": 4, "norm_topk_prob": True, "mlp_only_layers": []},
    "longcat_flash": {
        "attention_method": "MLA", "zero_expert_type": "identity", "mla_scale_q_lora": True, "mla_scale_kv_lora": True,
    },
    "minimax": {"shared_intermediate_size": 32, "rotary_dim": 128},
    "minimax_m2": {"shared_intermediate_size": 32, "rotary_dim": 64},
    "qwen3_vl": {"tie_word_embeddings": False},
    "qwen3_vl_moe": {"num_experts": 4, "norm_topk_prob": True},
    "solar_open": {"intermediate_size": 32, "first_k_dense_replace": 1, "partial_rotary_factor": 1.0, "use_qk_norm": False},
    "nemotron_h": {"layers_block_type": ["mamba", "attention", "moe", "mamba"], "hybrid_override_pattern": "M*EM"},
}  # fmt: skip
FLAT = ("qwen2_vl", "qwen2_5_vl")  # wrappers that are published with the keys of the text model at the top
SIZES = {
    "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32,
    "vocab_size": 128, "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
# Small configs of types whose classes come with their files.
REMOTE: dict[str, dict[str, Any]] = {
    "internlm2": {**SIZES, "architectures": ["InternLM2ForCausalLM"], "bias": False},
    "exaone": {**SIZES, "architectures": ["ExaoneForCausalLM"], "num_layers": 4, "layer_norm_epsilon": 1e-5},
    "deepseek": {
        **SIZES, "architectures": ["DeepseekForCausalLM"], "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    },
}  # fmt: skip
# Types that a program runs by the file of another, whose small config serves.
RENAMED = {"kimi_k2": "deepseek_v3"}
# Text models inside wrappers that are published with several.
INSIDE = (
    "llava of mistral", "llava of qwen2", "llava_next of mistral", "mistral3 of ministral3", "paligemma of gemma2",
)  # fmt: skip
Ask = Callable[[str, Mapping[str, Any], tuple[int, ...]], dict[str, Any]]  # of a program, a config and lengths


def small(model_type: str) -> tuple[dict[str, Any], list[str]]:
    """Return a small config of a type, as a file would have it, and where its text model's part is.

    model_type: `A of B` is A around a text model of B.
    """
    if model_type in REMOTE:
        return {**REMOTE[model_type], "model_type": model_type}, []
    if model_type in RENAMED:
        return {**small(RENAMED[model_type])[0], "model_type": model_type}, []
    outer, _, inner = model_type.partition(" of ")
    if inner:
        config, path = _small(outer)
        return {**config, path[0]: {**_small(inner)[0], "model_type": inner}}, path
    return _small(model_type)


def _small(model_type: str) -> tuple[dict[str, Any], list[str]]:
    import transformers

    from ropetool.probing import facts, tiny

    config = transformers.AutoConfig.for_model(model_type)
    path, text = facts.text_config(config)
    changes = tiny.overrides(text)
    made = type(text)(**changes).to_dict()
    made = {key: value for key, value in made.items() if key not in ("transformers_version", "dtype", "_name_or_path")}
    for ours, theirs in dict(getattr(text, "attribute_map", {})).items():
        if made.get(theirs) is not None:
            made.setdefault(ours, made[theirs])
    if made.get("num_local_experts"):
        made.setdefault("num_experts", made["num_local_experts"])
    made = json.loads(json.dumps(made, default=str))
    made |= MORE.get(model_type, {}) | MORE.get(str(text.model_type), {})
    if not path:
        return {**made, "model_type": model_type, "architectures": [facts.architecture(model_type)]}, []
    whole = json.loads(json.dumps(config.to_dict(), default=str))
    whole |= {"model_type": model_type, "vocab_size": 128, "architectures": [facts.architecture(model_type)]}
    inner = whole
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = made
    return whole, path


def key_of(model_type: str) -> str | None:
    """Return the name of a type in the files: with that of the text model inside, where there is one."""
    try:
        config, _ = small(model_type)
        family = families.of_config(config)
    except Exception:  # noqa: BLE001 - no family, or no small config
        return None
    return family.name if family.name == family.model_type else f"{family.name} of {family.model_type}"


class Subject:
    """A type in a program: configs of it with rope keys set, and what the program makes of them."""

    def __init__(
        self, program: str, model_type: str, ask: Ask, made: tuple[dict[str, Any], list[str]] | None = None
    ) -> None:
        self.program, self.ask = program, ask
        self.config, self.path = made or small(model_type)
        if model_type in FLAT:
            part = self.config
            for key in self.path:
                part = part[key]
            kept = {"model_type": model_type, "architectures": self.config["architectures"]}
            self.config = {**self.config, **part, **kept}
        part = self.part(self.config)
        self.stated = part.pop(names.ROPE_PARAMETERS, None) or {}
        if model_type in FLAT:
            self.config.pop(names.ROPE_PARAMETERS, None)
        for key in (names.ROPE_THETA, names.ROPE_SCALING, names.PARTIAL_ROTARY_FACTOR, names.ROPE_LOCAL_BASE_FREQ):
            part.pop(key, None)
        self.family = families.of_config(self.config)
        more = {**MORE.get(model_type, {}), **MORE.get(self.family.model_type, {})}
        part |= {key: more[key] for key in (names.ROPE_SCALING, names.PARTIAL_ROTARY_FACTOR) if key in more}
        part[self.family.context_key] = CONTEXT
        if part.get("head_dim") is None and part.get("hidden_size") and part.get("num_attention_heads"):
            part["head_dim"] = part["hidden_size"] // part["num_attention_heads"]
        self.groups = {k: self.family.rope_group(k) for k in self.family.layer_types}

    def part(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the text model's part."""
        inner = config
        for key in self.path:
            inner = inner[key]
        return inner

    def made(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config with values at these places of the text model's part."""
        config = copy.deepcopy(self.config)
        targets = [self.part(config)]
        if self.config["model_type"] in FLAT:
            targets.append(config)
        for target in targets:
            for place, value in values.items():
                *outer, last = place.split(".")
                inner = target
                for key in outer:
                    inner[key] = inner.get(key) or {}
                    inner = inner[key]
                inner[last] = value
                if value == REMOVED:
                    inner.pop(last)
        return config

    def layers(self, values: Mapping[str, Any], lengths: tuple[int, ...] = (LENGTH,)) -> list[dict[str, Any]] | str:
        """Return the layers that attend, or the error."""
        found = self.ask(self.program, self.made(values), lengths)
        if "lengths" not in found:
            return str(found.get("error") or found.get("stopped"))
        self.file = found["file"]
        layers: list[dict[str, Any]] = found["lengths"][str(lengths[-1])]
        return layers


def usual_share(subject: Subject) -> float | None:
    """Return the share of a head that published configs of the family state, None where they state none."""
    if not subject.family.partial_rotary_key:
        return None
    stated = subject.stated.get(names.PARTIAL_ROTARY_FACTOR) or subject.family.default_partial_rotary_factor
    return float(stated)


def share_places(subject: Subject) -> list[str]:
    places = [names.PARTIAL_ROTARY_FACTOR, f"{names.ROPE_PARAMETERS}.{names.PARTIAL_ROTARY_FACTOR}"]
    return list(dict.fromkeys([*places, subject.family.partial_rotary_key]))


def bystanders(subject: Subject) -> dict[str, Any]:
    """Return what stands beside the base in rope_parameters of published configs of the family, and the share of a head."""
    rest = {names.ROPE_THETA, names.ROPE_TYPE, "factor", "original_max_position_embeddings"}
    groups = {group: subject.stated.get(group) for group in subject.groups.values()}
    if not any(isinstance(one, Mapping) for one in groups.values()):
        groups = {"": subject.stated}
    found: dict[str, Any] = {}
    for group, keys in groups.items():
        prefix = f"{names.ROPE_PARAMETERS}.{group}." if group else f"{names.ROPE_PARAMETERS}."
        found |= {f"{prefix}{key}": value for key, value in (keys or {}).items() if key not in rest}
        found[f"{prefix}{names.ROPE_TYPE}"] = "default"
    if subject.family.nested:
        return {key: value for key, value in found.items() if key.rpartition(".")[2] != names.PARTIAL_ROTARY_FACTOR}
    if share := usual_share(subject):
        found |= dict.fromkeys(share_places(subject), share)
    return found
