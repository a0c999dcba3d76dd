"""Models behind servers: the same figures as from the files, whatever the interface; and what no server may get away with."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_server import KINDS, Served, serving
from transformers import AutoTokenizer, LlamaForCausalLM

from ropetool.errors import ConfigError, RopetoolError, ServerError
from ropetool.files import hub
from ropetool.servers import http, sglang
from ropetool.servers.http import Http
from ropetool.servers.opening import open_server
from ropetool.servers.text import TextServer
from ropetool.verification import estimate, journal, served
from ropetool.verification.checkpoints import verify_checkpoint
from ropetool.verification.options import UNSERVED, VerifyOptions
from ropetool.verification.readback.terms import Terms
from ropetool.verification.runners.served_words import TokenizerWords
from ropetool.verification.runners.server_runner import ServerRunner
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.runners.torch_tokenizer import TorchTokenizer
from ropetool.verification.scoring import Corpus
from ropetool.verification.served import verify_served

VOCABULARY = 300
EXACT = ("vllm", "sglang", "llama-server")
CLOSE = 1e-5  # nats: a server's float32 against ours


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(http.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(journal, "folder", lambda: tmp_path / "journals")
    monkeypatch.delenv(http.KEY, raising=False)


@pytest.fixture(scope="module")
def model(tiny: Path) -> Callable[[Sequence[int]], np.ndarray]:
    """What the tiny model computes, in one pass for all prompts that a text begins with."""
    loaded = LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()
    lock = threading.Lock()
    known: dict[tuple[int, ...], np.ndarray] = {}

    def log_probs(ids: Sequence[int]) -> np.ndarray:
        text = tuple(ids)
        with lock, torch.no_grad():
            if text not in known:
                rows = torch.log_softmax(loaded(torch.tensor([text])).logits[0].double(), -1).numpy()
                for place, row in enumerate(rows, start=1):
                    known.setdefault(text[:place], row)
        return known[text]

    return log_probs


@pytest.fixture(scope="module")
def serve(tiny: Path, model: Callable[[Sequence[int]], np.ndarray]) -> Callable[..., Served]:
    tokenizer = AutoTokenizer.from_pretrained(tiny)

    @cache
    def write(token: int) -> str:
        return str(tokenizer.decode([token]))

    def make(kind: str, **options: Any) -> Served:
        def read(text: str) -> list[int]:
            return tokenizer(text, add_special_tokens=kind not in EXACT)["input_ids"]

        return Served(kind, **{"model": model, "read": read, "write": write, **options})

    return make


def runner(url: str, tiny: Path, **options: Any) -> ServerRunner:
    server, reader = open_server(Http(url)), TorchTokenizer(tiny)
    if isinstance(server, TextServer):
        server.words = TokenizerWords(reader, VOCABULARY)
    return ServerRunner(server, reader, vocabulary=VOCABULARY, **options)


def rows_of(tiny: Path, length: int, count: int = 3) -> list[list[int]]:
    """Return rows that are texts: what a server which takes text reads as the same ids."""
    reader = TorchTokenizer(tiny)
    ids = reader.tokenize("the rope turns a pair of the token near the context, far angle of length. " * 40)
    return [[*reader.prefix, *ids[17 * start : 17 * start + length - 1]] for start in range(count)]


# --- the same figures


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_the_files(kind: str, tiny: Path, serve: Callable[..., Served]) -> None:
    rows = rows_of(tiny, 40)
    wanted = TorchRunner(tiny, device="cpu", dtype="float32").score(rows, 12)
    with serving(serve(kind)) as url:
        asked = runner(url, tiny)
        found = asked.score(rows, 12)
    if kind in EXACT:
        assert np.abs(found.losses - wanted.losses).max() < CLOSE
        assert asked.unseen.count == 0
    else:  # of what is not among those that are shown, the loss is a lower bound
        seen = np.abs(found.losses - wanted.losses) < CLOSE
        assert np.all(found.losses <= wanted.losses + CLOSE)
        assert asked.unseen.count == int((~seen).sum()) > 0
        assert asked.unseen.asked == seen.size
    assert np.array_equal(found.hits, wanted.hits)


@pytest.mark.parametrize("kind", EXACT)
def test_predictions_are_those_of_the_files(kind: str, tiny: Path, serve: Callable[..., Served]) -> None:
    rows = rows_of(tiny, 30)
    candidates = np.random.default_rng(0).integers(0, VOCABULARY, (3, 5)).tolist()
    wanted = TorchRunner(tiny, device="cpu", dtype="float32").predict(rows, candidates)
    with serving(serve(kind)) as url:
        found = runner(url, tiny).predict(rows, candidates)
    assert np.abs(found.log_probs - wanted.log_probs).max() < CLOSE
    assert np.array_equal(found.top, wanted.top)


def test_tokens_within_characters_are_scored_in_all_of_the_context(tiny: Path, serve: Callable[..., Served]) -> None:
    """llama-server tells nothing of a byte that ends within a character, and has one cache for all that it is asked at a time."""
    rows = np.random.default_rng(1).integers(1, VOCABULARY, (3, 63)).tolist()
    candidates = np.arange(VOCABULARY).reshape(3, -1)[:, 40:70].tolist()
    runs_here = TorchRunner(tiny, device="cpu", dtype="float32")
    wanted, ahead = runs_here.score(rows, 40), runs_here.predict([row[:-1] for row in rows], candidates)
    made = serve("llama-server", context=64)
    within = {token for token in np.ravel([row[-40:] for row in rows]) if made.write(int(token)).endswith("\ufffd")}
    assert len(within) > 10
    with serving(made) as url:
        asked = runner(url, tiny)
        assert np.abs(asked.score(rows, 40).losses - wanted.losses).max() < CLOSE
        found = asked.predict([row[:-1] for row in rows], candidates)
    assert np.abs(found.log_probs - ahead.log_probs).max() < CLOSE
    assert np.array_equal(found.top, ahead.top)
    assert asked.unseen.count == 0


def test_a_server_that_tells_nothing_is_not_asked_for_ever(tiny: Path, serve: Callable[..., Served]) -> None:
    made = serve("llama-server", quiet=True)
    with serving(made) as url, pytest.raises(ServerError, match="contains no log probabilities"):
        runner(url, tiny)
    assert len(made.asked) < 6


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_prompts_are_the_same_or_not_on_offer(kind: str, tiny: Path, serve: Callable[..., Served]) -> None:
    rows = rows_of(tiny, 20, 2)
    made = serve(kind)
    with serving(made) as url:
        asked = runner(url, tiny, score_prompts=True)
        if kind not in ("vllm", "sglang"):
            with pytest.raises(ConfigError, match="does not score prompts"):
                asked.score(rows, 6)
            return
        found = asked.score(rows, 6)
    wanted = TorchRunner(tiny, device="cpu", dtype="float32").score(rows, 6)
    assert np.abs(found.losses - wanted.losses).max() < CLOSE
    assert np.array_equal(found.hits, wanted.hits)
    bodies = [body for path, body in made.asked if "prompt_logprobs" in body or "logprob_start_len" in body]
    assert len(bodies) == 3  # two rows, the first of them twice
    if kind == "vllm":
        assert len({body["cache_salt"] for body in bodies}) == 3
    else:  # the last is asked for as what comes next
        assert {len(body["input_ids"]) - body["logprob_start_len"] for body in bodies} == {6}


def test_scores_are_asked_for_in_pieces_where_they_can(
    tiny: Path, serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang, "MOST_SCORED", 7)
    rows = rows_of(tiny, 40, 2)
    wanted = TorchRunner(tiny, device="cpu", dtype="float32").score(rows, 20)
    made = serve("sglang")
    with serving(made) as url:
        found = runner(url, tiny, score_prompts=True).score(rows, 20)
    assert np.abs(found.losses - wanted.losses).max() < CLOSE
    assert np.array_equal(found.hits, wanted.hits)
    asked = [
        len(body["input_ids"]) - body["logprob_start_len"] - 1 for _, body in made.asked if "logprob_start_len" in body
    ]
    assert asked == 3 * [7, 7, 5]


def test_scores_that_change_are_not_believed(tiny: Path, serve: Callable[..., Served]) -> None:
    drift = iter(range(100))

    def change(path: str, answer: Any) -> Any:
        for entry in (answer.get("choices") or [{}])[0].get("prompt_logprobs") or []:
            for one in (entry or {}).values():
                one["logprob"] -= 0.01 * next(drift)
        return answer

    with (
        serving(serve("vllm", change=change)) as url,
        pytest.raises(ServerError, match="two scores of one prompt differ by"),
    ):
        runner(url, tiny, score_prompts=True).score(rows_of(tiny, 12, 1), 4)


# --- which server, which model


@pytest.mark.parametrize(
    ("kind", "program"),
    [
        ("vllm", "vLLM 0.32.0"), ("sglang", "SGLang 0.5.23"), ("llama-server", "llama-server b1"),
        ("ollama", "Ollama 0.13.0"), ("openai", "OpenAI"),
    ],
)  # fmt: skip
def test_each_interface_is_known_by_what_only_it_says(kind: str, program: str, serve: Callable[..., Served]) -> None:
    with serving(serve(kind, context=777)) as url:
        for address in (url, f"{url}/", f"{url}/v1", url.removeprefix("http://")):
            server = open_server(Http(address))
            assert program in server.program
            assert server.model == "served"
            assert server.limits.context == (None if kind == "openai" else 777)
            # at its last place llama-server calls a prompt truncated
            assert server.limits.prompt == {"openai": None, "llama-server": 775}.get(kind, 776)


def test_another_name_than_the_served_one_is_refused(serve: Callable[..., Served]) -> None:
    with serving(serve("vllm")) as url:
        with pytest.raises(ConfigError, match=r"does not serve 'serve' \(did you mean served\?\); it serves served"):
            open_server(Http(url), "serve")
        assert open_server(Http(url), "served").model == "served"


@pytest.mark.parametrize("answer", [b"<html>", {"data": 1}, {"hello": "world"}, b"\xff\xfe", []])
def test_an_address_of_something_else_is_refused(answer: Any, serve: Callable[..., Served]) -> None:
    made = serve("vllm", change=lambda path, found: answer)
    with serving(made) as url, pytest.raises(ServerError, match=r"not JSON|no language model server answers here"):
        open_server(Http(url))


def test_nobody_there_is_one_sentence() -> None:
    with serving(Served("vllm", np.array, list, str)) as url:  # type: ignore[arg-type]
        pass
    with pytest.raises(ServerError, match="no answer: Connection refused"):
        open_server(Http(url))


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "http://[::1", "http://x:99999", "http://user:secret@host"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        Http(url)
    assert refusal.value.where == "--server"


def test_the_way_off_the_machine_is_told() -> None:
    assert Http("http://localhost:1").notes == Http("https://far.example").notes == ()
    assert "without TLS" in Http("http://far.example").notes[0]


# --- answers that are not believed


def _with(path: Sequence[Any], value: Any) -> Callable[[str, Any], Any]:
    def change(asked: str, answer: Any) -> Any:
        if asked != "/v1/completions":
            return answer
        part = answer
        for step in path[:-1]:
            part = part[step]
        if value is ...:
            del part[path[-1]]
        else:
            part[path[-1]] = value
        return answer

    return change


TOP = ("choices", 0, "logprobs", "top_logprobs", 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_with(["choices"], []), "does not contain choices.0.logprobs"),
        (_with(["choices", 0, "logprobs"], None), "does not contain choices.0.logprobs.top_logprobs"),
        (_with(TOP, {}), "no log probabilities"),
        (_with(TOP, None), "choices.0.logprobs.top_logprobs.0 is null; it must be an object"),
        (_with((*TOP, "token_id:9"), float("nan")), "not JSON: NaN is not a number"),
        (_with((*TOP, "token_id:9"), 0.5), "a log probability is 0.5; it must be a number of nats from -100000 to 0.001"),
        (_with((*TOP, "token_id:9"), "-1"), 'a log probability is "-1"'),
        (_with((*TOP, "token_id:9"), True), "a log probability is true"),
        (_with((*TOP, "token_id:9"), -1e9), "a log probability is -1000000000.0"),
        (_with((*TOP, "token_id:9"), -(10**400)), "a log probability is -1000.*0..."),
        (_with(TOP, ["abc"]), r'choices.0.logprobs.top_logprobs.0 is \["abc"\]; it must be an object'),
        (_with((*TOP, f"token_id:{'9' * 5000}"), -1.0), 'a token is "token_id:999'),
        (_with((*TOP, "word"), -1.0), 'a token is "word"; it must be a whole number from 0 to 2147483647'),
        (_with(TOP, {"token_id:8": -0.1, "token_id:9": -0.1}), "a sum above 1"),
        (_with(TOP, {"token_id:999": -3.0}), "the requested token|the checkpoint has 300 tokens"),
        (lambda path, answer: {"error": {"message": "out of memory\n now"}}, r"the server refuses the request \(400\): out of memory now"),
        (lambda path, answer: b"x" * (65 << 20) if path == "/v1/completions" else answer, "larger than 64 MB"),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_one_sentence(
    change: Callable[[str, Any], Any], words: str, tiny: Path, serve: Callable[..., Served]
) -> None:
    made = serve("vllm")
    with serving(made) as url:
        asked = runner(url, tiny)
        made.change = change
        with pytest.raises(ServerError, match=words) as refusal:
            asked.score(rows_of(tiny, 12, 1), 2)
    assert "\n" not in refusal.value.sentence


def test_a_prompt_that_was_cut_is_refused(tiny: Path, serve: Callable[..., Served]) -> None:
    def cut(path: str, answer: Any) -> Any:
        return {**answer, "tokens_evaluated": 5} if path == "/completion" else answer

    with (
        serving(serve("llama-server", change=cut)) as url,
        pytest.raises(ServerError, match="did not read exactly the 24 tokens"),
    ):
        runner(url, tiny).score(rows_of(tiny, 12, 1), 1)


@pytest.mark.parametrize("kind", ["ollama", "openai"])
def test_a_template_in_front_of_a_text_is_seen(kind: str, tiny: Path, serve: Callable[..., Served]) -> None:
    def more(path: str, answer: Any) -> Any:
        for part, key in ((answer, "prompt_eval_count"), (answer.get("usage", {}), "prompt_tokens")):
            if key in part:
                part[key] += 4
        return answer

    with (
        serving(serve(kind, change=more)) as url,
        pytest.raises(ServerError, match="a different tokenizer or a template"),
    ):
        runner(url, tiny).score(rows_of(tiny, 12, 1), 1)


@pytest.mark.parametrize("kind", ["ollama", "openai"])
def test_a_server_without_log_probabilities_says_what_gives_them(
    kind: str, tiny: Path, serve: Callable[..., Served]
) -> None:
    with serving(serve(kind, quiet=True)) as url, pytest.raises(ServerError, match="no log probabilities") as refusal:
        runner(url, tiny).score(rows_of(tiny, 12, 1), 1)
    assert refusal.value.try_


@pytest.mark.parametrize("kind", EXACT)
def test_another_tokenizer_is_another_model(kind: str, tiny: Path, serve: Callable[..., Served]) -> None:
    with (
        serving(serve(kind, read=lambda text: [1, 2, 3])) as url,
        pytest.raises(ConfigError, match="the tokenizer of"),
    ):
        runner(url, tiny)


# --- patience, keys, resuming


def test_probabilities_after_sampling_are_refused(tiny: Path, serve: Callable[..., Served]) -> None:
    """Of the only token that is allowed they say that it is certain, whatever the model finds."""
    with (
        serving(serve("vllm", processed=True)) as url,
        pytest.raises(ServerError, match="sampling settings may change them") as refusal,
    ):
        runner(url, tiny)
    assert "raw_logprobs" in refusal.value.try_


def test_a_busy_server_is_asked_again(tiny: Path, serve: Callable[..., Served]) -> None:
    made = serve("vllm")
    with serving(made) as url:
        asked = runner(url, tiny)
        made.busy = 4
        assert asked.score(rows_of(tiny, 12, 1), 1).losses.shape == (1, 1)
        made.busy = 10**6
        with pytest.raises(ServerError, match="no answer: 503"):
            asked.score(rows_of(tiny, 14, 1), 1)


def test_a_key_comes_from_the_environment_and_is_kept_nowhere(
    tiny: Path, serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with serving(serve("vllm", key="sesame")) as url:
        with pytest.raises(ServerError, match="requires a key") as refusal:
            open_server(Http(url))
        assert http.KEY in refusal.value.try_
        monkeypatch.setenv(http.KEY, "sesame")
        found = verified(tiny, url, lengths=[16, 32])
    assert "sesame" not in json.dumps(found.to_json())
    assert not any(b"sesame" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def verified(tiny: Path, url: str, **options: Any) -> Any:
    vocabulary = ["the", "rope", "turns", "a", "pair", "of", "token", "near", "context,", "far", "angle", "length."]
    words = [" ".join(random.Random(one).choices(vocabulary, k=15 * (20 + one))) for one in range(5)]
    folder = Path(str(tiny) + "-texts")
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(words):
        (folder / f"{number}.txt").write_text(f"{number} {text}", encoding="utf-8")
    scored = options.pop("score_prompts", False)
    told = {name: options.pop(name) for name in ("progress", "say") if name in options}
    chosen = VerifyOptions(**{"texts": [folder], "segments": 8, **options})
    return verify_served(tiny, served.Served(url, score_prompts=scored), chosen, **told)


def test_a_run_goes_on_where_the_server_died(tiny: Path, serve: Callable[..., Served]) -> None:
    whole = serve("vllm")
    with serving(whole) as url:
        wanted = verified(tiny, url, lengths=[16, 32, 64])
        port = int(url.rpartition(":")[2])
    everything = len(whole.asked)
    dying = serve("vllm")
    answer = dying.change

    def die(path: str, found: Any) -> Any:
        if len(dying.asked) > everything // 2:
            dying.busy = 10**9
        return answer(path, found)

    dying.change = die
    with serving(dying, port) as url, pytest.raises(ServerError, match="no answer") as refusal:
        verified(tiny, url, lengths=[16, 32, 64])
    assert "--resume" in refusal.value.try_
    again = serve("vllm")
    with serving(again, port) as url:
        found = verified(tiny, url, lengths=[16, 32, 64], resume=True)
    assert [entry.target for entry in found.lengths] == [entry.target for entry in wanted.lengths]
    assert len(again.asked) < 0.7 * everything + 16  # of one row, which is asked again


# Run by another process, which is killed in the middle of its answer to one request.
SERVER = """
import os, signal, sys, time
import numpy as np
from model_server import Served, serving

