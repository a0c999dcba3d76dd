"""What flags do, against the programs themselves: overrides of configs in vLLM and SGLang, options in libllama.

vLLM and SGLang: their own loading and merging, then their own rotary classes; recorded answers always. llama.cpp: a
file opened with the options that are printed gives the logits of the file that the plan writes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf_logits
import numpy as np
import peers
import pytest
from gguf_files import TARGET, TRAINED, Tiny

import ropetool
from ropetool import families
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.plans import flags
from ropetool.runtimes import config_overrides

RELEASES = [(program, version) for program in peers.WITH_FLAGS for version in peers.RELEASES[program]]
MERGES = {("sglang", "0.5.23")}  # the others take an object of rope keys as it is given


def differences(
    program: str, version: str, answers: Mapping[str, Any], *, merges: bool | None = None
) -> dict[str, Any]:
    """Return where the decoder, asked for the config that the overrides are said to make, and the program differ."""
    runtime, found = peers.runtime_of(program, version), {}
    way = (program, version) in MERGES if merges is None else merges
    for name, data in peers.flagged().items():
        overrides = data.pop(peers.OVERRIDES)
        made = config_overrides.overridden(HfCheckpoint(data, families.get(data["model_type"])), overrides, merges=way)
        reasons = peers.differences(runtime, made, answers[name])
        if reasons:
            found[name] = reasons
    return found


@pytest.mark.parametrize(("program", "version"), RELEASES)
def test_overrides_do_what_is_said(program: str, version: str) -> None:
    assert differences(program, version, peers.golden(program, version, flags=True)) == {}


@pytest.mark.parametrize(("program", "version"), RELEASES)
def test_overrides_of_a_release_at_hand(program: str, version: str, tmp_path: Path) -> None:
    assert differences(program, version, peers.asked_live(program, version, tmp_path, flags=True)) == {}


def test_another_way_to_merge_is_seen() -> None:
    newest = peers.golden("sglang", "0.5.23", flags=True)
    assert "llama-yarn-attn" in differences("sglang", "0.5.23", newest, merges=False)
    newest = peers.golden("vllm", "0.33.0", flags=True)
    assert "llama-yarn-attention-1.5" in differences("vllm", "0.33.0", newest, merges=True)


# --- llama.cpp


FIELDS = {
    "--rope-scale": ("rope_freq_scale", lambda text: 1 / float(text)), "--rope-freq-base": ("rope_freq_base", float),
    "--yarn-orig-ctx": ("yarn_orig_ctx", int), "--yarn-beta-fast": ("yarn_beta_fast", float),
    "--yarn-beta-slow": ("yarn_beta_slow", float),
    "--rope-scaling": ("rope_scaling_type", {"none": 0, "linear": 1, "yarn": 2}.__getitem__),
}  # fmt: skip
KINDS = {"int": 0, "float": 1, "bool": 2, "str": 3}


def options_of(line: str) -> dict[str, str]:
    words = shlex.split(line)[1:]
    assert words[:2] == ["llama-server", "-m"]
    return dict(zip(words[3::2], words[4::2], strict=True))


@contextmanager
def defaults(lib: Any, options: Mapping[str, str]) -> Iterator[None]:
    """Have llama.cpp's default parameters be those of a command line."""
    context, model = lib.llama_context_default_params, lib.llama_model_default_params
    overrides = [item for item in options.get("--override-kv", "").split(",") if item]
    table = (lib.llama_model_kv_override * (len(overrides) + 1))()
    for entry, item in zip(table, overrides, strict=False):
        key, _, typed = item.partition("=")
        kind, _, text = typed.partition(":")
        entry.key, entry.tag = key.encode(), KINDS[kind]
        if kind == "int":
            entry.value.val_i64 = int(text)
        elif kind == "float":
            entry.value.val_f64 = float(text)
        else:
            entry.value.val_str = text.encode()

    def of_context() -> Any:
        params = context()
        for option, (name, kind) in FIELDS.items():
            if option in options:
                setattr(params, name, kind(options[option]))
        return params

    def of_model() -> Any:
        params = model()
        params.kv_overrides = table if overrides else None
        return params

    lib.llama_context_default_params, lib.llama_model_default_params = of_context, of_model
    try:
        yield
    finally:
        lib.llama_context_default_params, lib.llama_model_default_params = context, model


