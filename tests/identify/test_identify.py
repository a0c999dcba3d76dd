"""Which table a server computes: engines' mistakes planted by transformers itself, honest ones, and what is none of the list."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf_files
import numpy as np
import pytest
import torch
from model_server import Served, serving
from models import SILENT, config_of, copied, write_config
from running import run
from transformers import AutoTokenizer, LlamaForCausalLM

import ropetool
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import ConfigError, RopetoolError, ServerError
from ropetool.identify import asking, deciding, options, prompts
from ropetool.identify.asking import IdentifyOptions, identify, prepare
from ropetool.identify.hypotheses import AS_MEANT, hypotheses
from ropetool.identify.reference import Reference
from ropetool.servers.base import Answer
from ropetool.servers.http import Http
from ropetool.servers.opening import open_server
from ropetool.verification.runners.torch_runner import TorchRunner

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
LENGTH = 700  # tokens: beyond the 256 that it was trained on
ASKED = IdentifyOptions(LENGTH, 12, "cpu", "float32")
YARN = {
    "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256, "beta_fast": 24.0, "rope_theta": 500000.0,
    "attention_factor": 1.3,
}  # fmt: skip


def changed(folder: Path, target: Path, **keys: Any) -> Path:
    """Return a copy with other rope keys; those of None are taken out."""
    merged = {**config_of(folder)["rope_parameters"], **keys}
    return copied(folder, target, rope_parameters={key: value for key, value in merged.items() if value is not None})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo with keys that are all unlike their defaults."""
    keys = {"rope_scaling": SILENT, "rope_theta": SILENT, "rope_parameters": YARN, "max_position_embeddings": 2048}
    return copied(DEMO, tmp_path_factory.mktemp("served") / "model", **keys)


def served(
    path: Path,
    dtype: torch.dtype = torch.float32,
    scaling: float | None = None,
    texts: Sequence[tuple[int, ...]] = (),
) -> Served:
    """Return a checkpoint run by transformers as a server does.

    scaling: of cos and sin, in place of what its keys say. texts: ids of which one pass answers each prompt that they begin with.
    """
    model, tokenizer, lock = (
        LlamaForCausalLM.from_pretrained(path, dtype=dtype).eval(),
        AutoTokenizer.from_pretrained(path),
        threading.Lock(),
    )

    if scaling is not None:
        model.model.rotary_emb.attention_scaling = scaling

    passes: dict[tuple[int, ...], np.ndarray] = {}

    def log_probs(ids: Sequence[int]) -> np.ndarray:
        text = next((text for text in texts if text[: len(ids)] == tuple(ids)), tuple(ids))
        with lock, torch.no_grad():
            if text not in passes:
                logits = model(torch.tensor([text])).logits[0].double()
                passes[text] = torch.log_softmax(logits, -1).numpy()
        return passes[text][len(ids) - 1]

    return Served(
        "vllm", log_probs, lambda text: tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.decode
    )


@pytest.fixture(scope="module")
def chosen(checkpoint: Path) -> list[prompts.Prompt]:
    """The prompts, which are the same whoever answers."""
    kept: list[prompts.Prompt] = []
    real = prompts.choose

    def keep(*arguments: Any) -> list[prompts.Prompt]:
        kept.extend(real(*arguments))
        return kept

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompts, "choose", keep)
        prepare(HfCheckpoint.open(checkpoint), ASKED)
    return kept