port, dies, shift = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])

def model(ids):
    logits = np.random.default_rng([int(one) for one in ids[-3:]]).normal(size=300) * (1 + shift * len(ids))
    return logits - np.log(np.exp(logits).sum())

def change(path, found):
    if dies and len(made.asked) > dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return found

made = Served("vllm", model, None, str, change=change)
with serving(made, port) as url:
    print(url, flush=True)
    time.sleep(600)
"""


@contextmanager
def elsewhere(port: int = 0, *, dies: int = 0, shift: float = 0.0) -> Iterator[str]:
    """Serve in a process of its own, killed at the end; it kills itself after so many requests. shift: of what it computes."""
    folder = str(Path(__file__).resolve().parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(port), str(dies), str(shift)],
        env={**os.environ, "PYTHONPATH": folder}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_server_that_was_killed_is_gone_on_with_and_another_one_is_not(tiny: Path) -> None:
    lengths = [16, 32, 64]
    with elsewhere() as url:
        wanted = verified(tiny, url, lengths=lengths)
        port = int(url.rpartition(":")[2])
    with elsewhere(port, dies=100) as url, pytest.raises(ServerError, match="no answer") as refusal:
        verified(tiny, url, lengths=lengths)
    assert "--resume" in refusal.value.try_
    with (
        elsewhere(port, shift=0.01) as url,
        pytest.raises(ConfigError, match="nats per token differently") as no,
    ):
        verified(tiny, url, lengths=lengths, resume=True)
    assert no.value.where == "--resume"
    with elsewhere(port) as url:
        found = verified(tiny, url, lengths=lengths, resume=True)
    assert [entry.target for entry in found.lengths] == [entry.target for entry in wanted.lengths]
    assert any("saved rows" in note for note in found.notes)


@pytest.mark.parametrize(
    ("kind", "scored"), [("vllm", False), ("vllm", True), ("sglang", True), ("llama-server", False)]
)
def test_requests_are_told_before_they_are_made(
    kind: str, scored: bool, tiny: Path, serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "pace", lambda *arguments: lambda rows: 0.0)
    said: list[str] = []
    made = serve(kind)
    with serving(made) as url:
        verified(tiny, url, lengths=[16, 32], score_prompts=scored, measures=["last-segment"], say=said.append)
    asked = [body.get("prompt", body.get("input_ids")) for path, body in made.asked if "token" not in path]
    asked = [ids for ids in asked if len(ids) != 24 - 1 and ids != asked[0]]
    told = next(line for line in said if "will get about" in line)
    count, _, longest = map(int, re.findall(r" (\d+)(?: requests| prompt tokens| in the longest)", told))
    assert count == len(asked)
    assert longest == max(map(len, asked))


def test_what_scores_of_prompts_take_is_told(tiny: Path, serve: Callable[..., Served]) -> None:
    for kind, words in (
        ("vllm", "needs memory for the logits of 32 prompt tokens, 32 x 300 x 4 bytes, 3.8e-05 GB in all; start it with "
         "--max-num-batched-tokens 1024"),
        ("sglang", "32 x 300 x 4 bytes, 3.8e-05 GB in all"),
    ):  # fmt: skip
        said: list[str] = []
        with serving(serve(kind)) as url:
            verified(tiny, url, lengths=[16, 32], score_prompts=True, say=said.append)
        assert words in said[0]


def test_a_server_without_its_tokenizer_is_told(tiny: Path, serve: Callable[..., Served]) -> None:
    with serving(serve("vllm", read=None)) as url:
        found = verified(tiny, url, lengths=[16, 32])
        assert any("does not offer its tokenizer" in note for note in found.notes)
    with serving(serve("vllm")) as url:
        assert not any("tokenizer: " in note for note in verified(tiny, url, lengths=[16, 32]).notes)


def test_the_pace_is_not_that_of_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that keeps prefixes computes what no earlier prompt began with, a second for each token."""
    clock = [0]

    def alike(one: Sequence[int], other: Sequence[int]) -> int:
        return next(
            (i for i, pair in enumerate(zip(one, other, strict=False)) if len(set(pair)) > 1), min(len(one), len(other))
        )

    class Caching:
        def __init__(self) -> None:
            self.seen: list[tuple[int, ...]] = []

        def score(self, rows: list[list[int]], scored: int, done: Any) -> None:
            for prompt in (tuple(row[: len(row) - scored + place]) for row in rows for place in range(scored)):
                kept = max((alike(prompt, one) for one in self.seen), default=0)
                clock[0] += len(prompt) - kept
                self.seen.append(prompt)

    monkeypatch.setattr(estimate.time, "perf_counter", lambda: clock[0])
    ids = np.random.default_rng(0).integers(0, 2000, 20000)
    corpus = Corpus(("a",), (ids,), (np.ones_like(ids),), ())
    for work in ({2048: 8}, {512: 8, 2048: 8}):
        told = estimate.pace(Caching(), corpus, work, 16)(work)  # type: ignore[arg-type]
        start, serving = clock[0], Caching()
        for length, count in work.items():
            for number in range(count):
                serving.score([ids[number * 2000 + length % 2000 :][:length].tolist()], 16, None)
        assert told == pytest.approx(clock[0] - start, rel=0.05)