def reached(lib: Any, path: Path, options: Mapping[str, str]) -> tuple[np.ndarray, int]:
    """Return the logits of a file with these options, and the context that llama.cpp then gives the model."""
    with defaults(lib, options):
        with gguf_logits.context(path, int(options["-c"])) as opened:
            context = lib.llama_model_n_ctx_train(lib.llama_get_model(opened))
        return gguf_logits.llama_logits(path, int(options["-c"])), context


def difference(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / np.abs(b).max())


def options_for_two(scale: str, base: str) -> dict[str, str]:
    """Return the options that set the fields which two numbers set: the scale of positions, the base."""
    return {"--rope-scale": str(1 / float(scale)), "--rope-freq-base": base}


YARN_KEYS = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.scaling.original_context_length": TRAINED,
    "context_length": 2 * TRAINED, "rope.scaling.attn_factor": 0.9,
}  # fmt: skip
PLANS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "yarn": ("llama", {}, "yarn", {}),
    "ntk-by-parts": ("qwen2", {}, "ntk-by-parts", {}),
    "betas": ("llama", {}, "yarn", {"params": {"beta_fast": 16, "beta_slow": 2}}),
    "betas without a factor": ("llama", {}, "yarn", {"params": {"beta_fast": 8}, "attention_factor": "none"}),
    "linear": ("qwen3", {}, "linear", {}),
    "another base": ("qwen2", {}, "ntk", {}),
    "from a scaled file": ("qwen2", YARN_KEYS, "yarn", {"reading": "original"}),
    "a scaled file without its scaling": ("llama", YARN_KEYS, "ntk", {"reading": "original"}),
}


@pytest.mark.parametrize("case", PLANS)
def test_llama_cpp_computes_the_same_with_options_as_from_the_written_file(case: str, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    lib = gguf_logits.library()
    arch, keys, method, more = PLANS[case]
    source = Tiny(arch, {"context_length": TRAINED, **keys}).write(tmp_path / "source.gguf")
    made = ropetool.plan(source, method, target_length=TARGET, **more)
    line, *embedded = flags.flag_lines(made, source)
    options = options_of(line)
    output = tmp_path / "output.gguf"
    ropetool.apply(made, source, output)
    wanted = gguf_logits.llama_logits(output, TARGET)
    found, context = reached(lib, source, options)
    assert context >= TARGET  # llama-server gives a request no more than this
    assert difference(found, wanted) < 1e-5
    assert (len(embedded) == 2) is (case in ("linear", "another base"))
    if len(embedded) == 2:  # KoboldCpp hands both numbers to llama.cpp
        scale, base = shlex.split(embedded[0])[-2:]
        found, _ = reached(lib, source, {**options_for_two(scale, base), "-c": str(TARGET)})
        assert difference(found, wanted) < 1e-5
    plain, _ = reached(lib, source, {"-c": str(TARGET)})
    assert difference(plain, wanted) > 20e-5  # without the options it is something else


def test_a_yarn_scale_that_is_not_the_files_sets_the_context(tmp_path: Path) -> None:
    """In float32, and cut to a whole number: 512 / (1 / 1.625f) is 831, so such a plan is said by --override-kv."""
    pytest.importorskip("llama_cpp")
    lib = gguf_logits.library()
    source = Tiny("qwen2", {"context_length": TRAINED}).write(tmp_path / "source.gguf")
    options = {"-c": "832", "--rope-scaling": "yarn", "--rope-scale": "1.625", "--yarn-orig-ctx": "512"}
    with defaults(lib, options), gguf_logits.context(source, 832) as opened:
        assert lib.llama_model_n_ctx_train(lib.llama_get_model(opened)) == 831
    line = flags.flag_lines(ropetool.plan(source, "yarn", target_length=832), source)[0]
    with defaults(lib, options_of(line)), gguf_logits.context(source, 832) as opened:
        assert lib.llama_model_n_ctx_train(lib.llama_get_model(opened)) == 832
