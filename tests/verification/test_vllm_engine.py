"""vLLM in process: a stand-in of its shape that computes by transformers, and vLLM itself where it is installed."""

from __future__ import annotations

import importlib.machinery
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from models import copied
from running import run
from transformers import LlamaForCausalLM

import ropetool
from ropetool.errors import CheckpointError, ConfigError, MissingDependency, ServerError
from ropetool.verification import journal, whole_suites
from ropetool.verification.checkpoints import verify_checkpoint
from ropetool.verification.gate import Limits
from ropetool.verification.measures.loss import LastSegment
from ropetool.verification.readback.terms import Terms
from ropetool.verification.results import VerifyResult
from ropetool.verification.runners import server_runner, vllm_engine
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.runners.vllm_engine import Engine, VllmModel, VllmRunner
from ropetool.verification.scoring import ignore

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
PROBE = Path(__file__).parents[1] / "oracle" / "vllm_runner_probe.py"
CLOSE = 1e-5  # nats: the same model in float32


@dataclass
class SamplingParams:
    """The arguments of vllm 0.32.0's that are used."""

    max_tokens: int
    temperature: float
    detokenize: bool
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    allowed_token_ids: list[int] | None = None


class StandIn:
    """vllm.LLM, its arguments and answers as those of 0.32.0: dicts of token to Logprob, the token's own and the k likeliest."""

    loaded: list[StandIn] = []  # noqa: RUF012
    offset = 0.0  # nats, planted

    def __init__(self, model: str, max_model_len: int, hf_overrides: dict[str, Any], **options: Any) -> None:
        self.options, self.context, self.overrides = options, max_model_len, hf_overrides
        self.model, self.freed = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).eval(), False
        self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(shutdown=self.free))
        self.read: list[int] = []  # the ids of the last pass, and what it found
        self.found = np.empty((0, 0))
        assert not [one for one in StandIn.loaded if not one.freed], "two models at a time"
        StandIn.loaded.append(self)

    def free(self) -> None:
        self.freed = True

    def generate(self, prompts: list[dict[str, Any]], asked: SamplingParams, use_tqdm: bool) -> list[Any]:
        (prompt,) = prompts
        ids = prompt["prompt_token_ids"]
        if len(ids) + asked.max_tokens > self.context:
            raise RuntimeError(f"This model's maximum context length is {self.context} tokens.\n However, ...")
        if self.read[: len(ids)] != ids:
            with torch.no_grad():
                found = torch.log_softmax(self.model(torch.tensor([ids])).logits[0].double(), -1).numpy()
            self.read, self.found = [*ids], found
        told = self.found[: len(ids)] - StandIn.offset
        drawn = (asked.allowed_token_ids or [int(told[-1].argmax())])[0]
        scored = None
        if asked.prompt_logprobs is not None:
            assert prompt["cache_salt"]
            pairs = zip(told, ids[1:], strict=False)
            scored = [None, *(_logprobs(row, token, asked.prompt_logprobs) for row, token in pairs)]
        output = SimpleNamespace(logprobs=asked.logprobs and [_logprobs(told[-1], drawn, asked.logprobs)])
        return [SimpleNamespace(outputs=[output], prompt_logprobs=scored)]


def _logprobs(row: np.ndarray, token: int, likeliest: int) -> dict[int, Any]:
    tokens = {token, *map(int, np.argpartition(-row, likeliest)[:likeliest])}
    ranks = {one: int((row > row[one]).sum()) + 1 for one in tokens}
    return {one: SimpleNamespace(logprob=float(row[one]), rank=ranks[one], decoded_token=None) for one in tokens}


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[StandIn]]:
    """Have `import vllm` give the stand-in."""
    for name in ("vllm", "vllm.distributed"):
        module = ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["vllm"].__dict__.update(LLM=StandIn, SamplingParams=SamplingParams)
    sys.modules["vllm.distributed"].__dict__["cleanup_dist_env_and_memory"] = lambda: None
    for name in vllm_engine._ENVIRONMENT:
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(journal, "folder", lambda: tmp_path / "journals")
    monkeypatch.setattr(StandIn, "loaded", [])
    yield StandIn
    assert all(one.freed for one in StandIn.loaded)


def rows_of(path: Path, length: int, count: int) -> list[list[int]]:
    vocabulary = json.loads((path / "config.json").read_text())["vocab_size"]
    return np.random.default_rng(2).integers(3, vocabulary, (count, length)).tolist()


