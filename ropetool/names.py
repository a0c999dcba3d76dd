"""The spelling of every external name: config keys, their aliases, layer types and file names.

The rest of the code uses Hugging Face's words. Code that reads or writes files takes the spelling from this module.
"""

from __future__ import annotations

# --- files of a Hugging Face checkpoint
CONFIG_JSON = "config.json"
TOKENIZER_CONFIG_JSON = "tokenizer_config.json"
TOKENIZER_JSON = "tokenizer.json"
SAFETENSORS_INDEX_JSON = "model.safetensors.index.json"
PROVENANCE_JSON = "ropetool.json"
OWN_KEYS = "ropetool."  # prefix of ropetool's own keys in a GGUF file
CARD = "README.md"  # the model card
QUANTIZATION_CONFIG = "quantization_config"  # in config.json
MODEL_INDEX = "model-index"  # measured results in its front matter
EDITS_JSON = "ropetool-edits.json"  # next to a GGUF file that was edited in place
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
PICKLE_INDEX_JSON = "pytorch_model.bin.index.json"

# --- ropetool's keys in a GGUF file
GGUF_FILLER = "ropetool.filler"  # zeros, which reserve room for later edits in place

# --- config.json
MODEL_TYPE = "model_type"
ARCHITECTURES = "architectures"
TEXT_CONFIGS = ("text_config", "llm_config", "language_config")  # the text model inside a wrapper
LAYER_TYPES = "layer_types"
ROPE_SCALING = "rope_scaling"  # transformers up to 4.57
ROPE_PARAMETERS = "rope_parameters"  # transformers 5
ROPE_THETA = "rope_theta"
ROPE_TYPE = "rope_type"
LEGACY_TYPE = "type"  # the older spelling of rope_type
FACTOR = "factor"
ATTENTION_FACTOR = "attention_factor"
ATTN_FACTOR = "attn_factor"  # multiplies the attention factor that engines compute
LLAMA_4_SCALING_BETA = "llama_4_scaling_beta"
BETA_FAST = "beta_fast"
BETA_SLOW = "beta_slow"
TRUNCATE = "truncate"
MSCALE = "mscale"
MSCALE_ALL_DIM = "mscale_all_dim"
LOW_FREQ_FACTOR = "low_freq_factor"
HIGH_FREQ_FACTOR = "high_freq_factor"
SHORT_FACTOR = "short_factor"
LONG_FACTOR = "long_factor"
SHORT_MSCALE, LONG_MSCALE = "short_mscale", "long_mscale"  # the attention factors of the two lists
PARTIAL_ROTARY_FACTOR = "partial_rotary_factor"
MAX_POSITION_EMBEDDINGS = "max_position_embeddings"
ORIGINAL_MAX_POSITION_EMBEDDINGS = "original_max_position_embeddings"
MODEL_MAX_LENGTH = "model_max_length"
SLIDING_WINDOW = "sliding_window"
ROPE_LOCAL_BASE_FREQ = "rope_local_base_freq"  # gemma3, v4 style: theta of the sliding layers
ROTARY_PCT = "rotary_pct"  # gpt_neox's word for partial_rotary_factor
NUM_HIDDEN_LAYERS = "num_hidden_layers"
NUM_ATTENTION_HEADS = "num_attention_heads"
NUM_KEY_VALUE_HEADS = "num_key_value_heads"
HIDDEN_SIZE = "hidden_size"
HEAD_DIM = "head_dim"
ROTARY_DIM = "rotary_dim"  # an older key than partial_rotary_factor, in channels
KV_LORA_RANK = "kv_lora_rank"
SLIDING_WINDOW_PATTERN = "sliding_window_pattern"
NO_ROPE_LAYERS = "no_rope_layers"  # a number for each layer, 0 for layers that do not rotate
# Each layer whose number, counted from 1, is a multiple of this does not rotate.
NO_ROPE_LAYER_INTERVAL = "no_rope_layer_interval"
MROPE_SECTION = "mrope_section"  # the number of rotary pairs for each axis of a picture

# Other names of rope types, with the name that ropetool uses.
ROPE_TYPE_ALIASES = {"su": "longrope", "mrope": "default"}

# --- layer types, in transformers' words
FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"
KNOWN_LAYER_TYPES = frozenset({
    FULL_ATTENTION, SLIDING_ATTENTION, "chunked_attention", "window_attention", "indexed_attention",
    "compressed_sparse_attention", "heavily_compressed_attention", "minimax_m3_sparse", "conv", "moe", "hybrid",
    "hybrid_sliding", "reference_sliding_attention", "linear_attention",
})  # fmt: skip
# Older names of layer types, with the name to which transformers 5 maps each.
LAYER_TYPE_ALIASES = {
    "attention": FULL_ATTENTION, "mamba": "linear_attention", "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
}  # fmt: skip

# --- config styles
V4, V5, BOTH = "v4", "v5", "both"

# Every key that a rope type reads. Other keys, such as mrope_section, survive an edit.
ROPE_TYPE_KEYS = frozenset({
    ROPE_TYPE, LEGACY_TYPE, FACTOR, ATTENTION_FACTOR, ATTN_FACTOR, BETA_FAST, BETA_SLOW, TRUNCATE, MSCALE,
    MSCALE_ALL_DIM, LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR, SHORT_FACTOR, LONG_FACTOR, SHORT_MSCALE, LONG_MSCALE,
    ORIGINAL_MAX_POSITION_EMBEDDINGS, "finetuned", "alpha",
})  # fmt: skip
KNOWN_ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
