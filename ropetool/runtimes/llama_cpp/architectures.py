"""What llama.cpp reads and computes for each architecture: keys, frequency vectors, layouts, sliding layers.

Only data and lookups; decoding.py decodes a file. The file of a family can describe a plain architecture that is not
here (`llama_cpp`). Source: src/llama-arch.cpp, src/llama-model.cpp and src/models/*.cpp of llama.cpp within
llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ropetool import families
from ropetool.files.gguf import ValueType
from ropetool.files.gguf.codec import shown
from ropetool.rope.arithmetic import FAR_TURNS, NEAR_TURNS
from ropetool.runtimes.base import NotKnown

BETAS = (NEAR_TURNS, FAR_TURNS)  # the ends of YaRN's ramp, if no key sets them

# --- spellings: in a file, the architecture's name and a dot precede these keys
ARCHITECTURE = "general.architecture"
CONTEXT_LENGTH = "context_length"
EMBEDDING_LENGTH = "embedding_length"
BLOCK_COUNT = "block_count"
NEXTN_LAYERS = "nextn_predict_layers"
FEED_FORWARD_LENGTH = "feed_forward_length"
HEAD_COUNT = "attention.head_count"
HEAD_COUNT_KV = "attention.head_count_kv"
KEY_LENGTH = "attention.key_length"
KEY_LENGTH_SWA = "attention.key_length_swa"
VALUE_LENGTH = "attention.value_length"
VALUE_LENGTH_SWA = "attention.value_length_swa"
KEY_LENGTH_MLA = "attention.key_length_mla"
VALUE_LENGTH_MLA = "attention.value_length_mla"
CAUSAL = "attention.causal"
SLIDING_WINDOW = "attention.sliding_window"
SLIDING_WINDOW_PATTERN = "attention.sliding_window_pattern"
ROPE_PATTERN = "attention.rope_pattern"
COMPRESS_RATIOS = "attention.compress_ratios"
COMPRESS_FREQ_BASE = "attention.compress_rope_freq_base"
LEADING_DENSE = "leading_dense_block_count"
EXPERT_COUNT = "expert_count"
RECURRENT_LAYERS = "attention.recurrent_layers"
ATTENTION_INTERVAL = "full_attention_interval"
TEMPERATURE_SCALE = "attention.temperature_scale"
TEMPERATURE_LENGTH = "attention.temperature_length"
DIMENSION_COUNT = "rope.dimension_count"
DIMENSION_COUNT_SWA = "rope.dimension_count_swa"
DIMENSION_SECTIONS = "rope.dimension_sections"
FREQ_BASE = "rope.freq_base"
FREQ_BASE_SWA = "rope.freq_base_swa"
SCALE_LINEAR = "rope.scale_linear"
SCALING_TYPE = "rope.scaling.type"
FACTOR = "rope.scaling.factor"
ATTN_FACTOR = "rope.scaling.attn_factor"
ORIGINAL_CONTEXT_LENGTH = "rope.scaling.original_context_length"
FINETUNED = "rope.scaling.finetuned"
ALPHA = "rope.scaling.alpha"
YARN_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
YARN_EXT_FACTOR = "rope.scaling.yarn_ext_factor"
YARN_ATTN_FACTOR = "rope.scaling.yarn_attn_factor"
YARN_BETA_FAST = "rope.scaling.yarn_beta_fast"
YARN_BETA_SLOW = "rope.scaling.yarn_beta_slow"
# Every key that scales a rotation. A file must not contain one that its encoding does not set.
SCALING_KEYS = (
    SCALING_TYPE, FACTOR, SCALE_LINEAR, ATTN_FACTOR, ORIGINAL_CONTEXT_LENGTH, ALPHA, YARN_LOG_MULTIPLIER,
    YARN_EXT_FACTOR, YARN_ATTN_FACTOR, YARN_BETA_FAST, YARN_BETA_SLOW,
)  # fmt: skip
# What llama.cpp uses if the file does not set the key.
DEFAULTS = {
    ATTN_FACTOR: 1.0, YARN_LOG_MULTIPLIER: 0.0, YARN_EXT_FACTOR: 1.0, YARN_BETA_FAST: BETAS[0], YARN_BETA_SLOW: BETAS[1],
}  # fmt: skip

ROPE_FREQS = "rope_freqs.weight"
ROPE_FACTORS_LONG = "rope_factors_long.weight"
ROPE_FACTORS_SHORT = "rope_factors_short.weight"
VECTORS = (ROPE_FREQS, ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT)

SCALING_TYPES = ("none", "linear", "yarn", "longrope")
MAX_LAYERS = 512

# The type that each key must have in the file, because llama.cpp does not convert types.
TYPES = {
    **dict.fromkeys(
        (CONTEXT_LENGTH, EMBEDDING_LENGTH, BLOCK_COUNT, NEXTN_LAYERS, HEAD_COUNT, HEAD_COUNT_KV, KEY_LENGTH,
         KEY_LENGTH_SWA, VALUE_LENGTH, VALUE_LENGTH_SWA, KEY_LENGTH_MLA, VALUE_LENGTH_MLA, SLIDING_WINDOW,
         SLIDING_WINDOW_PATTERN, RECURRENT_LAYERS, ATTENTION_INTERVAL, TEMPERATURE_LENGTH, LEADING_DENSE, EXPERT_COUNT,
         DIMENSION_COUNT, DIMENSION_COUNT_SWA, ORIGINAL_CONTEXT_LENGTH),
        ValueType.U32,
    ),
    **dict.fromkeys(
        (TEMPERATURE_SCALE, FREQ_BASE, FREQ_BASE_SWA, COMPRESS_FREQ_BASE, SCALE_LINEAR, FACTOR, ATTN_FACTOR, ALPHA, YARN_LOG_MULTIPLIER,
         YARN_EXT_FACTOR, YARN_ATTN_FACTOR, YARN_BETA_FAST, YARN_BETA_SLOW),
        ValueType.F32,
    ),
    SCALING_TYPE: ValueType.STR,
    FINETUNED: ValueType.BOOL,
}  # fmt: skip

# The loader reads these for every architecture, and so checks their types.
ALWAYS_LOADED = (
    CONTEXT_LENGTH, EMBEDDING_LENGTH, BLOCK_COUNT, NEXTN_LAYERS, FREQ_BASE, SCALING_TYPE, FACTOR, ATTN_FACTOR,
    ORIGINAL_CONTEXT_LENGTH, FINETUNED, ALPHA, DIMENSION_COUNT, DIMENSION_COUNT_SWA, KEY_LENGTH, KEY_LENGTH_SWA,
    VALUE_LENGTH, VALUE_LENGTH_SWA, EXPERT_COUNT,
)  # fmt: skip
READ_BY_ALL = frozenset({
    CONTEXT_LENGTH, FREQ_BASE, SCALING_TYPE, FACTOR, SCALE_LINEAR, ATTN_FACTOR, ORIGINAL_CONTEXT_LENGTH,
    DIMENSION_COUNT, KEY_LENGTH,
})  # fmt: skip


@dataclass(frozen=True)
class Sliding:
    """Which layers of an architecture slide, and how they rotate.

    required: the file does not load without the key of the window.
    default: the window without that key, in tokens; 0 for no sliding layers.
    fixed: the window for any value of the key, in tokens; 0 if the key sets the window.
    pattern: every n-th layer is a full one if the file does not set a pattern; 0 for none; None if the file must list
      the layers.
    dense_first: the first of each n layers is the full one, and not the last.
    own_base: without rope.freq_base_swa the base is 10000, and not the base of the full layers.
    shares_base: the graph uses the base and scale of the full layers, and ignores other values in the file.
    scaled: rope.scaling.factor has an effect.
    plain: no scaling and no attention factor has an effect.
    own_dims: they have a separate rotary_dim. Otherwise all layers have the rotary_dim of layer 0.
    first_dims: with own_dims, the full layers still have the rotary_dim of layer 0.
    layer_count: the only number of layers for which these rules apply; None for any.
    needs_base: the file does not load without rope.freq_base_swa.
    chunked: the window is a chunk of the text, and a layer attends within its chunk.
    uncompressed: layers with 0 in attention.compress_ratios slide and use rope.freq_base. The full layers have a
      separate key for their base.
    """

    required: bool = False
    default: int = 0
    fixed: int = 0
    pattern: int | None = None
    dense_first: bool = False
    own_base: bool = False
    shares_base: bool = False
    scaled: bool = True
    plain: bool = False
    own_dims: bool = False
    first_dims: bool = False
    layer_count: int | None = None
    needs_base: bool = False
    chunked: bool = False
    uncompressed: bool = False


@dataclass(frozen=True)
class Architecture:
    """An architecture as llama.cpp runs it.

    layout: half or interleaved; empty if no layer rotates.
    keys: the keys besides READ_BY_ALL that change the rotation.
    vectors: whether its graph divides by frequency vectors.
    whole_heads: whether rope.dimension_count must be the channels of a head.
    sliding: the rules of sliding layers; None if no layer slides.
    rotating: the rotating layers: all, sliding, or a step.
    layer_count: the only number of layers for which any layer rotates; None for any.
    norm_after: queries and keys are normalised after the rotation, which cancels any factor on cos and sin.
    fixed_base: the base, unscaled, for any value in the file; 0 if the file sets the base.
    """

    name: str
    layout: str
    keys: frozenset[str] = frozenset()
    vectors: bool = False
    whole_heads: bool = False
    sliding: Sliding | None = None
    rotating: str = "all"
    layer_count: int | None = None
    norm_after: bool = False
    fixed_base: float = 0.0

    @property
    def base_key(self) -> str:
        """The key of the base of the full-attention layers."""
        return COMPRESS_FREQ_BASE if self.sliding is not None and self.sliding.uncompressed else FREQ_BASE

    @property
    def decoupled(self) -> bool:
        """Whether separate channels rotate, next to latent channels."""
        return self.mla or self.name in DECOUPLED

    @property
    def mla(self) -> bool:
        """Whether YaRN's factor also multiplies the whole score."""
        return self.name in MLA

    @property
    def betas(self) -> tuple[float, float]:
        """The ends of YaRN's ramp if the file does not set them."""
        return (8.0, 1.0) if self.name == "grok" else BETAS

    @property
    def one_factor(self) -> bool:
        """Whether cos and sin and the whole score always share YaRN's factor."""
        return self.mla and YARN_LOG_MULTIPLIER not in self.keys

    @property
    def takes_factor(self) -> bool:
        """Whether a file can set a factor on cos and sin without a factor on the whole score."""
        return not (self.norm_after or self.name in WITHOUT_FACTOR or self.one_factor)

    @property
    def method(self) -> str:
        """The default method."""
        if self.fixed_base:
            return "length"
        return "ntk" if self.sliding is not None and self.sliding.needs_base else "yarn"

    @property
    def limit(self) -> str:
        """Why llama.cpp cannot use some tables; empty if there is no such reason."""
        if self.fixed_base:
            return f"its graph always rotates with the base {self.fixed_base:g} and ignores the base in the file"
        if self.norm_after:
            return "it normalises queries and keys after the rotation, which cancels any factor"
        if self.name in WITHOUT_FACTOR:
            return "its graph cancels YaRN's factor and does not read attn_factor"
        if self.one_factor:
            return f"it does not read {YARN_LOG_MULTIPLIER.rpartition('.')[2]}, so rotation and score share one factor"
        if self.sliding is not None and self.sliding.needs_base:
            return "its sliding layers have a separate base, but share the scaling factors"
        if self.sliding is None or (self.sliding.plain and not self.sliding.shares_base):
            return ""
        return f"its sliding layers share the {'base' if self.sliding.shares_base else 'factor on cos and sin'}"

    def loads(self, scaling_type: str) -> tuple[str, ...]:
        """Return the frequency vectors that a file of this scaling type may contain.

        Any other vector stops the loading.
        """
        if self.name in LISTS or (self.name in LISTS_FOR_LONGROPE and scaling_type == "longrope"):
            return (ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT)
        return (ROPE_FREQS,) if self.vectors or self.name in FREQS_UNUSED else ()