@pytest.mark.parametrize("score_prompts", [False, True])
def test_the_figures_are_those_of_transformers(tiny: Path, stand_in: type[StandIn], score_prompts: bool) -> None:
    rows = rows_of(tiny, 60, 3)
    candidates = [list(range(10, 14))] * 3
    ours = TorchRunner(tiny, device="cpu", dtype="float32", report=print)
    theirs = VllmRunner(tiny, Engine(2, 3, score_prompts), dtype="float32", reach=60)
    assert not stand_in.loaded  # its tokenizer is asked before there is room for the model
    assert theirs.prefix == ours.prefix
    found, wanted = theirs.score(rows, 5), ours.score(rows, 5, ignore)
    assert np.abs(found.losses - wanted.losses).max() < CLOSE
    assert (found.hits == wanted.hits).all()
    told, known = theirs.predict(rows, candidates), ours.predict(rows, candidates, ignore)
    assert np.abs(told.log_probs - known.log_probs).max() < CLOSE
    assert (told.top == known.top).all()
    (model,) = stand_in.loaded
    assert (model.context, model.options["tensor_parallel_size"], model.options["pipeline_parallel_size"]) == (61, 2, 3)
    assert model.options["dtype"] == "float32"
    assert theirs.description.endswith("in process, float32, 2 x 3 devices")
    theirs.close()
    assert model.freed
    assert np.array_equal(theirs.score(rows, 1).losses, found.losses[:, -1:])  # loaded again
    theirs.close()


