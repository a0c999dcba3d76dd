"""The promises on files with a whole vocabulary: a small one made here, and the real ones where they are present."""

from __future__ import annotations

import filecmp
import os
from pathlib import Path

import pytest
from gguf_files import vocabulary

from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched

from .test_writer import assert_patched, patched

ROOT = os.environ.get("ROPETOOL_REAL_FILES")
REAL = sorted(Path(ROOT, "vocab-gguf").glob("*.gguf")) if ROOT else []

ROPE_KEYS = {
    "context_length": Value.of(ValueType.U32, 131072),
    "rope.freq_base": Value.of(ValueType.F32, 1234567.0),
    "rope.freq_base_swa": Value.of(ValueType.F32, 1e4),
    "rope.scaling.type": Value.of(ValueType.STR, "yarn"),
    "rope.scaling.factor": Value.of(ValueType.F32, 4.0),
    "rope.scale_linear": Value.of(ValueType.F32, 4.0),
    "rope.scaling.attn_factor": Value.of(ValueType.F32, 0.5),
    "rope.scaling.original_context_length": Value.of(ValueType.U32, 32768),
    "rope.scaling.finetuned": Value.of(ValueType.BOOL, True),
    "rope.scaling.alpha": Value.of(ValueType.F32, 1000.0),
    "rope.scaling.yarn_beta_fast": Value.of(ValueType.F32, 32.0),
    "rope.scaling.yarn_beta_slow": Value.of(ValueType.F32, 1.0),
    "rope.scaling.yarn_ext_factor": Value.of(ValueType.F32, 1.0),
    "rope.scaling.yarn_attn_factor": Value.of(ValueType.F32, 1.0),
    "rope.scaling.yarn_log_multiplier": Value.of(ValueType.F32, 0.1),
    "rope.dimension_count": Value.of(ValueType.U32, 40),
    "rope.dimension_count_swa": Value.of(ValueType.U32, 64),
    "rope.dimension_sections": Value.array(ValueType.I32, [16, 24, 24, 0]),
    "attention.key_length": Value.of(ValueType.U32, 128),
    "attention.temperature_scale": Value.of(ValueType.F32, 0.1),
    "attention.temperature_length": Value.of(ValueType.U32, 8192),
    "attention.rope_pattern": Value.array(ValueType.BOOL, [True, True, False, True]),
    "attention.compress_rope_freq_base": Value.of(ValueType.F32, 1e4),
    "attention.scale": Value.of(ValueType.F32, 0.125),
}


@pytest.fixture(params=[None, *REAL], ids=lambda path: path.stem if path else "made here")
def source(request, tmp_path) -> Path:
    path = tmp_path / "source.gguf"
    if request.param is None:
        return vocabulary(path)
    path.symlink_to(request.param)
    return path


@pytest.mark.skipif(not ROOT, reason="ROPETOOL_REAL_FILES names no folder of real files")
def test_the_real_files_are_there():
    assert len(REAL) >= 5


def test_a_rewrite_without_changes_is_the_same_file(source):
    assert filecmp.cmp(patched(source, Patch()), source, shallow=False)


@pytest.mark.parametrize("name", ROPE_KEYS)
def test_a_rope_key_set_and_taken_back_leaves_the_same_file(source, tmp_path, name):
    header = read_header(source)
    key = f"{header.get('general.architecture', ValueType.STR)}.{name}"
    there, back = tmp_path / "there.gguf", tmp_path / "back.gguf"
    write_patched(header, Patch(set={key: ROPE_KEYS[name]}), there)
    old, changed = header.values.get(key), read_header(there)
    assert changed.values[key] == ROPE_KEYS[name]
    assert not filecmp.cmp(there, source, shallow=False)
    write_patched(changed, Patch(set={key: old}) if old else Patch(remove=frozenset({key})), back)
    assert filecmp.cmp(back, source, shallow=False)


def test_all_rope_keys_at_once_are_read_by_the_package(tmp_path):
    source = vocabulary(tmp_path / "source.gguf")  # the package's reader would take seconds for a real one
    patch = Patch(set={f"llama.{name}": value for name, value in ROPE_KEYS.items()})
    assert_patched(source, patched(source, patch), patch)


def test_llama_cpp_loads_the_vocabulary_after_a_patch(source):
    pytest.importorskip("llama_cpp")
    from ropetool.verification.runners.llama_library import free, library, load

    arch = read_header(source).get("general.architecture", ValueType.STR)
    keys = ("context_length", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.attn_factor")
    there = patched(source, Patch(set={f"{arch}.{name}": ROPE_KEYS[name] for name in keys}))
    lib = library()
    counts = []
    for path in (source, there):
        model = load(lib, path, gpu=False, vocabulary_only=True)
        counts.append(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)))
        free(lib, model)
    assert counts[0] == counts[1] > 0
