"""A model_type that only remote code knows, read as a built-in class: chosen with --as, never guessed, never run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from models import config_of, copied, set_config
from running import run

import ropetool
from ropetool.checkpoint.likeness import alike, misfit
from ropetool.errors import InvalidRope, LossyExport, UnknownFamily
from ropetool.families import exported, get
from ropetool.runtimes import inspection

LLAMA = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.2,
}  # fmt: skip
REMOTE = {
    "model_type": "acme", "architectures": ["AcmeForCausalLM"],
    "auto_map": {"AutoConfig": "code.AcmeConfig", "AutoModelForCausalLM": "code.AcmeForCausalLM"},
}  # fmt: skip


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny llama as transformers saves it."""
    torch.manual_seed(3)
    made = tmp_path_factory.mktemp("as") / "llama"
    transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**LLAMA, architectures=["LlamaForCausalLM"])
    ).save_pretrained(made)
    return made


@pytest.fixture
def acme(llama: Path, tmp_path: Path) -> Path:
    """Return the same weights under a model_type of remote code, which stops whoever runs it."""
    made = copied(llama, tmp_path / "acme", **REMOTE)
    (made / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit('remote code was run')\n")
    return made


def test_the_refusal_names_the_class_and_the_option(acme: Path) -> None:
    with pytest.raises(UnknownFamily, match="tensor names match llama") as refused:
        ropetool.plan(acme, "yarn", factor=4)
    assert refused.value.try_.startswith("--as llama")
    assert any("--as llama" in note for note in inspection.inspect(acme).notes)
    set_config(acme, architectures=["Qwen2ForCausalLM"])
    with pytest.raises(UnknownFamily, match="its class Qwen2ForCausalLM belongs to qwen2") as refused:
        ropetool.plan(acme, "yarn", factor=4)
    assert refused.value.try_.startswith("--as qwen2")


def test_the_output_is_one_of_that_class_and_computes_what_it_does(acme: Path, llama: Path, tmp_path: Path) -> None:
    plan = ropetool.plan(acme, "yarn", factor=4, as_type="llama")
    made = ropetool.apply(plan, acme, tmp_path / "out").output
    config = config_of(made)
    assert (config["model_type"], config["architectures"]) == ("llama", ["LlamaForCausalLM"])
    assert "auto_map" not in config
    theirs = ropetool.apply(ropetool.plan(llama, "yarn", factor=4), llama, tmp_path / "theirs").output
    ids = torch.arange(200)[None] % 64
    found, wanted = (
        transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)(ids).logits
        for path in (made, theirs)
    )
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    unextended = transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)(ids).logits
    assert (wanted - unextended).abs().max() > 1e-3
    assert not (tmp_path / "ran").exists()


def test_a_source_of_remote_code_is_the_baseline_by_the_same_class(acme: Path, tmp_path: Path) -> None:
    from ropetool.verification.runners.torch_runner import TorchRunner

    tokens = transformers.PreTrainedTokenizerFast(tokenizer_object=_tokenizer())
    tokens.save_pretrained(acme)
    runner = TorchRunner(acme, device="cpu", as_type="llama")
    reference = transformers.LlamaForCausalLM.from_pretrained(
        acme.parent / "acme", config=transformers.LlamaConfig(**LLAMA)
    )
    ids = list(range(40))
    found = [logits for _, logits in runner.logits(ids)]
    wanted = reference(torch.tensor([ids])).logits[0].detach().numpy()
    assert abs(sum(len(part) for part in found) - 40) <= 1
    assert float(abs(found[0] - wanted[: len(found[0])]).max()) < 1e-5
    assert not (tmp_path / "ran").exists()


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models

    return Tokenizer(models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w0"))


@pytest.mark.parametrize(
    ("as_type", "error", "says"),
    [
        ("qwen3", LossyExport, "lacks model.layers.0.self_attn.k_norm.weight"),
        ("phi3", LossyExport, "gate_proj.weight, which that class does not have"),
        ("nosuch", UnknownFamily, "unknown model family 'nosuch'"),
        ("bert", InvalidRope, "bert has no rotary positions"),
    ],
)
def test_a_class_that_does_not_fit_is_refused(acme: Path, as_type: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        ropetool.plan(acme, "yarn", factor=4, as_type=as_type)


@pytest.mark.parametrize("own", ["llama", "llava", "bert"])
def test_a_type_that_is_known_stays_what_it_is(acme: Path, own: str) -> None:
    set_config(acme, model_type=own)
    with pytest.raises(InvalidRope, match="is a known type"):
        ropetool.plan(acme, "yarn", factor=4, as_type="mistral")


def test_another_name_of_a_family_becomes_that_family(tmp_path: Path) -> None:
    from models import write_config

    source = write_config(tmp_path / "m", {"model_type": "kimi_k2", "auto_map": {}, **LLAMA})
    plan = ropetool.plan(source, "yarn", factor=4, as_type="deepseek_v3")
    assert plan.family == "deepseek_v3"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"text_config": {"rope_theta": 1e6}}, "hidden_size is missing"),
        ({"max_position_embeddings": None}, "max_position_embeddings is missing"),
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
    ],
)
def test_keys_that_are_not_where_the_class_looks_are_not_filled_in(
    acme: Path, change: dict[str, Any], says: str
) -> None:
    set_config(acme, **change)
    with pytest.raises(InvalidRope, match=says):
        ropetool.plan(acme, "yarn", factor=4, as_type="llama")


def test_a_class_of_several_types_is_first_that_of_the_one_written_by_hand(acme: Path) -> None:
    set_config(acme, architectures=["LlamaForCausalLM"])
    with pytest.raises(UnknownFamily) as refused:
        ropetool.plan(acme, "yarn", factor=4)
    assert refused.value.try_.startswith("--as llama")


def test_on_the_command_line(acme: Path) -> None:
    found = run("extend", str(acme), "--method", "yarn", "--factor", "4", "--as", "llama", "--dry-run")
    assert found.code == 0, found.err
    assert '"acme" -> "llama"' in found.out
    assert "serve the output" in found.out
    shown = run("inspect", str(acme), "--as", "llama")
    assert "--target-length 128 --as llama" in shown.out


def test_each_family_with_a_table_is_told_by_the_names_that_transformers_gives(llama: Path) -> None:
    from safetensors import safe_open

    with safe_open(llama / "model.safetensors", "np") as file:
        tensors = set(file.keys())
    assert alike({}, tensors)[1][0] == "llama"
    assert not misfit(get("llama"), tensors)
    fits = {name for name in exported() if get(name).alone and not misfit(get(name), tensors)}
    assert "qwen3" not in fits
    assert "gemma2" not in fits


def test_a_wrapper_is_no_class_to_read_as_and_its_text_model_is_named(acme: Path) -> None:
    done = run("inspect", acme, "--as", "qwen3_vl")
    assert (done.code, done.err) == (
        1,
        "Error: --as: qwen3_vl is a wrapper around a text model; --as requires the type of the text model\n"
        "Try: --as qwen3_vl_text\n",
    )
    named = run("inspect", acme, "--as", "qwen3_vl_text")
    assert (
        named.code,
        "the model does not match qwen3_vl_text: it lacks model.layers.0.self_attn.k_norm" in named.err,
    ) == (
        1,
        True,
    )
    typo = run("inspect", acme, "--as", "qwen22")
    assert typo.code == 1
    assert "(did you mean qwen2 or qwen?)" in typo.err