def test_prompts_of_one_text_take_one_pass(
    checkpoint: Path, chosen: list[prompts.Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = HfCheckpoint.open(checkpoint)
    listed = hypotheses(opened)
    passes: list[int] = []
    real = TorchRunner.logits

    def counted(runner: TorchRunner, ids: Sequence[int]) -> Any:
        passes.append(len(ids))
        return real(runner, ids)

    with closing(Reference(opened, listed[0].rope, device="cpu", dtype="float32")) as reference:
        computed = [one for one in listed if reference.computes(one)][:3]
        two = list(dict.fromkeys(prompt.ids[:32] for prompt in chosen))[:2]
        given = [prompt.ids for prompt in chosen if prompt.ids[:32] in two]
        wanted = [[reference.log_probs(one, ids, [len(ids)])[0] for one in computed] for ids in given]
        monkeypatch.setattr(TorchRunner, "logits", counted)
        found = prompts.known(reference, computed, given, lambda *_: None)
    texts = {ids[:32] for ids in given}
    assert len(given) > 2 * len(texts)
    assert len(passes) == len(texts) * len(computed)
    for prompt, ids, rows in zip(found, given, wanted, strict=True):
        assert prompt.ids == ids
        np.testing.assert_allclose(prompt.log_probs, rows, atol=1e-4)


def test_prompts_are_gathered_by_the_text_that_they_begin() -> None:
    assert prompts.texts_of([(1, 2), (3,), (1, 2, 3, 4), (1,), (3, 4), (1, 2, 3, 5)]) == [[2, 0, 3], [5], [4, 1]]
    assert prompts.texts_of([]) == []


@pytest.fixture(scope="module")
def grown() -> dict[int, float]:
    """How much more rounding changes long prompts, by the number of the hypothesis, which is the same whoever answers."""
    return {}


@pytest.fixture
def name_of(
    checkpoint: Path, chosen: list[prompts.Prompt], grown: dict[int, float], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    real = asking._growth

    def growth(*given: Any) -> float:
        if given[-1] not in grown:
            grown[given[-1]] = real(*given)
        return grown[given[-1]]

    monkeypatch.setattr(asking, "_growth", growth)
    monkeypatch.setattr(prompts, "choose", lambda *arguments: chosen)

    texts = [chosen[longest].ids for longest, *_ in prompts.texts_of([prompt.ids for prompt in chosen])]

    def named(path: Path, dtype: torch.dtype = torch.float32) -> Any:
        with serving(served(path, dtype, texts=texts)) as url:
            return identify(HfCheckpoint.open(checkpoint), open_server(Http(url)), ASKED)

    return named


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "keys"),
    [
        (AS_MEANT, {}),
        ("scaling dropped", {"rope_type": "default", "factor": None, "attention_factor": None}),
        ("attention factor dropped", {"attention_factor": 1.0}),
        ("attention factor squared", {"attention_factor": 1.69}),
        ("attention factor by default", {"attention_factor": None}),
        ("betas not read", {"beta_fast": None}),
        ("truncate the other way", {"truncate": False}),
        ("original length doubled", {"original_max_position_embeddings": 512}),
        ("base 10000", {"rope_theta": 10000.0}),
        ("base 1e+06", {"rope_theta": 1e6}),
        ("linear in its place", {"rope_type": "linear", "attention_factor": None}),
        ("", {"rope_theta": 200000.0}),
        ("", {"beta_fast": 4.0}),
    ],
)  # fmt: skip
def test_what_transformers_computes_from_other_keys_is_named(
    name: str, keys: dict[str, Any], dtype: torch.dtype, checkpoint: Path, name_of: Callable[..., Any], tmp_path: Path
) -> None:
    found = name_of(changed(checkpoint, tmp_path / "m", **keys), dtype)
    assert found.name == name, found.to_json()
    assert not found.rivals


def test_other_weights_are_refused(checkpoint: Path, name_of: Callable[..., Any], tmp_path: Path) -> None:
    other = changed(checkpoint, tmp_path / "m")
    model = LlamaForCausalLM.from_pretrained(other, dtype=torch.float32)
    with torch.no_grad():
        model.lm_head.weight[:] = model.lm_head.weight.roll(1, 0)
    model.save_pretrained(other)
    with pytest.raises(ConfigError, match="it serves different weights"):
        name_of(other)


def test_every_release_that_is_known_is_a_hypothesis(checkpoint: Path) -> None:
    listed = hypotheses(HfCheckpoint.open(checkpoint))
    names = {each for one in listed for each in (one.name, *one.alike)}
    assert {"as vllm@0.32 reads it", "as sglang@0.5.16 reads it", "as transformers-v4 reads it"} <= names
    assert listed[0].name == AS_MEANT


def named(folder: Path, **config: Any) -> set[str]:
    sizes = {
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    }
    return {one.name for one in hypotheses(HfCheckpoint.open(write_config(folder, {**sizes, **config})))}


def test_kinds_of_layers_are_misread_apart_and_mixed_up(tmp_path: Path) -> None:
    full = {**YARN, "rope_theta": 1e6}
    sliding = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    found = named(
        tmp_path / "m", model_type="gemma3_text", max_position_embeddings=4096, sliding_window=64,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
        rope_parameters={"full_attention": full, "sliding_attention": sliding},
    )  # fmt: skip
    assert {
        "attention factor dropped",
        "betas not read",
        "truncate the other way",
        "scaling dropped",
        "base 10000",
    } <= found
    assert {"kinds swapped", "sliding_attention as full_attention", "full_attention as sliding_attention"} <= found


def test_lists_that_switch_are_misread(tmp_path: Path) -> None:
    lists = {"short_factor": [1.0] * 32, "long_factor": [4.0] * 32}
    keys = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 512,
        "factor": 8.0,
        **lists,
    }
    found = named(
        tmp_path / "m", model_type="phi3", max_position_embeddings=4096, original_max_position_embeddings=512,
        rope_parameters=keys, pad_token_id=0,
    )  # fmt: skip
    assert {"short list always", "long list always", "attention factor dropped", "attention factor squared"} <= found