def names() -> list[str]:
    """Return the architectures whose rotation is known, sorted."""
    return sorted({**_of_families(), **_architectures()})


def get(name: str) -> Architecture:
    """Return the architecture with this name.

    Raises: NotKnown if llama.cpp does not have it, or this module does not describe it.
    """
    architecture = _architectures().get(name) or _of_families().get(name)
    if architecture is not None:
        return architecture
    if name in UNDESCRIBED:
        raise NotKnown(f"llama.cpp {UNDESCRIBED[name]}, so ropetool does not decode {name} files")
    raise NotKnown(f"unknown model architecture: {shown(name)}")


def reads(name: str) -> frozenset[str]:
    """Return the keys that change the rotation in llama.cpp, without the architecture in front.

    llama.cpp silently ignores every other rope key of a file. Raises: NotKnown as `get` does.
    """
    arch = get(name)
    if not arch.layout:
        return frozenset({CONTEXT_LENGTH})
    if arch.fixed_base:
        return frozenset({CONTEXT_LENGTH, KEY_LENGTH, DIMENSION_COUNT}) | arch.keys
    ignored = (arch.norm_after and name not in NORM_UNLESS_EXPERTS) or name in WITHOUT_FACTOR
    return (READ_BY_ALL | arch.keys) - ({ATTN_FACTOR} if ignored else set())


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# --- rotation: pairs of neighbours, pairs half a head apart, or none
INTERLEAVED = _words(
    """llama llada deci baichuan internlm2 minicpm xverse command-r cohere2 olmo arctic deepseek deepseek2 deepseek32
    muse-glimmer plm chatglm granite granitemoe granitehybrid granite_swa chameleon bailingmoe neo-bert smollm3 arcee
    ernie4_5 ernie4_5-moe mistral3 mistral4 llama-embed maincoder glm-dsa nanbeige pockettts glm4 llama4 cohere2moe
    deepseek4 dots3note hy_v4 graniteswitch bailingmoe3"""
)
HALF = _words(
    """falcon falcon-h1 grok dbrx jina-bert-v3 modern-bert nomic-bert nomic-bert-moe eurobert stablelm bitnet qwen
    qwen2 dream qwen2moe qwen3 qwen3moe llada-moe rnd1 olmo2 olmoe phi2 phi3 phimoe plamo plamo2 plamo3 gemma gemma2
    gemma3 gemma3n gemma4 gemma-embedding starcoder2 openelm gptneox codeshell orion nemotron exaone exaone4 exaone-moe
    minicpm3 bailingmoe2 dots1 hunyuan-moe jais2 gpt-oss hunyuan-dense hunyuan_vl hy_v3 lfm2 lfm2moe smallthinker
    seed_oss grovemoe apertus minimax-01 minimax-m2 minimax-m3 pangu-embedded afmoe laguna qwen3next mimo2 spark2_5
    talkie mellum maple hrm_text glm4moe qwen2vl paddleocr qwen3vl qwen3vlmoe qwen35 qwen35moe qwen3tts qwen4exp step35
    cogvlm deepseek2-ocr"""
)
WITHOUT_ROTATION = _words(
    """gpt2 mpt refact bloom mamba mamba2 jamba bert jina-bert-v2 starcoder t5 t5encoder jais rwkv6 rwkv6qwen2
    rwkv7 arwkv7 wavtokenizer-dec nemotron_h nemotron_h_moe kimi-linear kimi-k3 glm5-next"""
)
# These do not load without a learned vector for each position. Other architectures may have the tensor.
LEARNED_POSITIONS = frozenset({"bert", "gpt2", "starcoder"})
POSITION_EMBEDDINGS = "position_embd.weight"
# Their norms read attention.layer_norm_epsilon (LLM_KV_ATTENTION_LAYERNORM_EPS in src/models/*.cpp); all other
# architectures read attention.layer_norm_rms_epsilon.
LAYER_NORMS = _words(
    """bert bloom codeshell cohere2 cohere2moe command-r dbrx falcon glm5-next gpt2 gptneox jais jais2 jina-bert-v2
    jina-bert-v3 modern-bert mpt nemotron nemotron_h nemotron_h_moe nomic-bert nomic-bert-moe olmo orion phi2 pockettts
    rwkv6 rwkv6qwen2 rwkv7 arwkv7 stablelm starcoder starcoder2 wavtokenizer-dec"""
)
# Architectures that are not described here, with the reason after "llama.cpp". Draft models belong to one main model
# and run only in its context (dflash.cpp, eagle3.cpp, gemma4-assistant.cpp), so positions and length come from the main
# model.
DRAFTS = {
    "dflash": "runs it only as a draft model, on hidden states of the main model",
    "eagle3": "runs it only as a draft model, on hidden states of three layers of the main model",
    "gemma4-assistant": "runs it only as a draft model of gemma4, on cached keys of the main model",
}
UNDESCRIBED = {
    "clip": "runs it to encode images or sound, not text", "gptj": "knows its name and cannot run it", **DRAFTS,
}  # fmt: skip
# With image sections in the file these pair channels half a head apart; text has one position for all sections.
HALF_WITH_SECTIONS = frozenset({"glm4", "bailingmoe3"})
# llama, deci, falcon and llama-embed stop in the loader (llama-model.cpp:1450); the graphs of the others assert
# n_embd_head == n_rot. Some share a graph: granitemoe and minicpm granite's (granite.cpp:131), hunyuan-dense that of
# hunyuan_vl (hunyuan-vl.cpp:64), qwen3tts that of qwen3vl (qwen3vl.cpp:67). The assertion is commented out in
# minimax-01.cpp:196, minimax-m2.cpp:51 and nemotron.cpp:54, which rotate a part of each head. bailingmoe and gpt-oss
# use rope.dimension_count as the size of a head, and stop if the keys have a different size.
WHOLE_HEADS = _words(
    """llama llama-embed deci falcon apertus arcee arctic baichuan chameleon codeshell dbrx deepseek dots1 dream
    ernie4_5 ernie4_5-moe exaone exaone4 exaone-moe granite granitemoe granite_swa minicpm grok grovemoe hunyuan-dense
    hunyuan-moe hunyuan_vl hy_v3 internlm2 jais2 llada llada-moe maincoder mellum mistral3 olmo olmo2 olmoe orion
    paddleocr pangu-embedded plamo pockettts qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe qwen3tts rnd1
    seed_oss smallthinker smollm3 starcoder2 talkie xverse llama4 cohere2moe graniteswitch
    cogvlm bailingmoe gpt-oss"""
)
FIXED_BASES = {"cogvlm": 10000.0, "deepseek2-ocr": 10000.0}  # cogvlm.cpp:115, deepseek2.cpp:484
OF_EMBEDDING = frozenset({"deepseek2-ocr"})  # rotates embedding / heads channels, and ignores rope.dimension_count
HALVED = frozenset({"step35"})  # full layers rotate half of rope.dimension_count (step35.cpp:9)
MLA = frozenset({"deepseek2", "deepseek32", "mistral4", "glm-dsa"})
DECOUPLED = frozenset({"bailingmoe3", "dots3note", "hy_v4"})  # like MLA, but without a factor on the whole score
WITH_A_GRAPH_OF_MLA = frozenset({"deepseek2-ocr"})  # it scales the score like deepseek2, and has a separate rotation
# With the MLA lengths in the file, the cache only has latent keys.
READS_MLA_LENGTHS = MLA | DECOUPLED | {"kimi-linear", "kimi-k3", "glm5-next"}
NORM_AFTER = frozenset({"hunyuan-moe", "hunyuan-dense", "hunyuan_vl", "maincoder", "talkie", "llama4"})
NORM_UNLESS_EXPERTS = {"llama4": 128}  # with this number of experts there is no norm (llama4.cpp:41)
WITHOUT_FACTOR = frozenset({"deepseek4"})  # deepseek4.cpp:11
GRANITE = frozenset({"granite", "granitehybrid", "graniteswitch"})  # rope.scaling.finetuned = false: no rotation
RECURRENT_WITHOUT_HEADS = frozenset({"lfm2", "lfm2moe", "plamo2", "granitehybrid", "bailingmoe3"})  # no key heads
# Every n-th layer attends, the last of each n. The other layers keep a state.
RECURRENT_BY_INTERVAL = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}

