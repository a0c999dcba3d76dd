"""Keys of an architecture, planted and removed one by one: import reads each key, shows that it has no effect, or refuses.

The table of keys is the one that scripts/gguf_keys/gguf_key_types.py reads from llama.cpp's loader. The oracle is libllama: a file
that import takes computes there what it did before, or what transformers computes with the imported config.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from configs import EXPORTED
from running import run

from ropetool import families
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import InvalidRope, LossyExport, RopetoolError
from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched
from ropetool.gguf_import import import_gguf
from ropetool.gguf_import.config import Described, described
from ropetool.runtimes.llama_cpp import key_types

FAMILIES = sorted(name for name in EXPORTED if families.get(name).alone)
AS = {"helium": "helium"}
# Keys without effect at these values; at any other value import refuses them, unless the family reads them.
HARMLESS: dict[str, Any] = {
    "attention.causal": True, "expert_weights_norm": False,
    **dict.fromkeys(
        ("expert_count", "expert_used_count", "expert_shared_count", "expert_group_count", "expert_group_used_count",
         "expert_feed_forward_length", "expert_shared_feed_forward_length", "expert_weights_scale",
         "leading_dense_block_count", "nextn_predict_layers", "pooling_type", "embedding_length_out", "logit_scale",
         "residual_scale", "embedding_scale", "final_logit_softcapping", "attention.scale", "attention.clamp_kqv",
         "attention.max_alibi_bias", "attention.shared_kv_layers"),
        0,
    ),
}  # fmt: skip
POSITIONS = ("rope.", "context_length", "attention.sliding_window", "attention.temperature_")
# What llama.cpp works out or assumes if the key is missing.
MAY_MISS = {
    "vocab_size", "attention.head_count_kv", "attention.key_length", "attention.value_length", "expert_group_count",
    "expert_group_used_count", "expert_gating_func", "expert_weights_norm", "expert_weights_scale", "expert_shared_count",
    "embedding_scale", "residual_scale", "attn_logit_softcapping", "final_logit_softcapping", "attention.clamp_kqv",
    "full_attention_interval", "use_parallel_residual",
}  # fmt: skip
ODD = {"u32": (0, 7), "f32": (0.0, 0.37), "bool": (False, True), "str": ("odd",), "u16": (7,), "i32": (7,)}
TYPES = {"u32": ValueType.U32, "f32": ValueType.F32, "bool": ValueType.BOOL, "str": ValueType.STR, "u16": ValueType.U16,
         "i32": ValueType.I32}  # fmt: skip
Files = Callable[[str], GgufCheckpoint]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Export a tiny checkpoint of a family, once."""
    made: dict[str, GgufCheckpoint] = {}

    def make(family: str) -> GgufCheckpoint:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            options: dict[str, Any] = {"allow_full_attention": True, "allow_unverified": True, "sidecars": False}
            source = models.write(folder / "source", family)
            made[family] = GgufCheckpoint.open(models.export(source, folder / "m.gguf", **options).output)
        return made[family]

    return make


def taken(view: GgufCheckpoint, family: str) -> Described | None:
    """Return what import makes of a file, None if it refuses."""
    try:
        return described(view, AS.get(family, ""))
    except RopetoolError:
        return None