def test_answers_that_fit_two_tables_are_not_sure() -> None:
    same = np.array([[1e-6, 1e-6, 0.5]] * 24)
    decision = deciding.decide(same, lambda best: 1e-6, lambda best: 1.0)
    assert (decision.best, decision.rivals) == (0, (1,))
    coarse = np.array([[0.5, 0.55, 0.6]] * 24)  # weights so coarse that the best may be none
    assert deciding.decide(coarse, lambda best: 0.05, lambda best: 20.0).best == -1


def test_a_token_beyond_the_vocabulary_is_another_model() -> None:
    with pytest.raises(ServerError, match="the checkpoint has 3 tokens"):
        deciding.divergence(Answer({7: -0.1}, 1), np.log([0.5, 0.25, 0.25]))


def test_of_a_plain_model_the_pairs_can_be_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    plain = copied(DEMO, tmp_path / "plain", rope_scaling=SILENT, rope_theta=SILENT, rope_parameters=rope)
    listed = [one.name for one in hypotheses(HfCheckpoint.open(plain))]
    assert listed == [AS_MEANT, "base 500000", "base 1e+06", "layout swapped"]
    monkeypatch.setattr(Reference, "computes", lambda self, one: one.name == AS_MEANT)
    with pytest.raises(ConfigError, match="give the same table"):
        prepare(HfCheckpoint.open(plain), ASKED)