def test_probabilities_that_do_not_add_up_are_not_believed(
    tiny: Path, stand_in: type[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in, "offset", -0.5)
    theirs = VllmRunner(tiny, Engine(), dtype="float32", reach=60)
    with pytest.raises(ServerError, match="probabilities with a sum above 1"):
        theirs.score(rows_of(tiny, 60, 1), 5)
    theirs.close()


def answering(**parts: Any) -> Any:
    """Return what `generate` is replaced by: one answer of these parts."""
    return lambda self, prompts, asked, use_tqdm: [SimpleNamespace(**parts)]


def output(logprobs: Any) -> dict[str, Any]:
    return {"outputs": [SimpleNamespace(logprobs=logprobs)]}


@pytest.mark.parametrize(
    ("parts", "scores", "sentence"),
    [
        ({}, False, "the answer does not contain outputs.0.logprobs.0"),
        ({"outputs": []}, False, "the answer does not contain outputs.0.logprobs.0"),
        (output(None), False, "the answer does not contain outputs.0.logprobs.0"),
        (output([]), False, "the answer does not contain outputs.0.logprobs.0"),
        (output([None]), False, "the answer contains no log probabilities"),
        (output([{3: None}]), False, "the answer does not contain 3.logprob"),
        (
            output([{3: SimpleNamespace(logprob=b"x")}]), False,
            "a log probability is \"b'x'\"; it must be a number of nats from -100000 to 0.001",
        ),
        (output([{"three": SimpleNamespace(logprob=-1.0)}]), False, "the answer does not contain three.logprob"),
        ({}, True, "the answer does not contain prompt_logprobs"),
        ({"prompt_logprobs": None}, True, "the answer must contain one score for each of 3 tokens"),
        ({"prompt_logprobs": 7}, True, "the answer must contain one score for each of 3 tokens"),
        ({"prompt_logprobs": [None, None, None]}, True, "the answer does not contain 4.logprob"),
        ({"prompt_logprobs": [None, {}, {}]}, True, "the answer does not contain 4.logprob"),
        ({"prompt_logprobs": [None, *[{t: SimpleNamespace(logprob=-1.0)} for t in (4, 5)]]}, True, "the answer does not contain 4.rank"),
    ],
)  # fmt: skip
def test_an_answer_of_another_shape_is_a_sentence(
    tiny: Path,
    stand_in: type[StandIn],
    monkeypatch: pytest.MonkeyPatch,
    parts: dict[str, Any],
    scores: bool,
    sentence: str,
) -> None:
    monkeypatch.setattr(stand_in, "generate", answering(**parts))
    model = VllmModel(sys.modules["vllm"], stand_in(str(tiny), 30, {}), "vLLM", "tiny", 30)
    with pytest.raises(ServerError) as refused:
        model.scores([3, 4, 5], 2) if scores else model.next([3, 4, 5])
    assert refused.value.sentence == f"--runner vllm: {sentence}"
    stand_in.loaded[0].free()


def test_a_token_beyond_the_vocabulary_is_refused(
    extended: Path, stand_in: type[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    def generate(self: StandIn, prompts: Any, asked: SamplingParams, use_tqdm: bool) -> list[Any]:
        told = {1_000_000: -1.0, **dict.fromkeys(asked.allowed_token_ids or [], -1.0)}
        return [SimpleNamespace(**output([{token: SimpleNamespace(logprob=one) for token, one in told.items()}]))]

    monkeypatch.setattr(stand_in, "generate", generate)
    monkeypatch.setattr(server_runner, "check_raw", lambda *_: None)
    with pytest.raises(ServerError, match="the answer contains token 1000000, but the checkpoint has") as refused:
        measured(extended, Engine())
    assert refused.value.where == "--runner vllm"


def test_what_vllm_refuses_is_a_sentence(tiny: Path, stand_in: type[StandIn], monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = VllmRunner(tiny, Engine(), dtype="float32", reach=30)
    with pytest.raises(ConfigError, match=r"a prompt has 59 tokens, and vLLM .* in process accepts 30") as no:
        theirs.score(rows_of(tiny, 60, 1), 5)
    assert no.value.where == "--runner vllm"
    theirs.close()
    monkeypatch.setattr(stand_in, "__init__", lambda self, **options: 1 / 0)
    with pytest.raises(CheckpointError, match="vLLM cannot load the checkpoint: division by zero"):
        VllmRunner(tiny, Engine(), dtype="float32", reach=30).score(rows_of(tiny, 30, 1), 5)
    with pytest.raises(ConfigError, match="'float64' is not one of"):
        VllmRunner(tiny, Engine(), dtype="float64", reach=30)


# --- verify


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vllm") / "X"
    ropetool.apply(ropetool.plan(DEMO, "yarn", factor=2), DEMO, path)
    return path


def measured(target: Path, engine: Engine | None, **options: Any) -> VerifyResult:
    chosen = {"lengths": [128, 256, 512], "segments": 8, "measures": ["last-segment"], "limits": Limits("research")}
    return verify_checkpoint(target, dtype="float32", engine=engine, **{**chosen, **options})


def test_verify(extended: Path, stand_in: type[StandIn]) -> None:
    result = measured(extended, Engine(score_prompts=True))
    wanted = measured(extended, None)
    for ours, theirs in zip(result.lengths, wanted.lengths, strict=True):
        assert ours.target.mean == pytest.approx(theirs.target.mean, abs=CLOSE)
        assert ours.ratio == pytest.approx(theirs.ratio, abs=1e-4)
        assert ours.baseline is not None
        assert theirs.baseline is not None
        assert ours.baseline.mean == pytest.approx(theirs.baseline.mean, abs=CLOSE)
    assert [check.verdict for check in result.checks] == [check.verdict for check in wanted.checks]
    assert "in process, float32" in result.runtime
    target, baseline = stand_in.loaded
    # An unscaled table serves any length, once vLLM takes the context for longer.
    assert (target.overrides, baseline.overrides) == ({}, {"max_position_embeddings": 512})


def test_a_scaled_baseline_is_read_as_far_as_its_table_goes(
    extended: Path, stand_in: type[StandIn], tmp_path: Path
) -> None:
    longer = tmp_path / "longer"
    ropetool.apply(ropetool.plan(extended, "yarn", factor=4, reading="original"), extended, longer)
    result = measured(longer, Engine(score_prompts=True), baseline=extended, lengths=[128, 512, 1024])
    assert [entry.baseline is None for entry in result.lengths] == [False, False, True]
    assert all(entry.upper is not None for entry in result.lengths)
    assert [one.context for one in stand_in.loaded] == [1025, 513]


def test_a_baseline_that_ends_before_the_trained_length_is_refused(
    extended: Path, stand_in: type[StandIn], tmp_path: Path
) -> None:
    short = copied(extended, tmp_path / "short", max_position_embeddings=128)
    for measures in (["last-segment"], ["retrieval"]):
        with pytest.raises(ConfigError) as refused:
            measured(extended, Engine(), baseline=short, measures=measures, terms=Terms(trained_length=256))
        assert refused.value.where == "--baseline"
        assert "the baseline ends at its context length of 128 tokens, and vLLM would have to read 256" in str(
            refused.value
        )
    assert not stand_in.loaded


def test_figures_of_another_vllm_or_reach_are_not_gone_on_with(
    extended: Path, stand_in: type[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of longrope are chosen by the context that vLLM is told, so that the same row has other figures."""
    short = [64, 128]

    def resumed(lengths: list[int] = short) -> bool:
        result = measured(extended, Engine(score_prompts=True), resume=True, lengths=lengths)
        return any("saved rows" in note for note in result.notes)

    def begun() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(LastSegment, "result", lambda *_: 1 / 0)  # all is measured, and nothing is complete
            with pytest.raises(ZeroDivisionError):
                measured(extended, Engine(score_prompts=True), lengths=short)

    begun()
    assert resumed()
    begun()
    assert not resumed([64, 96])
    monkeypatch.setattr(vllm_engine, "version", lambda: "0.0.1")
    monkeypatch.setattr(whole_suites, "version", lambda: "0.0.1")
    assert not resumed()


def test_what_is_refused(extended: Path, stand_in: type[StandIn], tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="the target ends at its context length of 512 tokens, and vLLM would have to read 600"
    ):
        measured(extended, Engine(), lengths=[256, 600])
    with pytest.raises(ConfigError, match="the full suite needs all logits"):
        measured(extended, Engine(), suite="full", measures=[])
    with pytest.raises(ConfigError, match="vLLM in process does not return the logits for many-shot"):
        measured(extended, Engine(), measures=["many-shot"])
    ropetool.export(extended, tmp_path / "x.gguf", check=False, allow_unverified=True)
    with pytest.raises(ConfigError, match="vLLM needs a directory here, and"):
        measured(tmp_path / "x.gguf", Engine())


def test_the_command(extended: Path) -> None:
    done = run("verify", extended, "--runner", "vllm", "--tensor-parallel-size", "0")
    assert done.err.splitlines() == ["Error: --tensor-parallel-size: the number of devices must be at least 1, not 0"]
    for options, sentence in (
        (("--pipeline-parallel-size", "2"), "--pipeline-parallel-size requires --runner vllm"),
        (("--score-prompts",), "--score-prompts requires --server URL or --runner vllm"),
        (("--runner", "vllm", "--against", "b"), "--runner vllm does not accept --against"),
        (("--runner", "vllm", "--server", "x:1"), "--runner does not apply to a served model: the server runs it"),
    ):
        done = run("verify", extended, *options)
        assert done.code == 2
        assert done.err.splitlines()[-1] == f"Error: {sentence}"


@pytest.mark.skipif(vllm_engine.find_spec("vllm") is not None, reason="vLLM is in this Python")
def test_a_python_without_vllm(extended: Path) -> None:
    done = run("verify", extended, "--runner", "vllm")
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines() == [
        "Error: --runner vllm needs vLLM, which is not installed in the Python of ropetool",
        "Try: run ropetool with the Python of the environment of vLLM, or vllm serve MODEL and --server http://localhost:8000",
    ]
    with pytest.raises(MissingDependency):
        vllm_engine.version()


# --- vLLM itself


@pytest.mark.skipif(not os.environ.get("ROPETOOL_ENGINE_VLLM"), reason="ROPETOOL_ENGINE_VLLM names no interpreter")
def test_vllm_finds_what_transformers_does(tmp_path: Path) -> None:
    path = tmp_path / "X"
    ropetool.apply(ropetool.plan(DEMO, "yarn", factor=8), DEMO, path)
    rows, candidates = rows_of(path, 2048, 2), [list(range(20, 28))] * 2
    asked = {"path": str(path), "reach": 2048, "rows": rows, "candidates": candidates, "scored": 4}
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    done = subprocess.run(
        [os.environ["ROPETOOL_ENGINE_VLLM"], str(PROBE), str(tmp_path / "asked.json")], capture_output=True, text=True,
        timeout=900, check=True,
        env={
            "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", ""), "PYTHONPATH": str(DEMO.parents[2]),
            "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
        },
    )  # fmt: skip
    ours = TorchRunner(path, device="cpu", dtype="float32", report=print)
    scores, predictions = ours.score(rows, 4, ignore), ours.predict(rows, candidates, ignore)
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 2
    for told in found.values():
        assert np.abs(np.array(told["losses"]) - scores.losses).max() < 1e-4
        assert np.abs(np.array(told["log_probs"]) - predictions.log_probs).max() < 1e-4
        assert np.array_equal(told["hits"], scores.hits)
        assert told["top"] == predictions.top.tolist()
        assert told["said"].startswith("vLLM 0.")
