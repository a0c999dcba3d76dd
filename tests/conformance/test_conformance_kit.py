"""A part of the conformance kit, made here: its bytes, and what the scorer says of engines, right, wrong and broken."""

from __future__ import annotations

import copy
import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("scripts", "scripts/golden", "tests/baking")]

from conformance_kit import cases, checkpoints, kept, making, mistakes, record  # noqa: E402

FACTOR, BASE, TURNS = "llama-attention-factor", "llama-base", "llama-turns"
SHIPPED = ROOT / "scripts" / "conformance_kit" / "shipped"
sys.path.insert(0, str(SHIPPED / "drivers"))
ANSWERING, DRIVER = importlib.import_module("answering"), importlib.import_module("run_transformers")
Answers = dict[str, Any]


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conformance") / "kit"
    making.make(folder, (FACTOR, BASE, TURNS))
    return folder


def drive(kit: Path, out: Path, *more: str) -> Answers:
    """Have transformers answer, in a process that does not see ropetool."""
    program = kit / "drivers" / "run_transformers.py"
    done = subprocess.run(
        [sys.executable, str(program), str(kit), str(out), *more],
        capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: Answers = json.loads(out.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def answers(kit: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return drive(kit, tmp_path_factory.mktemp("answers") / "transformers.json")


def computed(kit: Path, case: str, folder: Path, dtype: str = "float32") -> Answers:
    """Return what transformers answers to a case by the config of a folder: the driver's own function, in this process."""
    job = {**ANSWERING._job(kit, "hf", case), "path": str(folder)}
    given = DRIVER.answer(job, SimpleNamespace(dtype=dtype, attention="eager"))
    return json.loads(json.dumps({"prompts": given}))  # type: ignore[no-any-return]


def scored(kit: Path, answers: Answers, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the scorer as an engine's CI does: the kit's own file, the standard library alone."""
    path = folder / "answers.json"
    path.write_text(json.dumps(answers), encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-I", "-S", str(kit / "score.py"), str(kit), str(path), *more],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def levels(kit: Path, answers: Answers, folder: Path) -> dict[str, dict[str, Any]]:
    done = scored(kit, answers, folder, "--json")
    assert done.stderr == ""
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)[0]["cases"]
    return found


# --- what is made


def test_weights_and_gguf_files_are_those_of_the_record_bit_for_bit(kit: Path) -> None:
    listed = json.loads((kit / "manifest.json").read_text())["files"]
    known = record.known()["kit"]["weights"]
    made = {name: one["sha256"] for name, one in listed.items() if name.endswith((record.WEIGHTS, ".gguf"))}
    assert len(made) == 6
    assert made == {name: known[name] for name in made}


def test_the_manifest_lists_every_file_and_sees_a_changed_byte(kit: Path, tmp_path: Path) -> None:
    copied = tmp_path / "kit"
    shutil.copytree(kit, copied)
    manifest = json.loads((copied / "manifest.json").read_text())
    there = {path.relative_to(copied).as_posix() for path in copied.rglob("*") if path.is_file()}
    assert there == {*manifest["files"], "manifest.json"}
    assert (manifest["licence"], manifest["version"]) == ("Apache-2.0", cases.VERSION)
    assert (copied / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    check = [sys.executable, "-I", "-S", str(copied / "score.py"), str(copied), "--check-files"]
    assert subprocess.run(check, check=False).returncode == 0
    target = copied / "hf" / BASE / record.WEIGHTS
    target.write_bytes(target.read_bytes()[:-1] + b"\x00")
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"hf/{BASE}/model.safetensors is not the file of the manifest\n")


def test_the_text_of_the_prompt_is_its_tokens(kit: Path) -> None:
    from tokenizers import Tokenizer

    ids = checkpoints.prompt(300)
    text = bytes(ids).decode("ascii")
    found = Tokenizer.from_file(str(kit / "hf" / BASE / "tokenizer.json")).encode(text, add_special_tokens=False)
    assert found.ids == ids


def test_a_prompt_on_a_kept_cache_is_scored_behind_it() -> None:
    calls = cases.Calls((255, 1023, 767, 1535), share=True, together=2)
    assert [calls.kept(prompt) for prompt in range(4)] == [0, 0, 255, 1023]
    assert calls.rows() == [[0, 2], [1, 3]]
    assert making.places(calls, 2)[:2] == [263, 300]
    assert making.places(cases.Calls((255, 512)), 1)[:2] == [8, 45]
    assert cases.Calls((255, 512)).rows() == [[0, 1]]


@pytest.mark.parametrize(
    ("name", "row", "wrong"),
    [
        (cases.OFF_BY_ONE, [0, 2], [0, 1, 3, 4]),
        (cases.RESTART, [0, 2], [0, 1, 0, 1]),
        (cases.LONGEST, [0, 2], [0, 1, 3, 4]),
        (cases.LONGEST, [1, 3], [0, 1, 2, 3, 4]),
        (cases.OFF_BY_ONE, [1, 3], [0, 1, 2, 4, 5]),
        (cases.PAIRS, [0, 2], [0, 1, 2, 3]),
    ],
)
def test_wrong_positions_of_later_turns(name: str, row: list[int], wrong: list[int]) -> None:
    calls = cases.Calls((2, 3, 4, 5), share=True, together=2)
    assert mistakes.positions(name, calls, row) == wrong


def test_a_short_table_of_cos_and_sin_ends_or_repeats() -> None:
    calls = cases.Calls((4098,))
    assert mistakes.positions(cases.CLAMPED, calls, [0])[-3:] == [4095, 4095, 4095]
    assert mistakes.positions(cases.WRAPPED, calls, [0])[-3:] == [4095, 0, 1]


def test_a_case_that_cannot_tell_is_refused(tmp_path: Path) -> None:
    alike = cases.Case("linear scaling", cases.llama({"rope_type": "linear", "factor": 1.0001}))
    with pytest.raises(making.Defect, match=r"scaling dropped is .* nats from the right table; 0\.03 are needed"):
        making.golden(checkpoints.write(tmp_path / "alike", alike), alike, checkpoints.prompt(cases.CONTEXT))


def test_scores_of_a_part_are_not_recorded(kit: Path, answers: Answers, tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    path.write_text(json.dumps(answers))
    before = record.RESULT.read_bytes()
    with pytest.raises(ValueError, match="is not the whole kit of version"):
        record.add(kit, path, "transformers")
    assert record.RESULT.read_bytes() == before


# --- what the scorer says


def test_transformers_is_exact(kit: Path, answers: Answers, tmp_path: Path) -> None:
    done = scored(kit, answers, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1:3] == [f"{FACTOR}  exact", f"{BASE}              exact"]
    for case in levels(kit, answers, tmp_path).values():
        assert case["largest"] < making.EXACT / 2


@pytest.mark.parametrize("kept", ["scores", "next"])
def test_either_kind_of_answer_will_do(kit: Path, answers: Answers, tmp_path: Path, kept: str) -> None:
    """Servers give the scores of a prompt, or the likeliest next tokens."""
    few = copy.deepcopy(answers)
    for case in few["answers"].values():
        case["prompts"] = [{kept: one[kept]} for one in case["prompts"]]
        for one in case["prompts"]:
            if kept == "next":
                likeliest = sorted(one["next"], key=one["next"].get)[-20:]
                one["next"] = {token: one["next"][token] for token in likeliest}
    found = levels(kit, few, tmp_path)
    assert {case["level"] for case in found.values()} == {3}


@pytest.mark.parametrize(
    ("case", "changes", "named"),
    [
        (FACTOR, {"attention_factor": None}, "attention factor by default"),
        (FACTOR, {"factor": 2.0}, "factor halved"),
        (FACTOR, {"original_max_position_embeddings": 2048}, "original length lost"),
        (FACTOR, {"rope_type": "default"}, "scaling dropped"),
        (FACTOR, {"factor": 4.4}, None),
        (BASE, {"rope_theta": 10000.0}, "base 10000"),
        (BASE, {"rope_theta": 250000.0}, None),
    ],
)
def test_a_wrong_table_is_named(
    kit: Path, answers: Answers, tmp_path: Path, case: str, changes: dict[str, Any], named: str | None
) -> None:
    """A planted engine: transformers, reading a config in which one key is another."""
    planted = tmp_path / "planted"
    shutil.copytree(kit / "hf" / case, planted)
    path = planted / "config.json"
    config = json.loads(path.read_text())
    keys = config if case == BASE else config["rope_scaling"]
    keys |= changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    found = levels(kit, {**answers, "answers": {case: computed(kit, case, planted)}}, tmp_path)[case]
    assert (found["level"], found["nearest"]) == (1, named)
    assert found["said"].startswith(f"{named}: " if named else "no table of the kit fits: off by ")


def test_bfloat16_has_bounds_of_its_own(kit: Path, answers: Answers, tmp_path: Path) -> None:
    given = {case: computed(kit, case, kit / "hf" / case, "bfloat16") for case in (FACTOR, BASE, TURNS)}
    narrow = {**answers, "dtype": "bfloat16", "answers": given}
    assert {case["level"] for case in levels(kit, narrow, tmp_path).values()} == {3}
    as_float32 = levels(kit, {**narrow, "dtype": "float32"}, tmp_path)
    assert {case["level"] for case in as_float32.values()} == {1}


def roughened(kit: Path, answers: Answers) -> Answers:
    """Return the answers with one log probability that is 0.01 nats off."""
    rough = copy.deepcopy(answers)
    token = json.loads((kit / "golden" / f"{BASE}.json").read_text())["prompts"][3]["tokens"][0]
    rough["answers"][BASE]["prompts"][3]["next"][str(token)] -= 0.01
    return rough


def test_rounding_that_is_rough_is_not_exact(kit: Path, answers: Answers, tmp_path: Path) -> None:
    rough = roughened(kit, answers)
    found = levels(kit, rough, tmp_path)[BASE]
    assert (found["level"], found["said"]) == (2, "off by 0.01, the bound for float32 is 0.0003")


def prompts(answers: Answers) -> Any:
    return answers["answers"][BASE]["prompts"]


BROKEN: dict[str, tuple[Callable[[Answers], Any], str]] = {
    "missing": (lambda a: a["answers"].pop(BASE), "no answer for this case"),
    "error": (lambda a: a["answers"].update({BASE: {"error": "KeyError:\n 'yarn'"}}), "KeyError: 'yarn'"),
    "short": (lambda a: prompts(a).pop(), "5 prompts are answered, and 6 were asked"),
    "few scores": (lambda a: prompts(a)[1]["scores"].pop(), "prompt of 512 tokens: 511 scores"),
    "one more": (
        lambda a: prompts(a)[0]["scores"].insert(0, None),
        "prompt of 255 tokens: 256 scores; was a token put before the prompt?",
    ),
    "nan": (
        lambda a: prompts(a)[0]["scores"].__setitem__(45, float("nan")),
        "prompt of 255 tokens: score of token 45 is nan; a log probability is finite and at most 0",
    ),
    "null": (
        lambda a: prompts(a)[0]["scores"].__setitem__(8, None),
        "prompt of 255 tokens: score of token 8 is None, not a log probability",
    ),
    "logits": (
        lambda a: prompts(a)[2]["next"].update({"65": 3.5}),
        "prompt of 513 tokens: next token 65 is 3.5; a log probability is finite and at most 0",
    ),
    "other tokens": (
        lambda a: prompts(a)[2].update(next={"A": -1.0}), "prompt of 513 tokens: next token 'A' is no id below 264"
    ),
    "unlikely tokens": (
        lambda a: prompts(a)[2].update(next={"300": -1.0}), "prompt of 513 tokens: next token '300' is no id below 264"
    ),
    "other ids": (
        lambda a: prompts(a)[0].update(ids=[256] + [40] * 254), "prompt of 255 tokens: the engine computed other token ids"
    ),
    "nothing": (lambda a: prompts(a)[4].clear(), "prompt of 1535 tokens: neither scores nor next tokens"),
    "null answers": (
        lambda a: prompts(a)[4].update(scores=None, next=None), "prompt of 1535 tokens: neither scores nor next tokens"
    ),
}  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN)
def test_answers_that_cannot_be_compared_get_a_sentence(
    kit: Path, answers: Answers, tmp_path: Path, broken: str
) -> None:
    spoil, sentence = BROKEN[broken]
    spoiled = copy.deepcopy(answers)
    spoil(spoiled)
    done = scored(kit, spoiled, tmp_path)
    assert done.returncode == 1
    assert f"  {BASE}: {sentence}" in done.stdout.splitlines()
    assert done.stderr == ""
    assert levels(kit, spoiled, tmp_path)[FACTOR]["level"] == 3
    assert scored(kit, spoiled, tmp_path, "--known", BASE).returncode == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"kit": 99}, f"answers to version 99 of the kit, and this is {cases.VERSION}"),
        ({"dtype": "int3"}, "dtype 'int3' has no bounds in the kit; there are float32, bfloat16"),
        ({"format": "onnx"}, "format 'onnx' is neither hf nor gguf"),
        ({"answers": {"llama-none": {}}}, "answers to cases that the kit does not have: llama-none"),
    ],
)
def test_files_that_are_no_answers_are_refused(
    kit: Path, answers: Answers, tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    done = scored(kit, {**answers, **change}, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"Error: {tmp_path / 'answers.json'}: {sentence}\n"


@pytest.mark.parametrize(("key", "value"), [("engine", None), ("release", {"a": 1})])
def test_an_engine_and_its_release_are_strings(
    kit: Path, answers: Answers, tmp_path: Path, key: str, value: Any
) -> None:
    done = scored(kit, {**answers, key: value}, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"Error: {tmp_path / 'answers.json'}: {key!r} is no string\n"


def test_lists_that_are_nested_too_deeply_are_refused(kit: Path, tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    path.write_text('{"a":' + "[" * 200_000 + "]" * 200_000 + "}")
    order = [sys.executable, "-I", "-S", str(kit / "score.py"), str(kit), str(path)]
    done = subprocess.run(order, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"Error: {path}: lists or objects are nested too deeply\n")


def of_next(kit: Path, count: int, more: dict[str, float] | None = None) -> Answers:
    """Return the golden values of so many next tokens behind each prompt of a case, and nothing else that is right."""
    golden = json.loads((kit / "golden" / f"{BASE}.json").read_text())
    right = next(table for table in golden["tables"] if table["name"] == "right")
    found = []
    for prompt, values in zip(golden["prompts"], right["next"], strict=True):
        likeliest = sorted(zip(values, prompt["tokens"], strict=True), reverse=True)[:count]
        wrong = {token: value for token, value in (more or {}).items() if int(token) not in prompt["tokens"]}
        found.append({"next": wrong | {str(token): value for value, token in likeliest}})
    return {"prompts": found}


@pytest.mark.parametrize(("count", "level"), [(1, 2), (4, 2), (5, 3)])
def test_exact_needs_five_numbers_in_each_prompt(
    kit: Path, answers: Answers, tmp_path: Path, count: int, level: int
) -> None:
    given = {**answers, "answers": {BASE: of_next(kit, count)}}
    found = levels(kit, given, tmp_path)[BASE]
    words = f"prompt of 255 tokens: numbers compared: {count}; level 3 asks for 5"
    assert (found["level"], found["said"]) == (level, words if level == 2 else "")
    assert f"  numbers compared in a case: {6 * count} to {6 * count}\n" in scored(kit, given, tmp_path).stdout


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_probabilities_of_a_place_sum_to_no_more_than_one(
    kit: Path, answers: Answers, tmp_path: Path, dtype: str
) -> None:
    """Every token that no golden number is held against is certain here."""
    nonsense = of_next(kit, 5, {str(token): 0.0 for token in range(cases.VOCABULARY)})
    found = levels(kit, {**answers, "dtype": dtype, "answers": {BASE: nonsense}}, tmp_path)[BASE]
    assert found["level"] == 0
    assert found["said"].startswith("prompt of 255 tokens: the probabilities of the next tokens sum to 2")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prompts": [{"next": {"65": -(10**400)}}] * 6}, "prompt of 255 tokens: next token 65 is -1000"),
        ({"prompts": [{"next": {"1" * 5000: -1.0}}] * 6}, "prompt of 255 tokens: next token '1111"),
        ({"error": None}, "an error without words"),
    ],
)
def test_answers_beyond_every_float_fail_with_a_sentence(
    kit: Path, answers: Answers, tmp_path: Path, given: Answers, said: str
) -> None:
    found = levels(kit, {**answers, "answers": {BASE: given}}, tmp_path)[BASE]
    assert found["level"] == 0
    assert found["said"].startswith(said)
    assert len(found["said"]) < 500


def test_a_level_can_be_asked_for(kit: Path, answers: Answers, tmp_path: Path) -> None:
    rough = roughened(kit, answers)
    assert scored(kit, rough, tmp_path).returncode == 1
    assert scored(kit, rough, tmp_path, "--level", "2").returncode == 0


def test_a_file_without_gguf_is_not_counted(kit: Path, answers: Answers, tmp_path: Path) -> None:
    without = tmp_path / "kit"
    shutil.copytree(kit, without)
    manifest = json.loads((without / "manifest.json").read_text())
    manifest["cases"][BASE]["no_gguf"] = "there is no key for it"
    (without / "manifest.json").write_text(json.dumps(manifest))
    found = levels(without, {**answers, "format": "gguf"}, tmp_path)
    assert found[BASE] == {"level": None, "said": "no GGUF file: there is no key for it"}


def test_what_an_engine_does_not_support_is_not_counted(kit: Path, answers: Answers, tmp_path: Path) -> None:
    without = {**answers, "answers": {**answers["answers"], BASE: {"unsupported": "no class\nfor llama"}}}
    assert levels(kit, without, tmp_path)[BASE] == {"level": None, "said": "not supported: no class for llama"}
    done = scored(kit, without, tmp_path)
    assert done.returncode == 0
    assert f"{BASE}              n/a" in done.stdout.splitlines()
    assert "loads 2, reads the table 2, exact 2, of 2; n/a 1" in done.stdout


def test_the_scorer_and_the_kit_have_one_version(kit: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(kit / "score.py"), "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"version {cases.VERSION} of the kit\n"
    assert f"version {cases.VERSION}\n" in (kit / "README.md").read_text()
    assert f'"kit": {cases.VERSION},' in (kit / "README.md").read_text()


# --- drivers


def test_the_steps_of_a_case() -> None:
    job = {"prompts": [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]], "together": 2, "share": True}
    row = ANSWERING.Row
    assert list(ANSWERING.steps(job)) == [
        [row(0, 0, 0, [1]), row(1, 1, 0, [1, 2])], [row(2, 0, 1, [2, 3]), row(3, 1, 2, [3, 4])]
    ]  # fmt: skip
    alone = {**job, "together": 1, "share": False}
    assert list(ANSWERING.steps(alone)) == [[row(at, 0, 0, job["prompts"][at])] for at in range(4)]
    assert ANSWERING.answered(row(2, 0, 1, [2, 0]), [[-1.0, -2.0], [-3.0, -4.0]]) == {
        "scores": [None, None, -1.0], "next": {0: -3.0, 1: -4.0}
    }  # fmt: skip


MY_ENGINE = """
import torch
from transformers import AutoModelForCausalLM

__version__ = "3"

def load(path, dtype, context):
    return Engine(AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)))

class Engine:
    def __init__(self, model):
        self.model = model

    def compute(self, rows, caches):
        for ids, cache in zip(rows, caches):
            with torch.no_grad():
                out = self.model(torch.tensor([ids]), past_key_values=cache, use_cache=True)
            yield torch.log_softmax(out.logits[0].double(), -1).tolist(), out.past_key_values
"""


def test_the_template_drives_an_engine(kit: Path, tmp_path: Path) -> None:
    """A copy outside the kit, as the README describes it."""
    shutil.copy(kit / "drivers" / "run_template.py", tmp_path / "run_my_engine.py")
    (tmp_path / "my_engine.py").write_text(MY_ENGINE)
    order = [sys.executable, str(tmp_path / "run_my_engine.py"), str(kit), str(tmp_path / "out.json"), BASE, TURNS]
    paths = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(kit / "drivers")}
    done = subprocess.run(order, capture_output=True, text=True, env=paths, check=False)
    assert done.returncode == 0, done.stderr
    given = json.loads((tmp_path / "out.json").read_text())
    assert (given["engine"], given["release"]) == ("my engine", "3")
    found = levels(kit, given, tmp_path)
    assert (found[BASE]["level"], found[TURNS]["level"]) == (3, 3)
    assert len((kit / "drivers" / "run_template.py").read_text().splitlines()) <= 42


def test_the_workflow_runs_what_the_readme_says(kit: Path) -> None:
    import yaml

    workflow = yaml.safe_load((kit / "workflow.yml").read_text())
    steps = workflow["jobs"]["conformance"]["steps"]
    ran = [step["run"] for step in steps if "run" in step]
    assert ran[1:] == [
        "python conformance-kit/score.py conformance-kit --check-files",
        "python my-engine/run_my_engine.py conformance-kit answers.json",
        "python -I -S conformance-kit/score.py conformance-kit answers.json",
    ]
    assert "Add this to your CI in ten minutes" in (kit / "README.md").read_text()


PLANTED = """
import os
import answering

def prepare(arguments):
    return {"release": "0", "versions": {}}

def answer(job, arguments):
    if job["path"].endswith("llama-base"):
        os.abort()
    raise KeyError("yarn")

answering.main("planted", "hf", prepare, answer)
"""


SERVER = """
import http.server, json, sys

answers, naming, model, port = json.load(open(sys.argv[1])), sys.argv[2], sys.argv[3], int(sys.argv[4])
kept = {"prompt_tokens_details": {"cached_tokens": int(sys.argv[5])}}
known = {len(ids): top for ids, top in answers}

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.say({"data": [{"id": model}]})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        top = known[len(asked["prompt"])]
        if naming == "id":
            tokens = [{"id": int(token), "logprob": value} for token, value in top.items()]
            self.say({"choices": [{"logprobs": {"content": [{"top_logprobs": tokens}]}}]})
            return
        name = (lambda token: "token_id:" + token) if naming == "token_id" else (lambda token: bytes([int(token)]).decode("latin-1"))
        self.say({"choices": [{"logprobs": {"top_logprobs": [{name(token): value for token, value in top.items()}]}}]})

    def say(self, answer):
        text = json.dumps({**answer, "usage": kept}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.mark.parametrize(
    ("naming", "case", "cached", "level"),
    [("id", BASE, 0, 3), ("token_id", BASE, 0, 3), ("text", BASE, 0, 3), ("id", TURNS, 255, 3), ("id", TURNS, 0, None)],
)
def test_a_server_is_asked_in_each_way_of_naming_tokens(
    kit: Path, answers: Answers, tmp_path: Path, naming: str, case: str, cached: int, level: int | None
) -> None:
    ids = json.loads((kit / "golden" / f"{case}.json").read_text())["ids"]
    known = []
    for prompt in answers["answers"][case]["prompts"]:
        likeliest = [token for token in sorted(prompt["next"], key=prompt["next"].get) if int(token) < 256][-20:]
        known.append((ids[: len(prompt["scores"])], {token: prompt["next"][token] for token in likeliest}))
    (tmp_path / "known.json").write_text(json.dumps(known))
    (tmp_path / "server.py").write_text(SERVER)
    start = f"{sys.executable} {tmp_path / 'server.py'} {tmp_path / 'known.json'} {naming} {{path}} {{port}} {cached}"
    program, out = kit / "drivers" / "run_server.py", tmp_path / "out.json"
    named = ["--name", "planted", "--release", "1", "--start", start]
    order = [sys.executable, str(program), str(kit), str(out), case, *named]
    done = subprocess.run(order, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    given = json.loads(out.read_text())
    assert (given["engine"], given["release"]) == ("planted", "1")
    assert levels(kit, given, tmp_path)[case]["level"] == level


def test_a_server_that_ends_is_said_to(kit: Path, tmp_path: Path) -> None:
    program, out = kit / "drivers" / "run_server.py", tmp_path / "out.json"
    start = f"{sys.executable} -c 'raise SystemExit(3)' {{path}} {{port}}"
    order = [sys.executable, str(program), str(kit), str(out), BASE, "--start", start]
    assert subprocess.run(order, capture_output=True, check=False).returncode == 0
    assert json.loads(out.read_text())["answers"] == {BASE: {"error": "ValueError: the server ended with 3"}}


def test_an_engine_that_dies_is_started_again(kit: Path, tmp_path: Path) -> None:
    program = tmp_path / "driver.py"
    program.write_text(PLANTED)
    shutil.copy(kit / "drivers" / "answering.py", tmp_path)
    order = [sys.executable, str(program), str(kit), str(tmp_path / "out.json"), BASE, FACTOR]
    done = subprocess.run(order, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    given = json.loads((tmp_path / "out.json").read_text())["answers"]
    assert given == {BASE: {"error": "its process ended with -6 (SIGABRT)"}, FACTOR: {"error": "KeyError: 'yarn'"}}


UNABLE = """
import answering

def prepare(arguments):
    return {"release": "0", "versions": {}}

def answer(job, arguments):
    if job["share"]:
        raise answering.Unsupported("keeps no cache")
    return [{"next": {"65": -1.0}} for _ in job["prompts"]]

answering.main("unable", "hf", prepare, answer, quantises=True)
"""


def test_a_driver_names_what_it_cannot_do_and_what_it_quantised(kit: Path, tmp_path: Path) -> None:
    copied = tmp_path / "kit"
    shutil.copytree(kit, copied)
    path = copied / "golden" / f"{BASE}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantised": "q8_0"}))
    (tmp_path / "driver.py").write_text(UNABLE)
    shutil.copy(SHIPPED / "drivers" / "answering.py", tmp_path)
    order = [sys.executable, str(tmp_path / "driver.py"), str(copied), str(tmp_path / "out.json")]
    done = subprocess.run(order, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{TURNS}: keeps no cache" in done.stderr.splitlines()
    given = json.loads((tmp_path / "out.json").read_text())["answers"]
    assert given[TURNS] == {"unsupported": "keeps no cache"}
    assert given[BASE]["quantised"] == "q8_0"
    assert "quantised" not in given[FACTOR]


RESUMED = """
import answering

def prepare(arguments):
    return {"engine": ENGINE, "release": RELEASE, "versions": {"torch": TORCH}}

def answer(job, arguments):
    return [{"next": {"65": -1.0}} for _ in job["prompts"]]

answering.main("planted", FORMAT, prepare, answer)
"""
STATED = {"ENGINE": "planted", "RELEASE": "1", "TORCH": "2", "FORMAT": "hf"}


def resumed(kit: Path, folder: Path, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run a planted driver of which some of these words are others."""
    text = RESUMED
    for name, value in {**STATED, **changes}.items():
        text = text.replace(name, repr(value) if value != "raise" else "open('/none/there')")
    (folder / "driver.py").write_text(text)
    shutil.copy(SHIPPED / "drivers" / "answering.py", folder)
    order = [sys.executable, str(folder / "driver.py"), str(kit), str(folder / "out.json"), *arguments]
    return subprocess.run(order, capture_output=True, text=True, check=False)


ANSWERED, FAILED = {"prompts": [{"next": {"65": -2.0}}]}, {"error": "KeyError: 'yarn'"}


@pytest.mark.parametrize(
    ("options", "asked_again"),
    [((), [FACTOR]), ((BASE,), [BASE]), (("--fresh",), [BASE, FACTOR])],
    ids=["failed cases", "a named case", "fresh"],
)
def test_answers_are_kept_unless_they_failed_or_are_asked_for(
    kit: Path, tmp_path: Path, options: tuple[str, ...], asked_again: list[str]
) -> None:
    assert resumed(kit, tmp_path, BASE).returncode == 0
    out = tmp_path / "out.json"
    before = json.loads(out.read_text())
    names = list(json.loads((kit / "manifest.json").read_text())["cases"])
    answers = {**dict.fromkeys(names, ANSWERED), FACTOR: FAILED}
    out.write_text(json.dumps({**before, "answers": answers}))
    done = resumed(kit, tmp_path, *options)
    assert done.returncode == 0, done.stderr
    after = json.loads(out.read_text())["answers"]
    changed = [name for name in names if after[name] != answers[name]]
    assert changed == (names if "--fresh" in options else asked_again)
    kept = len(names) - len(asked_again)
    assert ("--fresh" in options) != (f"{kept} cases are kept from {out} and not asked again" in done.stderr)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["llama-bse"], "there is no case llama-bse; the nearest: llama-base"),
        (["--dtype", "float17"], "there are no bounds for float17; the types are float32, bfloat16"),
    ],
)
def test_a_driver_refuses_what_the_kit_does_not_have(
    kit: Path, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    done = resumed(kit, tmp_path, *arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert not (tmp_path / "out.json").exists()


def test_a_folder_that_is_no_kit_is_refused(answers: Answers, kit: Path, tmp_path: Path) -> None:
    (tmp_path / "score.py").write_bytes((kit / "score.py").read_bytes())
    for done in (scored(tmp_path, answers, tmp_path), resumed(tmp_path, tmp_path, BASE)):
        assert done.returncode == 2
        assert f"{tmp_path} is no conformance kit: it has no manifest.json" in done.stderr


def test_a_kit_has_the_kept_golden_values(kit: Path, tmp_path: Path) -> None:
    assert kept.difference(kit) == ""
    golden = json.loads((kit / "golden" / f"{BASE}.json").read_text())
    golden["tables"][1]["next"][0][0] += 2 * kept.CLOSE
    (tmp_path / "golden").mkdir()
    (tmp_path / "golden" / f"{BASE}.json").write_text(json.dumps(golden))
    assert kept.difference(tmp_path) == BASE


def test_a_folder_for_the_answers_is_refused(kit: Path, tmp_path: Path) -> None:
    (tmp_path / "out.json").mkdir()
    done = resumed(kit, tmp_path, BASE)
    assert (done.returncode, "out.json is a folder; name a file for the answers" in done.stderr) == (2, True)


def test_one_case_is_scored_alone(kit: Path, answers: Answers, tmp_path: Path) -> None:
    alone = {**answers, "answers": {BASE: answers["answers"][BASE]}}
    assert scored(kit, alone, tmp_path).returncode == 1
    done = scored(kit, alone, tmp_path, "--case", BASE)
    assert (done.returncode, FACTOR in done.stdout) == (0, False)
    assert scored(kit, alone, tmp_path, "--case", FACTOR).returncode == 1
    assert (
        "there is no case llama-bse; the nearest: llama-base"
        in scored(kit, alone, tmp_path, "--case", "llama-bse").stderr
    )


def test_a_known_case_is_marked_and_named_if_it_passes(kit: Path, answers: Answers, tmp_path: Path) -> None:
    lines = scored(kit, answers, tmp_path, "--known", BASE).stdout.splitlines()
    assert f"  {BASE}: exact; remove --known {BASE}" in lines
    assert [line.split() for line in lines if line.startswith(f"{BASE} ")] == [[BASE, "exact", "(known)"]]


def test_an_engine_that_answers_no_case_fails(kit: Path, answers: Answers, tmp_path: Path) -> None:
    none = {**answers, "answers": {name: {"unsupported": "no class"} for name in answers["answers"]}}
    done = scored(kit, none, tmp_path)
    assert (done.returncode, "answers no case" in done.stderr) == (1, True)


def test_a_driver_with_rows_of_another_number_gets_a_sentence() -> None:
    with pytest.raises(ValueError, match="1 rows of log probabilities for 2 new tokens"):
        ANSWERING.answered(ANSWERING.Row(0, 0, 0, [2, 0]), [[-1.0, -2.0]])
    given = ANSWERING.answered(ANSWERING.Row(0, 0, 0, [1]), np.array([[-1.0, -2.0]]))
    assert json.loads(json.dumps(given))["next"] == {"0": -1.0, "1": -2.0}


def test_a_file_of_answers_is_gone_on_with(kit: Path, tmp_path: Path) -> None:
    for case in (BASE, FACTOR):
        assert resumed(kit, tmp_path, case).returncode == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert (found["engine"], found["release"], sorted(found["answers"])) == ("planted", "1", [FACTOR, BASE])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ENGINE": "another"}, "has answers of engine planted, and this is another; name another file"),
        ({"RELEASE": "2"}, "has answers of release 1, and this is 2; name another file"),
        ({"TORCH": "3"}, "has answers of versions {'torch': '2'}, and this is {'torch': '3'}; name another file"),
        ({"FORMAT": "gguf"}, "has answers of format hf, and this is gguf; name another file"),
        ({"RELEASE": "raise"}, "the engine does not start: FileNotFoundError: "),
    ],
)
def test_answers_of_another_engine_are_not_added(
    kit: Path, tmp_path: Path, changes: dict[str, str], sentence: str
) -> None:
    assert resumed(kit, tmp_path, BASE).returncode == 0
    before = (tmp_path / "out.json").read_bytes()
    done = resumed(kit, tmp_path, FACTOR, **changes)
    assert done.returncode == 2
    assert sentence in done.stderr.splitlines()[-1]
    assert (tmp_path / "out.json").read_bytes() == before


def test_where_the_engine_does_not_start_nothing_is_written(kit: Path, tmp_path: Path) -> None:
    done = resumed(kit, tmp_path, BASE, RELEASE="raise")
    assert done.returncode == 2
    assert done.stderr.endswith("No such file or directory: '/none/there'; nothing is written\n")
    assert not (tmp_path / "out.json").exists()