@pytest.fixture(scope="module")
def gguf(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo under YaRN with an attention factor of its own, as a GGUF file."""
    folder = tmp_path_factory.mktemp("gguf")
    file = folder / "m.gguf"
    source = changed(checkpoint, folder / "m", beta_fast=None)
    assert (
        run("export", source, "-o", file, "--outtype", "f32", "--no-check", "--no-sidecars", "--allow-unverified").code
        == 0
    )
    return file


def test_a_gguf_source_is_told_the_way(gguf: Path) -> None:
    done = run("identify", "--source", gguf, "--server", "http://localhost:1")
    assert (done.code, done.out) == (1, "")
    assert f"Try: --gguf {gguf}" in done.err


@pytest.mark.parametrize("given", [(), ("--source", "DIR", "--gguf", "FILE")])
def test_what_is_served_is_named_once(given: tuple[str, ...]) -> None:
    done = run("identify", *given, "--server", "http://localhost:1")
    assert (done.code, done.out) == (2, "")
    assert "pass exactly one of --source and --gguf" in done.err


def test_options_of_llama_server_are_hypotheses_of_a_file(gguf: Path) -> None:
    """By hand: cos and sin get R = 1.3 / (1 + 0.1 ln 8) of the file whatever the type, and under YaRN 1 + 0.1 ln s too."""
    left = 1.3 / (1 + 0.1 * np.log(8))
    plain = 500000.0 ** -(np.arange(0, 64, 2) / 64)
    found = {one.name: one.rope.entries["full_attention"].table for one in options.of_file(GgufCheckpoint.open(gguf))}
    tables = {name: table.regimes[0] for name, table in found.items() if table is not None}
    assert np.allclose(tables["--rope-scaling none"].inv_freq, plain, rtol=1e-6)
    assert np.allclose(tables["--rope-scaling linear"].inv_freq, plain / 8, rtol=1e-6)
    assert tables["--rope-scaling none"].attention_factor == pytest.approx(left)
    assert tables["--rope-scaling linear"].attention_factor == pytest.approx(left)
    assert tables["--rope-scale 4"].attention_factor == pytest.approx(left * (1 + 0.1 * np.log(4)))
    assert set(found) == {
        "--rope-scaling none", "--rope-scaling linear", "--rope-scaling yarn", "--rope-scale 4", "--rope-scale 16",
        "--yarn-orig-ctx 128", "--yarn-orig-ctx 512",
    }  # fmt: skip


@pytest.fixture(scope="module")
def chosen_of_file() -> list[prompts.Prompt]:
    """The prompts of the GGUF file, as soon as they were chosen."""
    return []


@pytest.mark.parametrize("wrong", [False, True])
def test_a_gguf_file_is_identified_by_what_it_is_imported_as(
    wrong: bool, gguf: Path, checkpoint: Path, chosen_of_file: list[prompts.Prompt], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """An answer of the right table, and one of what llama-server does with --rope-scaling linear: R stays behind."""
    linear = {"rope_type": "linear", "attention_factor": None}
    kept: list[Path] = []
    real, choose = asking.identify, prompts.choose

    def chosen(*arguments: Any) -> list[prompts.Prompt]:
        if not chosen_of_file:
            chosen_of_file.extend(choose(*arguments))
        return chosen_of_file

    def identify(checkpoint: HfCheckpoint, *arguments: Any, **keys: Any) -> Any:
        kept.append(Path(checkpoint.path))
        return real(checkpoint, *arguments, **keys)

    monkeypatch.setattr(asking, "identify", identify)
    monkeypatch.setattr(asking, "TEXTS", 2)
    monkeypatch.setattr(prompts, "choose", chosen)
    keys, scaling = (linear, 1.3 / (1 + 0.1 * np.log(8))) if wrong else ({}, None)
    model = served(changed(checkpoint, tmp_path / "m", beta_fast=None, **keys), scaling=scaling)
    with serving(model) as url:
        done = run("identify", "--gguf", gguf, "--server", url, "--length", "500", "--prompts", "12", "--json")
    found = json.loads(done.out)
    assert found["name"] == ("--rope-scaling linear" if wrong else AS_MEANT), found
    assert found["rivals"] == []
    assert done.code == (3 if wrong else 0)
    assert "post-processor" in done.err  # the importer's own notes
    assert not kept[0].exists()


def test_a_file_that_cannot_be_imported_is_refused_in_the_importers_words(tmp_path: Path) -> None:
    file = gguf_files.model(tmp_path / "m.gguf")
    wanted = run("import", file, "-o", tmp_path / "out")
    assert wanted.code != 0
    done = run("identify", "--gguf", file, "--server", "http://localhost:1")
    assert (done.code, done.out) == (wanted.code, "")
    assert done.err == wanted.err
    assert done.err.startswith("Error: ")


def test_a_divergence_is_that_of_the_distributions() -> None:
    ours, theirs = np.log([0.5, 0.3, 0.1, 0.1]), np.log([0.4, 0.4, 0.1, 0.1])
    answer = Answer({0: float(theirs[0]), 1: float(theirs[1])}, 2)
    wanted = 0.4 * np.log(0.4 / 0.5) + 0.4 * np.log(0.4 / 0.3) + 0.2 * np.log(0.2 / 0.2)
    assert deciding.divergence(answer, ours) == pytest.approx(wanted)


def test_a_file_of_answers_serves_as_a_server_does(
    checkpoint: Path, chosen: list[prompts.Prompt], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "choose", lambda *arguments: chosen)
    file = tmp_path / "prompts.json"
    done = run("identify", "--source", checkpoint, "--prompts-out", file, "--length", "700", "--prompts", "12")
    assert done.code == 0, done.err
    data = json.loads(file.read_text(encoding="utf-8"))
    model = served(changed(checkpoint, tmp_path / "m", attention_factor=1.0)).model
    for entry in data["answers"]:
        found = model(entry["ids"])
        entry["top"] = [[int(token), float(found[token])] for token in np.argsort(-found)[:20]]
    file.write_text(json.dumps({**data, "program": "mine"}), encoding="utf-8")
    known: list[list[prompts.Prompt]] = []  # the prompts with each table, which both runs read
    real = prompts.known
    monkeypatch.setattr(prompts, "known", lambda *given: known[0] if known else known.append(real(*given)) or known[0])
    done = run("identify", "--source", checkpoint, "--logprobs", file, "--json")
    assert done.code == 3, done.err
    answer = json.loads(done.out)
    assert (answer["name"], answer["program"], answer["rivals"]) == ("attention factor dropped", "mine", [])
    done = run("identify", "--source", checkpoint, "--logprobs", file)
    assert "mine computes the table attention factor dropped: the attention factor is ignored" in done.out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: {**data, "schema": "other"}, "not a file written by"),
        (lambda data: {**data, "answers": []}, "not a file written by"),
        (lambda data: {**data, "answers": [{"ids": "x", "top": []}]}, 'ids of answer 0 is "x"; it must be a list of token ids'),
        (lambda data: {**data, "answers": [{"ids": [], "top": []}]}, "ids of answer 0 is .*, with at least one"),
        (lambda data: {**data, "answers": [{"ids": [10**400], "top": []}]}, "ids of answer 0 is .1000"),
        (lambda data: {**data, "answers": [{"ids": [True], "top": []}]}, r"ids of answer 0 is \[true\]"),
        (lambda data: {**data, "answers": [{"top": []}]}, "ids of answer 0 is absent"),
        (lambda data: {**data, "answers": [7]}, "answer 0 is 7; it must be an object"),
        (lambda data: {**data, "answers": [{"ids": [-1], "top": []}]}, r"ids of answer 0 is \[-1\]; it must be a list of token ids"),
        (lambda data: {**data, "answers": [{"ids": [1], "top": [1]}]}, r"top of answer 0 is \[1\]; it must be a list of pairs"),
        (lambda data: {**data, "answers": [{"ids": [1], "top": [["1", -1.0]]}]}, 'a token is "1"'),
        (lambda data: {**data, "answers": [{"ids": [1], "top": [[1, float("nan")]]}]}, "a log probability is NaN"),
        (lambda data: {**data, "answers": [{"ids": [1], "top": []}]}, "no log probabilities"),
        (lambda data: {**data, "answers": [{"ids": [1], "top": [[1, 5.0]]}]}, "a log probability is"),
        (lambda data: {**data, "answers": [{"ids": [1], "top": [[1, -1e300]]}]}, "a log probability is"),
        (lambda data: {**data, "answers": [{"ids": [1], "top": [[1, -1.0]]}]}, "no prompt of several tokens"),
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_one_sentence(
    change: Callable[[dict[str, Any]], dict[str, Any]], words: str, tmp_path: Path
) -> None:
    from ropetool.identify.filed import FiledServer

    file = tmp_path / "answers.json"
    file.write_text(
        json.dumps(change({"schema": "ropetool prompts 1", "program": "x", "answers": []})), encoding="utf-8"
    )
    with pytest.raises(RopetoolError, match=words):
        FiledServer.read(file)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([99_999_999, 5], "a prompt contains token 99999999, but the checkpoint has 2048 tokens"),
        ([5] * 3000, "a prompt has 3000 tokens, but the context length of the checkpoint is 2048"),
    ],
)
def test_prompts_that_the_checkpoint_cannot_read_are_one_sentence(
    ids: list[int], words: str, checkpoint: Path, tmp_path: Path
) -> None:
    file = tmp_path / "answers.json"
    answers = [{"ids": [4], "top": [[5, -1.0]]}, {"ids": ids, "top": [[5, -1.0]]}]
    file.write_text(json.dumps({"schema": "ropetool prompts 1", "program": "x", "answers": answers}), encoding="utf-8")
    done = run("identify", "--source", checkpoint, "--logprobs", file)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"Error: {file}: {words}")
