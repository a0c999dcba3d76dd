"""Logs of lm-evaluation-harness: as it writes them, paired and judged; broken, mixed and foreign ones refused."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropetool.errors import ConfigError
from ropetool.lab.lm_eval import HarnessResult, command_lines, compared, lm_eval_check
from ropetool.lab.lm_eval_logs import has_logs
from ropetool.verification.gate import GRADES
from ropetool.verification.results import FAIL, NO_WORSE, NOT_RUN, PASS, UNDECIDED, WORSE, Check
from ropetool.verification.shares import paired_bounds

TIME = "2026-11-23T01-02-03.456789"


def sample(number: int, metrics: dict[str, Any], chosen: str = "none", **changes: Any) -> dict[str, Any]:
    """A line with the members that version 0.4.13 writes."""
    return {
        "doc_id": number, "doc": {"question": f"q{number}"}, "target": "a", "arguments": {"gen_args_0": {"arg_0": f"q{number}"}},
        "resps": [["a"]], "filtered_resps": ["a"], "filter": chosen, "metrics": list(metrics), "doc_hash": f"d{number}",
        "prompt_hash": f"p{number}", "target_hash": "t", **metrics, **changes,
    }  # fmt: skip


def write(
    folder: Path, role: str, task: str, lines: list[Any], time: str = TIME, results: dict[str, Any] | None = None
) -> Path:
    """A log where lm_eval puts it: behind the name of the model with its slashes replaced."""
    place = folder / role / f"__models__{role}"
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"samples_{task}_{time}.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    if results is not None:
        (place / f"results_{time}.json").write_text(json.dumps(results))
    return path


def both(folder: Path, task: str, target: list[Any], baseline: list[Any]) -> None:
    write(folder, "target", task, target)
    write(folder, "baseline", task, baseline)


def exact(values: np.ndarray, metric: str = "acc") -> list[dict[str, Any]]:
    return [sample(number, {metric: float(value)}) for number, value in enumerate(values)]


def read(folder: Path, grade: str = "usable") -> HarnessResult:
    return compared(folder, Path("target"), Path("baseline"), GRADES[grade].max_lost)


def judged(folder: Path, grade: str = "usable") -> Check:
    return lm_eval_check(read(folder, grade), GRADES[grade])


def right(share: float, count: int = 400, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).random(count) < share).astype(float)


# --- comparing


def test_right_and_wrong_answers_are_paired_by_tangos_bounds(tmp_path: Path) -> None:
    own = right(0.6)
    ours = own.copy()
    ours[np.flatnonzero(own)[:9]] = 0  # lost
    ours[np.flatnonzero(own == 0)[:4]] = 1  # gained
    both(tmp_path, "arc_challenge", exact(ours), exact(own)[::-1])  # in another order: they are paired by number
    (score,) = read(tmp_path).scores
    assert (score.task, score.metric, score.filter, score.samples, score.kind) == (
        "arc_challenge",
        "acc",
        "none",
        400,
        "exact",
    )
    assert (score.own, score.score) == (pytest.approx(own.mean()), pytest.approx(ours.mean()))
    assert score.difference == pytest.approx(-5 / 400)
    assert (score.lower, score.upper) == paired_bounds(4, 9, 400)
    assert score.verdict == NO_WORSE
    assert judged(tmp_path).verdict == PASS


def test_a_loss_fails_one_that_may_be_is_undecided_and_few_samples_say_nothing(tmp_path: Path) -> None:
    own = right(0.7)
    for name, lost, count, verdict in [("a", 0.3, 400, FAIL), ("b", 0.14, 400, UNDECIDED), ("c", 0.0, 5, NOT_RUN)]:
        ours = np.where(np.random.default_rng(1).random(400) < lost, 0.0, own)
        both(tmp_path / name, "gsm8k", exact(ours[:count]), exact(own[:count]))
        check = judged(tmp_path / name)
        assert check.verdict == verdict
        assert check.limit == -0.10
    assert judged(tmp_path / "b", "research").verdict == PASS
    assert "more samples can decide gsm8k" in judged(tmp_path / "b").detail


def test_a_score_that_no_float_holds_is_left_out(tmp_path: Path) -> None:
    lines = exact(right(0.6))
    both(tmp_path, "gsm8k", [{**line, "acc_norm": 10**400, "metrics": ["acc", "acc_norm"]} for line in lines], lines)
    assert [score.metric for score in read(tmp_path).scores] == ["acc"]


def test_swapping_the_two_models_turns_a_gain_into_a_loss(tmp_path: Path) -> None:
    better, worse = exact(right(0.9)), exact(right(0.5))
    both(tmp_path / "gain", "gsm8k", better, worse)
    both(tmp_path / "loss", "gsm8k", worse, better)
    assert [judged(tmp_path / name).verdict for name in ("gain", "loss")] == [PASS, FAIL]


def test_one_lost_task_fails_among_many_that_are_not(tmp_path: Path) -> None:
    for index in range(8):
        own = right(0.6, seed=index)
        both(tmp_path, f"task_{index}", exact(own * (right(0.4, seed=99) if index == 5 else 1)), exact(own))
    check = judged(tmp_path)
    assert check.verdict == FAIL
    assert "task_5" in check.detail
    assert "1 of 8 scores" in check.detail
    assert [score.verdict for score in read(tmp_path).scores].count(WORSE) == 1


def test_numbers_are_compared_by_documents_and_a_hundred_may_be_a_full_score(tmp_path: Path) -> None:
    own = np.random.default_rng(0).uniform(0.2, 0.9, 200)
    for name, scale in (("one", 1.0), ("hundred", 100.0)):
        both(tmp_path / name, "f1", exact(scale * (own - 0.01), "f1"), exact(scale * own, "f1"))
        (score,) = read(tmp_path / name).scores
        assert score.kind == "numeric"
        assert score.difference == pytest.approx(-0.01)
        assert score.verdict == NO_WORSE
    # Samples of the same document share what it is like, so ten documents tell less than two hundred.
    same = np.arange(200) % 10
    ours = np.clip(own + np.random.default_rng(1).normal(0, 0.1, 10)[same], 0, 1)
    lines = [[{**line, "doc_hash": f"d{n}"} for line, n in zip(exact(v, "f1"), same, strict=True)] for v in (ours, own)]
    both(tmp_path / "few", "f1", *lines)
    (clustered,) = read(tmp_path / "few").scores
    both(tmp_path / "many", "f1", exact(ours, "f1"), exact(own, "f1"))
    (alone,) = read(tmp_path / "many").scores
    assert clustered.difference == pytest.approx(alone.difference)
    assert clustered.upper - clustered.lower > 2 * (alone.upper - alone.lower)
    three = [[{**line, "doc_hash": f"d{line['doc_id'] % 3}"} for line in of_model] for of_model in lines]
    both(tmp_path / "three", "f1", *three)
    assert judged(tmp_path / "three").verdict == NOT_RUN


def test_other_scales_are_left_out_and_named(tmp_path: Path) -> None:
    lines = [sample(n, {"acc": 1.0, "logprob": -5.0 - n}) for n in range(20)]
    both(tmp_path, "mixed", lines, lines)
    found = read(tmp_path)
    assert [score.metric for score in found.scores] == ["acc"]
    assert "mixed logprob" in found.note
    words = [sample(n, {"word_perplexity": [-20.0, 7]}) for n in range(20)]
    both(tmp_path / "words", "wikitext", words, words)
    with pytest.raises(ConfigError, match="the logs do not contain any score"):
        read(tmp_path / "words")


@pytest.mark.parametrize("stated", [True, False])
def test_a_metric_that_is_better_when_it_is_lower_counts_the_other_way(tmp_path: Path, stated: bool) -> None:
    name = "errors" if stated else "brier_score"
    results = {"higher_is_better": {"t": {name: False}}} if stated else None
    write(tmp_path, "target", "t", exact(right(0.2), name), results=results)
    write(tmp_path, "baseline", "t", exact(right(0.7), name))
    (score,) = read(tmp_path).scores
    assert score.difference > 0.3
    assert judged(tmp_path).verdict == PASS


def test_each_filter_is_a_score_of_its_own_and_logs_without_a_list_of_metrics_are_read(tmp_path: Path) -> None:
    lines = [
        sample(n, {"exact_match": float(n % 2)}, chosen)
        for n in range(50)
        for chosen in ("strict-match", "flexible-extract")
    ]
    both(tmp_path, "gsm8k", lines, lines)
    assert {score.filter for score in read(tmp_path).scores} == {"strict-match", "flexible-extract"}
    old = [{k: v for k, v in line.items() if k not in ("metrics", "filter")} for line in exact(right(0.5))]
    both(tmp_path / "old", "gsm8k", old, old)
    assert [score.metric for score in read(tmp_path / "old").scores] == ["acc"]


def ruler(lengths: dict[int, float], seed: int = 0) -> list[dict[str, Any]]:
    """RULER's samples: the length is a metric, and 4096 too, with -1 where that is not the sample's."""
    rng, lines = np.random.default_rng(seed), []
    for length, share in lengths.items():
        for _ in range(100):
            scores = {"4096": -1.0, str(length): rng.binomial(4, share) / 4}
            lines.append(sample(len(lines), scores, doc_hash=f"{length} {len(lines)}"))
    return lines


LATER = "2026-11-23T09-00-00.000001"


def test_lengths_of_ruler_beyond_the_baselines_are_held_against_its_own(tmp_path: Path) -> None:
    """From a run of their own, whose samples have the same numbers and other documents."""
    both(tmp_path, "niah_multivalue", ruler({4096: 0.95}), ruler({4096: 0.95}))
    write(tmp_path, "target", "niah_multivalue", ruler({8192: 0.95, 16384: 0.4}, seed=1), time=LATER)
    found = {score.metric: score for score in read(tmp_path).scores}
    assert list(found) == ["4096", "8192", "16384"]
    assert [found[n].kind for n in found] == ["numeric", "unpaired", "unpaired"]
    assert [found[n].verdict for n in found] == [NO_WORSE, NO_WORSE, WORSE]
    assert all(score.samples == 100 for score in found.values())
    assert found["16384"].own == pytest.approx(0.95, abs=0.03)
    assert judged(tmp_path).verdict == FAIL


def test_lengths_that_the_baseline_alone_has_are_refused(tmp_path: Path) -> None:
    both(tmp_path, "niah_single_1", ruler({8192: 0.9}), ruler({8192: 0.9, 16384: 0.9}))
    with pytest.raises(ConfigError, match="only the baseline has 16384 of niah_single_1"):
        read(tmp_path)
    both(tmp_path / "shorter", "niah_single_1", ruler({4096: 0.9}), ruler({8192: 0.9}))
    with pytest.raises(ConfigError, match="only the target has 4096 of niah_single_1"):
        read(tmp_path / "shorter")


def test_the_newest_log_of_a_task_counts(tmp_path: Path) -> None:
    both(tmp_path, "gsm8k", exact(right(0.9)), exact(right(0.9)))
    write(tmp_path, "target", "gsm8k", exact(right(0.1)), time="2026-12-01T00-00-00.000001")
    assert judged(tmp_path).verdict == FAIL
    write(tmp_path, "target", "gsm8k", exact(right(0.9)), time="2026-12-02T00-00-00.000001")
    assert judged(tmp_path).verdict == PASS


# --- what is refused


def other_document(lines: list[dict[str, Any]]) -> list[Any]:
    return [*lines[:7], {**lines[7], "doc_hash": "another"}, *lines[8:]]


def other_prompt(lines: list[dict[str, Any]]) -> list[Any]:
    return [*lines[:7], {**lines[7], "prompt_hash": "another"}, *lines[8:]]


REFUSED: dict[str, tuple[Callable[[list[dict[str, Any]]], list[Any]], str]] = {
    "not JSON": (lambda lines: [*lines[:3], "{", *lines[4:]], "jsonl:4: the line is not JSON"),
    "deep": (lambda lines: ["[" * 100_000], "is not JSON"),
    "a list": (lambda lines: ["[1]"], "has no doc_id"),
    "without a number": (lambda lines: [{"acc": 1.0}], "has no doc_id"),
    "twice": (lambda lines: [*lines, lines[3]], "sample 3 occurs twice; the log must contain only one run"),
    "another document": (other_document, "the document of sample 7 of gsm8k differs from the log of the baseline"),
    "another prompt": (other_prompt, "the prompt of sample 7 of gsm8k differs"),
    "cut off": (lambda lines: lines[:30], "only the log of the baseline contains 10 samples of gsm8k, first 30"),
    "more": (lambda lines: [*lines, sample(90, {"acc": 1.0})], "only the log of the target contains 1 samples of gsm8k, first 90"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_bad_logs_are_refused_in_a_sentence(kind: str, tmp_path: Path) -> None:
    change, sentence = REFUSED[kind]
    lines = exact(right(0.5, 40))
    both(tmp_path, "gsm8k", change(lines), lines)
    with pytest.raises(ConfigError, match=sentence) as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value.message)
    assert caught.value.where == "--lm-eval"


def test_logs_of_one_model_or_of_other_tasks_are_refused(tmp_path: Path) -> None:
    assert not has_logs(tmp_path)
    write(tmp_path, "target", "gsm8k", exact(right(0.5)))
    assert has_logs(tmp_path)
    with pytest.raises(ConfigError, match="no log of samples"):
        read(tmp_path)
    write(tmp_path, "baseline", "hellaswag", exact(right(0.5)))
    with pytest.raises(ConfigError, match="only the target has acc of gsm8k"):
        read(tmp_path)


def test_logs_of_another_model_are_refused(tmp_path: Path) -> None:
    models = {name: tmp_path / name for name in ("target", "baseline", "other")}
    for path in models.values():
        path.mkdir()
    lines, logs = exact(right(0.5)), tmp_path / "logs"
    write(logs, "baseline", "gsm8k", lines, results={"model_name": str(models["baseline"])})
    for named, refused in (("target", False), ("other", True), ("baseline", True)):
        write(logs, "target", "gsm8k", lines, results={"model_name": str(models[named])})
        if refused:
            with pytest.raises(ConfigError, match=f"these are results of .*{named}, not of"):
                compared(logs, models["target"], models["baseline"], 0.1)
        else:
            assert compared(logs, models["target"], models["baseline"], 0.1).scores
    for elsewhere in ("org/name", f"/{'a' * 300}"):  # of the hub, or a path that no disk can have
        write(logs, "target", "gsm8k", lines, results={"model_name": elsewhere})
        assert compared(logs, models["target"], models["baseline"], 0.1).scores


# --- the commands


def test_the_commands_are_words_of_a_shell_and_write_where_logs_are_read(tmp_path: Path) -> None:
    target = tmp_path / "a model"
    target.mkdir()
    gguf = tmp_path / "base.gguf"
    lines = [shlex.split(line) for line in command_lines(target, gguf, Path("out dir"), 4096, 16384)]
    named, base = f"pretrained={target},max_length=", f"pretrained={tmp_path},gguf_file=base.gguf,max_length=4096"
    short = "hellaswag,arc_challenge,winogrande,gsm8k"
    after = {
        word: [line[line.index(word) + 1] for line in lines] for word in ("--tasks", "--output_path", "--model_args")
    }
    assert after["--tasks"] == [short, "ruler", "ruler", short, "ruler"]
    assert after["--output_path"] == ["out dir/target"] * 3 + ["out dir/baseline"] * 2
    assert after["--model_args"] == [f"{named}4096", f"{named}4096", f"{named}16384", base, base]
    stated = [json.loads(line[line.index("--metadata") + 1]) for line in lines if "--metadata" in line]
    assert stated == [{"max_seq_lengths": lengths} for lengths in ([4096], [8192, 16384], [4096])]
    assert all({"lm_eval", "run", "--log_samples"} <= set(line) for line in lines)
    assert len(command_lines(target, gguf, Path("out"), 4096, 4096)) == 4