# --- frequency vectors
FREQS = _words(
    """llama llama-embed mistral3 deci minicpm granite granitemoe granite_swa granitehybrid apertus arcee nanbeige
    exaone exaone4 exaone-moe gemma4 llama4 step35"""
)
FREQS_UNUSED = frozenset({"falcon-h1", "llada", "pangu-embedded", "refact", "cogvlm"})  # loaded, but not used
LISTS = frozenset({"phi3", "phimoe", "minicpm3"})  # for any scaling type
LISTS_FOR_LONGROPE = _words(
    "llama llama-embed deci minicpm mistral3 granite granitemoe granite_swa apertus pangu-embedded refact step35"
)
FREQS_REQUIRED = frozenset({"gemma4"})
# In their files, as convert_hf_to_gguf.py writes them, a pair with this divisor never rotates.
STANDS_STILL = 1e30
# A divisor for each pair of the head. The rotating pairs use the first ones.
FREQS_OF_HEADS = frozenset({"gemma4", "phimoe"})
FREQS_ON_FULL_LAYERS = frozenset({"gemma4", "step35"})  # the divisors apply only to full layers

SLIDING = {
    "afmoe": Sliding(required=True, pattern=4),
    "cohere2": Sliding(required=True, pattern=4, shares_base=True),
    "cohere2moe": Sliding(required=True, pattern=4, dense_first=True, shares_base=True),
    "deepseek4": Sliding(required=True, plain=True, uncompressed=True),
    "dots3note": Sliding(required=True, needs_base=True),
    "exaone4": Sliding(default=4096, pattern=4, shares_base=True, layer_count=64),
    "exaone-moe": Sliding(required=True, pattern=4, shares_base=True),
    "gemma2": Sliding(default=4096, pattern=2),
    "gemma3": Sliding(pattern=6, own_base=True, scaled=False),
    "gemma3n": Sliding(required=True, pattern=5, own_base=True, scaled=False),
    "gemma4": Sliding(required=True, own_base=True, scaled=False, own_dims=True),
    "gemma-embedding": Sliding(required=True, pattern=6, own_base=True, scaled=False),
    "gpt-oss": Sliding(required=True, pattern=2),
    "granite_swa": Sliding(required=True, shares_base=True),
    "laguna": Sliding(pattern=4, dense_first=True, plain=True, own_dims=True, first_dims=True),  # laguna.cpp:179
    "lfm2": Sliding(pattern=0, shares_base=True),
    "llama4": Sliding(default=8192, fixed=8192, pattern=4, chunked=True),
    "maple": Sliding(required=True, own_dims=True),
    "mellum": Sliding(pattern=4, shares_base=True, plain=True),
    "mimo2": Sliding(required=True, own_base=True, scaled=False),
    "modern-bert": Sliding(pattern=3, dense_first=True, own_base=True, scaled=False),
    "muse-glimmer": Sliding(required=True, pattern=4, scaled=False),
    "olmo2": Sliding(pattern=4, shares_base=True, plain=True),
    "plamo3": Sliding(pattern=8, own_base=True, scaled=False),
    "smallthinker": Sliding(fixed=4096, pattern=4, dense_first=True),
    "spark2_5": Sliding(required=True, own_dims=True),
    "step35": Sliding(required=True, own_base=True, scaled=False, own_dims=True),
}
# llama.cpp aborts for other architectures if the file sets a window but no layer slides (layers.py).
WITHOUT_SLIDING_CACHE = frozenset({"gemma-embedding", "lfm2", "modern-bert"})
ROTATING = {
    "afmoe": "step",
    "smollm3": "step",
    "smallthinker": "sliding step",
    "cohere2": "sliding",
    "cohere2moe": "sliding or dense",
    "llama4": "step",
    "exaone4": "sliding",
    "exaone-moe": "sliding",
    "muse-glimmer": "sliding",
    "maple": "sliding",
}
# With 40 layers llama.cpp uses ALiBi, and with any other number no positions (baichuan.cpp:77).
LAYER_COUNTS = {"baichuan": 32}
_YARN_KEYS = frozenset({YARN_BETA_FAST, YARN_BETA_SLOW})
KEYS = {
    "grok": _YARN_KEYS | {YARN_EXT_FACTOR, YARN_ATTN_FACTOR},
    "mistral3": _YARN_KEYS | {YARN_LOG_MULTIPLIER, TEMPERATURE_SCALE},
    "deepseek2": frozenset({YARN_LOG_MULTIPLIER, TEMPERATURE_SCALE, TEMPERATURE_LENGTH}),
    "mistral4": frozenset({YARN_LOG_MULTIPLIER, TEMPERATURE_SCALE, TEMPERATURE_LENGTH}),
    "deepseek32": frozenset({YARN_LOG_MULTIPLIER}),
    "granite_swa": frozenset({ROPE_PATTERN}),
    **dict.fromkeys(HALF_WITH_SECTIONS, frozenset({DIMENSION_SECTIONS})),
    "cohere2moe": frozenset({LEADING_DENSE}),
    "llama4": frozenset({EXPERT_COUNT}),
    "deepseek2-ocr": frozenset({FREQ_BASE, SCALING_TYPE, FACTOR, SCALE_LINEAR, ATTN_FACTOR}),
    **dict.fromkeys(GRANITE, frozenset({FINETUNED})),
    "hunyuan-dense": frozenset({ALPHA}),
    "hunyuan_vl": frozenset({ALPHA, DIMENSION_SECTIONS}),
}