def test_only_a_served_target_is_asked_whether_it_changed(
    tiny: Path, serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[bytes] = []
    put = journal.Journal.put
    monkeypatch.setattr(
        journal.Journal, "put", lambda self, keys, figures: [kept.extend(keys), put(self, keys, figures)][1]
    )
    with serving(serve("vllm")) as url:
        verified(tiny, url, lengths=[16, 32], baseline=tiny)
    assert {key for key in kept if len(key) != journal.KEY} == {b"longest target"}
    kept.clear()
    verify_checkpoint(tiny, texts=[Path(f"{tiny}-texts")], segments=8, lengths=[16, 32], measures=["last-segment"])
    assert kept
    assert all(len(key) == journal.KEY for key in kept)


def test_the_pace_is_probed_once(tiny: Path, serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[int] = []
    monkeypatch.setattr(
        estimate, "pace",
        lambda runner, corpus, lengths, scored: probed.append(1) or (lambda rows: 0.01 * sum(rows.values())),
    )  # fmt: skip
    with serving(serve("vllm")) as url:
        verified(tiny, url, lengths=[16, 32], terms=Terms(trained_length=16), budget=1.0, say=print)
    assert len(probed) == 1


# --- the verdict


def test_lengths_beyond_the_server_are_left_out_and_said(
    tiny: Path, serve: Callable[..., Served], make_variant: Any
) -> None:
    longer = make_variant(tiny, max_position_embeddings=256)
    with serving(serve("vllm", context=128)) as url:
        found = verified(longer, url, terms=Terms(trained_length=64))
        with pytest.raises(ConfigError, match="the server has a context of 128 tokens"):
            verified(longer, url, terms=Terms(trained_length=64), lengths=[64, 256])
    assert max(entry.length for entry in found.lengths) == 127  # and a token of the answer
    assert {check.name: check.verdict for check in found.checks}["server's context"] == "not run"
    assert found.verdict == "partial"


def test_tokens_that_are_not_shown_keep_the_verdict_open(tiny: Path, serve: Callable[..., Served]) -> None:
    with serving(serve("openai")) as url:
        found = verified(tiny, url, lengths=[16, 32])
    shown = next(check for check in found.checks if check.name == "answers shown")
    assert shown.verdict == "not run"
    assert 0 < shown.figure < 1
    assert found.verdict == "partial"


def test_the_checkpoint_needs_no_weights(
    tiny: Path, serve: Callable[..., Served], make_variant: Any, tmp_path: Path
) -> None:
    with serving(serve("sglang")) as url:
        wanted = verified(tiny, url, lengths=[16, 32])
        bare = make_variant(tiny)
        (bare / "model.safetensors").unlink()
        found = verified(bare, url, lengths=[16, 32])
        (bare / "tokenizer.json").unlink()
        with pytest.raises(RopetoolError, match="tokenizer"):
            verified(bare, url, lengths=[16, 32])
        options = VerifyOptions(texts=[f"{tiny}-texts"], segments=8, lengths=[16, 32])
        named = verify_served(bare, served.Served(url, tokenizer=tiny), options)
    assert (
        [one.target for one in found.lengths]
        == [one.target for one in named.lengths]
        == [one.target for one in wanted.lengths]
    )


def test_a_baseline_runs_here(
    tiny: Path, serve: Callable[..., Served], model: Callable[[Sequence[int]], np.ndarray]
) -> None:
    with serving(serve("llama-server")) as url:
        same = verified(tiny, url, lengths=[16, 32], baseline=tiny)
    worse = serve("llama-server", model=lambda ids: np.log(0.5 * np.exp(model(ids)) + 0.5 / VOCABULARY))
    with serving(worse) as url:
        other = verified(tiny, url, lengths=[16, 32], baseline=tiny)
    assert [entry.ratio for entry in same.lengths] == pytest.approx([1.0, 1.0], abs=1e-5)
    assert same.baseline == other.baseline == tiny.name or same.baseline == str(tiny)
    assert all(abs(entry.ratio - 1) > 0.02 for entry in other.lengths)
    assert same.certificate is None


def test_another_model_of_this_tokenizer_is_not_told_from_it_and_that_is_said(
    tiny: Path, serve: Callable[..., Served]
) -> None:
    """Without a baseline a server of any weights is judged by itself: this one knows one token back."""

    def bigrams(ids: Sequence[int]) -> np.ndarray:
        logits = np.random.default_rng(int(ids[-1])).normal(size=VOCABULARY)
        return logits - np.log(np.exp(logits).sum())

    with serving(serve("vllm", model=bigrams)) as url:
        alone = verified(tiny, url, lengths=[16, 32])
        held = verified(tiny, url, lengths=[16, 32], baseline=tiny)
    wanted = (
        f"the served model is compared with itself, so its weights may differ from {hub.name_of(tiny)}; pass --baseline SOURCE, "
        f"or run ropetool identify --source {tiny} --server {url}"
    )
    assert wanted in alone.notes
    assert not any("the served model is compared with itself" in note for note in held.notes)
    assert all(entry.ratio == pytest.approx(1.0, abs=1e-6) for entry in alone.lengths)
    assert all(abs(entry.ratio - 1) > 0.02 for entry in held.lengths)


def test_without_a_record_and_a_baseline_it_is_partial(tiny: Path, serve: Callable[..., Served]) -> None:
    with serving(serve("vllm")) as url:
        found = verified(tiny, url, lengths=[16, 32, 63], terms=Terms(trained_length=32))
    assert {check.name: check.verdict for check in found.checks}["yardstick"] == "not run"
    assert found.verdict == "partial"


@pytest.mark.parametrize(
    ("kind", "scored", "room"), [("vllm", False, 1), ("vllm", True, 1), ("llama-server", False, 2)]
)
def test_a_context_is_filled_but_for_the_answer(
    kind: str, scored: bool, room: int, tiny: Path, serve: Callable[..., Served]
) -> None:
    made = serve(kind, context=64)
    options = {} if scored else {"measures": ["last-segment", "retrieval"]}
    with serving(made) as url:
        found = verified(tiny, url, lengths=[32, 64], score_prompts=scored, **options)
    assert max(entry.length for entry in found.lengths) == 64 - room
    asked = [body["prompt"] for path, body in made.asked if path in ("/v1/completions", "/completion")]
    assert max(map(len, asked)) in (63 - room, 64 - room)


@pytest.mark.parametrize("lengths", [[32, 63], [62, 63, 64], [60]], ids=str)
@pytest.mark.parametrize(("kind", "room"), [("vllm", 1), ("llama-server", 2), ("sglang", None)])
def test_lengths_just_below_the_context_leave_room_too(
    kind: str, room: int | None, lengths: list[int], tiny: Path, serve: Callable[..., Served]
) -> None:
    made = serve(kind, context=64)
    with serving(made) as url:
        room = 64 - (open_server(Http(url)).limits.prompt or 0) if room is None else room
        found = verified(tiny, url, lengths=lengths, measures=["last-segment", "retrieval"])
    assert {entry.length for entry in found.lengths} == {min(length, 64 - room) for length in lengths}
    asked = [body.get("prompt", body.get("input_ids", [])) for _, body in made.asked]
    assert max(len(prompt) for prompt in asked if isinstance(prompt, list)) <= 64 - room


@pytest.mark.parametrize("kind", ["llama-server", "sglang", "vllm", "ollama", "openai"])
def test_a_name_that_is_not_served_is_refused(kind: str, serve: Callable[..., Served]) -> None:
    with serving(serve(kind)) as url, pytest.raises(ConfigError, match="does not serve 'nonsense'"):
        open_server(Http(url), "nonsense")


def test_a_run_that_leaves_tokens_out_is_not_resumed(tiny: Path, serve: Callable[..., Served]) -> None:
    with serving(serve("openai")) as url, pytest.raises(ConfigError, match="saves no results"):
        verified(tiny, url, lengths=[16, 32], resume=True)


@pytest.mark.parametrize("key", ["a\rb", "schlüssel"])
def test_a_key_that_is_none_is_not_quoted(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(http.KEY, key)
    with pytest.raises(ConfigError, match="contains characters that are not allowed in a key") as refusal:
        Http("localhost:1").get("/")
    assert key not in refusal.value.sentence


def test_fewer_tokens_are_asked_for_where_the_server_gives_fewer(tiny: Path, serve: Callable[..., Served]) -> None:
    made = serve("vllm")

    def limited(path: str, answer: Any) -> Any:
        asked = made.asked[-1][1].get("logprobs", 0) if made.asked else 0
        if path == "/v1/completions" and asked > 5:
            return {"error": {"message": f"Requested sample logprobs of {asked}, which is greater than max allowed: 5"}}
        return answer

    made.change = limited
    rows = rows_of(tiny, 20, 2)
    wanted = TorchRunner(tiny, device="cpu", dtype="float32").score(rows, 4)
    with serving(made) as url:
        assert np.abs(runner(url, tiny).score(rows, 4).losses - wanted.losses).max() < CLOSE


@pytest.mark.parametrize("measure", ["by-position", "cache", "yarn"])
def test_what_asks_for_all_logits_is_refused(measure: str, tiny: Path, serve: Callable[..., Served]) -> None:
    with serving(serve("vllm")) as url, pytest.raises(RopetoolError, match="a server does not return the logits for"):
        verified(tiny, url, measures=[measure])


# --- time


def _drip_head(client: socket.socket, sent: list[bytes]) -> None:
    _drip(client, sent, b"HTTP/1.1 200 OK\r\n", b"X-A: y\r\n" * 1000)


def _drip_body(client: socket.socket, sent: list[bytes]) -> None:
    _drip(client, sent, b"HTTP/1.1 200 OK\r\nContent-Length: 8000\r\n\r\n", b" " * 8000)


def _drip(client: socket.socket, sent: list[bytes], first: bytes, rest: bytes) -> None:
    with client, suppress(OSError):
        client.recv(1 << 16)
        client.sendall(first)
        for at in range(len(rest)):  # no wait of the client is longer than its timeout, and all of them take minutes
            sent.append(rest[at : at + 1])
            client.sendall(sent[-1])
            threading.Event().wait(0.02)


@pytest.mark.parametrize("drip", [_drip_head, _drip_body])
def test_one_deadline_holds_for_a_whole_answer(
    drip: Callable[[socket.socket, list[bytes]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "ATTEMPTS", 2)
    sent: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client = listener.accept()[0]
                    threading.Thread(target=drip, args=(client, sent), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(ServerError, match=r"no answer within 0\.3 seconds") as late:
            Http(f"localhost:{port}", timeout=0.3).get("/props")
    assert late.value.try_
    assert len(sent) < 8000  # the server has most of its answer left


def test_a_connection_is_used_again_after_an_answer(serve: Callable[..., Served]) -> None:
    with serving(serve("vllm")) as url:
        asked = Http(url)
        session = asked._session()
        assert asked.get("/version")
        assert asked.get("/nothing") is None
        assert asked._session() is session


@pytest.mark.parametrize("option", UNSERVED)
def test_options_of_files_are_refused(option: str, tiny: Path) -> None:
    chosen = VerifyOptions(**{option: True if option == "full_hash" else "x"})
    with pytest.raises(ConfigError, match="does not work with --server"):
        verify_served(tiny, served.Served("http://localhost:1"), chosen)