def plants(model: GgufCheckpoint) -> Iterator[tuple[str, Value]]:
    """Yield each key of llama.cpp's loader, and one that nobody knows, with values that this model may not have."""
    for template, types in {**key_types.facts()["loaded"], "%s.no_such_key": ["u32", "f32", "bool", "str"]}.items():
        if template.startswith("%s."):
            key = template.removeprefix("%s.")
            for name in types:
                for value in ODD.get(name, ()):
                    yield key, Value.of(TYPES[name], value)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_planted_key_is_read_harmless_or_refused(family: str, files: Files) -> None:
    model = files(family)
    assert taken(model, family) is not None
    written = {key.removeprefix(f"{model.name}.") for key in model.values}
    for key, value in plants(model):
        made = taken(model.after(Patch(set={f"{model.name}.{key}": value})), family)
        if key in written or key.startswith(POSITIONS):
            continue  # read: other tests compare what follows from it
        harmless = key in HARMLESS and value.decode() == HARMLESS[key]
        # A class whose number for the key was 0 reads it, as gemma3 reads a cap of logits.
        reads = made is not None and any(key in name for name in families.get(made.family.model_type).export.keys)  # type: ignore[union-attr]
        assert (made is not None) == harmless or reads, (key, value.decode())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_key_is_assumed_by_llama_cpp_or_refused(family: str, files: Files) -> None:
    model = files(family)
    for key in model.values:
        suffix = key.removeprefix(f"{model.name}.")
        if key == suffix or suffix.startswith(POSITIONS):
            continue
        made = taken(model.after(Patch(remove=frozenset({key}))), family)
        assert made is None or suffix in MAY_MISS, suffix


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_to_later_tokens_and_a_missing_epsilon_are_refused(family: str, files: Files) -> None:
    model = files(family)
    causal = model.after(Patch(set={f"{model.name}.attention.causal": Value.of(ValueType.BOOL, False)}))
    with pytest.raises(LossyExport, match=rf"attention\.causal is false, which a {family} config cannot set"):
        described(causal, family)
    # Without the class, others of the architecture may object first; this sentence is among theirs.
    with pytest.raises(RopetoolError, match=r"attention\.causal is false, which a .* config cannot set"):
        described(causal, AS.get(family, ""))
    epsilon = next(key for key in model.values if key.endswith("_epsilon"))
    with pytest.raises(
        InvalidRope, match=rf"{epsilon} is missing, and llama\.cpp loads no {model.name} model"
    ) as refused:
        described(model.after(Patch(remove=frozenset({epsilon}))), AS.get(family, ""))
    assert refused.value.try_


# Of each: keys of the file that llama.cpp reads or ignores, at values that import takes.
RUN = (
    "llama",
    "qwen2",
    "gemma2",
    "gemma3_text",
    "granite",
    "glm4_moe",
    "deepseek_v3",
    "stablelm",
    "olmo",
    "qwen3_5_text",
)


@pytest.mark.parametrize("family", RUN)
def test_llama_cpp_computes_what_the_imported_config_does(family: str, files: Files, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    model = files(family)
    before = models.llama_logits(model.path, 64)
    patches = [
        Patch(remove=frozenset({f"{model.name}.{key}"}))
        for key in sorted(MAY_MISS)
        if f"{model.name}.{key}" in model.values
    ]
    patches += [
        Patch(set={f"{model.name}.{key}": value})
        for key, value in plants(model)
        if key in HARMLESS and f"{model.name}.{key}" not in model.values
    ]
    tried = 0
    for number, patch in enumerate(patches):
        made = taken(model.after(patch), family)
        if made is None:
            continue
        file = tmp_path / f"{number}.gguf"
        write_patched(read_header(model.path), patch, file)
        after = models.llama_logits(file, 64)
        if np.array_equal(after, before) and made.view.config == described(model, AS.get(family, "")).view.config:
            tried += 1
            continue
        back = import_gguf(file, tmp_path / f"{number}", check=False, as_type=AS.get(family, "")).output
        tolerance = 5e-3 if family in models.TABLED else 2e-4
        assert models.apart(after, models.torch_logits(back, 64)) < tolerance, patch
        tried += 1
    assert tried > 10


def test_the_command_refuses_without_the_check_too(files: Files, tmp_path: Path) -> None:
    model = files("llama")
    patch = Patch(set={"llama.attention.causal": Value.of(ValueType.BOOL, False)})
    write_patched(read_header(model.path), patch, tmp_path / "odd.gguf")
    for command in (
        ("import", str(tmp_path / "odd.gguf"), "-o", str(tmp_path / "back"), "--no-check"),
        ("identify", "--gguf", str(tmp_path / "odd.gguf"), "--prompts-out", str(tmp_path / "prompts.json")),
    ):
        done = run(*command)
        assert done.code == 1
        assert done.err.count("llama.attention.causal is false") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["odd.gguf"]