@cache
def _architectures() -> dict[str, Architecture]:
    layouts = dict.fromkeys(INTERLEAVED, "interleaved") | dict.fromkeys(HALF, "half")
    return {
        name: _architecture(name, layout) for name, layout in (layouts | dict.fromkeys(WITHOUT_ROTATION, "")).items()
    }


@cache
def _of_families() -> dict[str, Architecture]:
    """Return the plain architectures that only a family's file describes. Reads the files of all exported families."""
    known = map(families.get, families.exported())
    return {
        f.gguf_architecture: Architecture(
            f.gguf_architecture, f.llama_cpp.layout, vectors=f.llama_cpp.vectors, whole_heads=f.llama_cpp.whole_heads
        )
        for f in known
        if f.llama_cpp is not None
    }  # fmt: skip


def _architecture(name: str, layout: str) -> Architecture:
    sliding = SLIDING.get(name)
    return Architecture(
        name, layout, KEYS.get(name, frozenset()) | _sliding_keys(name, sliding),
        vectors=name in FREQS or name in LISTS, whole_heads=name in WHOLE_HEADS, sliding=sliding,
        rotating=ROTATING.get(name, "all"), layer_count=LAYER_COUNTS.get(name), norm_after=name in NORM_AFTER,
        fixed_base=FIXED_BASES.get(name, 0.0),
    )  # fmt: skip


def _sliding_keys(name: str, sliding: Sliding | None) -> frozenset[str]:
    if sliding is None:
        return frozenset()
    if sliding.uncompressed:
        return frozenset({SLIDING_WINDOW, DIMENSION_COUNT_SWA, KEY_LENGTH_SWA, COMPRESS_RATIOS, COMPRESS_FREQ_BASE})
    keys = {SLIDING_WINDOW, DIMENSION_COUNT_SWA, KEY_LENGTH_SWA}
    if name != "lfm2":
        keys.add(SLIDING_WINDOW_PATTERN)
    if not sliding.shares_base:
        keys.add(FREQ_BASE_SWA)
    return frozenset(keys)
