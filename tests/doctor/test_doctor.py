"""`ropetool doctor`: each known error is found by its rule and no other, real files raise no false alarm, and repairs change no number."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import configs
import gguf_files
import gguf_headers
import planted
import pytest
from gguf_logits import llama_logits
from hub_server import Hub, local_hub
from models import config_of, write_config
from probes import probe, v4_python
from running import run, snapshot

from ropetool.cli import signals
from ropetool.doctor import ERROR, NOTE, WARNING, examine, opening
from ropetool.doctor import readings as rules_of_readings
from ropetool.doctor.rules import RULES
from ropetool.escaping import word, words
from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched
from ropetool.rope.tables import RopeSet
from ropetool.runtimes.llama_cpp import architectures

DEMO = Path(signals.__file__).parents[1] / "demo" / "model"
REAL = Path(os.environ.get("ROPETOOL_REAL_FILES", "/nowhere"))
PLANTS = [
    (file_format, rule, number)
    for file_format, table in (("hf", planted.HF), ("gguf", planted.GGUF))
    for rule, plants in table.items()
    for number in range(len(plants))
]


def found_in(*named: Path | str, **options: Any) -> set[str]:
    return {finding.rule for finding in examine([str(name) for name in named], **options).findings}


def plant(file_format: str, rule: str, number: int, folder: Path) -> tuple[Path, set[str]]:
    write, also = (planted.HF if file_format == "hf" else planted.GGUF)[rule][number]
    return write(folder), {rule, *also.split()}


# --- each error is found, by its rule alone


@pytest.mark.parametrize(("file_format", "rule", "number"), PLANTS)
def test_a_planted_error_is_found_by_its_rule_alone(file_format: str, rule: str, number: int, tmp_path: Path) -> None:
    path, expected = plant(file_format, rule, number, tmp_path)
    before = snapshot(tmp_path)
    assert found_in(path) == expected
    assert found_in(path, only=[rule]) == {rule}
    assert snapshot(tmp_path) == before


def test_every_rule_has_a_planted_error_in_each_format_that_it_is_for() -> None:
    here = {"hf": planted.HF, "gguf": planted.GGUF}
    missing = {(rule.name, each) for rule in RULES for each in rule.formats if rule.name not in here[each]}
    # Two keys of a GGUF file cannot contradict each other; a directory has a source only by --source, in tests below.
    assert missing == {("ambiguous", "gguf"), ("source-table", "hf"), ("source-context", "hf")}


@pytest.mark.parametrize("family", [*configs.FAMILIES, *configs.MORE_FAMILIES])
def test_no_config_in_the_older_style_has_an_error(family: str, tmp_path: Path) -> None:
    model = write_config(tmp_path / "model", configs.config(family, "v4"))
    assert [finding for finding in examine([str(model)]).findings if finding.severity == ERROR] == []


def test_no_gguf_file_that_states_what_its_architecture_reads_has_a_finding(tmp_path: Path) -> None:
    for arch in architectures.names():
        gguf_headers.write(tmp_path / f"{arch}.gguf", arch)
    found = examine([str(tmp_path)])
    assert len(found.examined) == len(architectures.names()) > 100
    assert {one.name: one.findings for one in found.examined if one.findings} == {}


def test_a_wrong_rule_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let one comparison be blind: the plants that it decides about are no longer found."""
    path, expected = plant("hf", "config-style", 0, tmp_path)
    monkeypatch.setattr(RopeSet, "differences", lambda self, other: ())
    assert found_in(path) != expected
    monkeypatch.undo()
    assert found_in(path) == expected
    window, _ = plant("hf", "sliding-window", 0, tmp_path / "other")
    monkeypatch.setitem(rules_of_readings.BY_FIELD, "sliding_window", "temperature")
    assert "temperature" in found_in(window)


# --- severity, runtimes, sources


def test_a_warning_about_a_runtime_of_the_user_is_an_error_and_others_are_left_out(tmp_path: Path) -> None:
    path, _ = plant("hf", "truncate", 0, tmp_path)
    assert {finding.severity for finding in examine([str(path)]).findings} == {WARNING}
    mine = examine([str(path)], for_runtimes=["mlx-lm"])
    assert [(finding.rule, finding.severity) for finding in mine.findings] == [("truncate", ERROR)]
    assert found_in(path, for_runtimes=["vllm"]) == set()


def test_length_ratio_is_an_error_where_the_promise_is_too_long(tmp_path: Path) -> None:
    severities = []
    for number in (0, 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        path, _ = plant("gguf", "length-ratio", number, folder)
        severities += [finding.severity for finding in examine([str(path)]).findings]
    assert severities == [ERROR, WARNING]


def test_a_source_that_is_given_is_compared_in_either_format(tmp_path: Path) -> None:
    plain = write_config(tmp_path / "plain", configs.config("llama", "v4"))
    other = planted.hf("llama", rope_theta=1e6)(tmp_path)
    assert found_in(plain, source=str(plain)) == set()
    assert found_in(plain, source=str(other)) == {"source-table"}


def test_a_config_beside_a_file_of_another_size_is_not_its_source(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "model", configs.config("llama", "v4", theta=1e6))  # of two layers
    assert found_in(gguf_files.model(folder / "model.gguf")) == set()


@pytest.mark.parametrize(("file_format", "rule", "number"), PLANTS)
def test_commands_that_are_named_as_a_fix_run_and_mend(
    file_format: str, rule: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, _ = plant(file_format, rule, number, tmp_path)
    for finding in examine([str(path)], only=[rule]).findings:
        if not finding.is_command:
            continue
        output = tmp_path / ("mended.gguf" if file_format == "gguf" else "mended")
        *before, last = finding.fix.split(" && ")
        for line in (*before, f"{last} -o {word(output)}"):
            done = run(*words(line)[1:])
            assert done.code == 0, done.err
        assert found_in(output, only=[rule]) == set()


# --- many, and broken ones among them


def test_a_folder_of_many_is_searched_and_a_broken_one_stops_nothing(tmp_path: Path) -> None:
    for name in ("a/deep/one", "b"):
        write_config(tmp_path / name, configs.config("llama", "v4"))
    write_config(tmp_path / "broken", "{")
    gguf_files.model(tmp_path / "b" / "model.gguf", shards=2)
    write_config(tmp_path / ".hidden" / "model", "{")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    found = examine([str(tmp_path)])
    assert [one.name.removeprefix(f"{tmp_path}/") for one in found.examined] == [
        "a/deep/one", "b", "b/model-00001-of-00002.gguf", "broken",
    ]  # fmt: skip
    assert [(finding.rule, finding.severity) for finding in found.findings] == [("unreadable", ERROR)]
    assert found.exit_code == 1


def test_a_folder_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        write_config(tmp_path / name, configs.config("llama", "v4"))
    monkeypatch.setattr(opening, "MAX_FOUND", 2)
    (finding,) = examine([str(tmp_path)]).findings
    assert (finding.rule, finding.sentence) == ("unreadable", "contains more than 20000 folders or 2 checkpoints")


def test_a_missing_shard_is_a_finding(tmp_path: Path) -> None:
    gguf_files.model(tmp_path / "model.gguf", shards=2).unlink()
    assert found_in(tmp_path) == {"unreadable"}


def test_git_lfs_pointers_are_named_with_the_command_that_fetches_them(tmp_path: Path) -> None:
    model, alone = planted._pointers(tmp_path), planted._pointer(tmp_path)
    (model / "tokenizer.json").write_text(planted.POINTER)
    findings = {(finding.sentence, finding.fix) for finding in examine([str(model), str(alone)]).findings}
    assert findings == {
        ("is a Git LFS pointer, not the weights", "git lfs pull"),
        ("model.safetensors is a Git LFS pointer, not the file itself", "git lfs pull"),
        ("tokenizer.json is a Git LFS pointer, not the file itself", "git lfs pull"),
    }
    done = run("extend", alone, "--method", "yarn", "--factor", "2", "-o", tmp_path / "out")
    assert (done.code, done.err) == (1, f"Error: {alone}: is a Git LFS pointer, not the weights\nTry: git lfs pull\n")


# The right answers are of transformers' _compute_yarn_parameters, which alone reads the two keys.
NO_PAIR = {
    "linear": {"rope_type": "linear", "factor": 4.0, "mscale": 0.7},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0, "mscale": 0.7},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512, "mscale": 0.7,
    },
    "both set, as in Devstral 2": {**planted.YARN, "mscale": 1.0, "mscale_all_dim": 0.0},
    "both set and equal": {**planted.YARN, "mscale": 0.7, "mscale_all_dim": 0.7},
    "a lone mscale of 1, which every reader takes for the default": {**planted.YARN, "mscale": 1.0},
    "an attention factor besides": {**planted.YARN, "mscale": 0.7, "attention_factor": 1.1},
}  # fmt: skip


@pytest.mark.parametrize("name", NO_PAIR)
def test_mscale_is_no_finding_unless_it_changes_the_factor(name: str, tmp_path: Path) -> None:
    model = planted.scaled("llama", **NO_PAIR[name])(tmp_path)
    assert found_in(model, only=["mscale-pair"]) == set()


def test_the_factor_of_a_lone_mscale_is_stated_both_ways(tmp_path: Path) -> None:
    (finding,) = examine([str(plant("hf", "mscale-pair", 0, tmp_path)[0])], only=["mscale-pair"]).findings
    assert (finding.severity, finding.sentence) == (
        WARNING,
        "mscale is set without mscale_all_dim: transformers ignores it, so the attention factor is 1.13863; DeepSeek's own "
        "code computes 1.09704",
    )  # 0.1 ln 4 + 1, and 0.07 ln 4 + 1


def test_exit_codes(tmp_path: Path) -> None:
    good = write_config(tmp_path / "good", configs.config("llama", "v4"))
    bad, _ = plant("hf", "config-style", 0, tmp_path)
    assert run("doctor", good).code == 0
    assert run("doctor", good, bad).code == 3
    assert run("doctor", bad, tmp_path / "absent").code == 3
    assert run("doctor", good, tmp_path / "absent").code == 1
    assert run("doctor").code == 2
    assert run("doctor", good, "--only", "config-stile").code == 2
    assert run("doctor", good, "--for", "vlm").code == 2


def test_an_empty_folder_holds_nothing_to_examine(tmp_path: Path) -> None:
    done = run("doctor", tmp_path)
    assert (done.code, done.err) == (1, "")
    assert "does not contain a config.json or a GGUF file, at any depth" in done.out


# --- what is printed


def test_text(tmp_path: Path) -> None:
    path, _ = plant("hf", "config-style", 0, tmp_path)
    lines = run("doctor", path, "--for", "transformers-v4").out.splitlines()
    assert lines == [
        str(path),
        "  error  config-style  in transformers-v4: table: 15 of 16 pairs differ: distances look up to 75x longer; with the "
        "table in both config styles, it agrees",
        f"                       fix: `ropetool doctor {path} --fix`",
        "",
        "1 checkpoint: 1 error",
    ]


def test_json(tmp_path: Path) -> None:
    path, _ = plant("hf", "truncate", 0, tmp_path)
    done = run("doctor", path, "--json")
    data = done.json
    assert (done.code, data["schema"], data["counts"]) == (0, 1, {"error": 0, "warning": 1, "note": 0})
    (finding,) = data["checkpoints"][0]["findings"]
    assert finding["rule"] == "truncate"
    assert finding["key"] == "truncate"
    assert all(name.startswith("mlx-") for name in finding["runtimes"])


def test_rules_are_listed(tmp_path: Path) -> None:
    assert [line.split()[0] for line in run("doctor", "--rules").out.splitlines()] == [rule.name for rule in RULES]
    data = run("doctor", "--rules", "--json").json
    assert [rule["name"] for rule in data["rules"]] == [rule.name for rule in RULES]
    assert {rule["severity"] for rule in data["rules"]} == {ERROR, WARNING, NOTE}


def test_names_of_rules_are_short_and_used_once() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 18 and name == name.lower() for name in names)


def test_sarif_has_what_the_schema_requires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, _ = plant("hf", "truncate", 0, tmp_path)
    plant("gguf", "key-type", 0, tmp_path / "model")
    done = run("doctor", "model", "absent", "--sarif", "found.sarif")
    assert done.code == 3
    log = json.loads((tmp_path / "found.sarif").read_text())
    assert (log["version"], len(log["runs"])) == ("2.1.0", 1)  # 3.13.2, 3.13.4
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    driver = log["runs"][0]["tool"]["driver"]  # 3.14.6, 3.18.2, 3.19.8
    assert driver["name"] == "ropetool doctor"
    rules = driver["rules"]
    assert all(rule["id"] and rule["shortDescription"]["text"] and rule["fullDescription"]["text"] for rule in rules)
    assert {rule["defaultConfiguration"]["level"] for rule in rules} <= {"none", "note", "warning", "error"}
    results = log["runs"][0]["results"]
    assert {result["ruleId"] for result in results} == {"truncate", "key-type", "unreadable"}
    for result in results:
        assert result["message"]["text"]  # 3.27.11
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]  # 3.27.6
        assert result["level"] in {"none", "note", "warning", "error"}  # 3.27.10
        place = result["locations"][0]["physicalLocation"]
        assert not place["artifactLocation"]["uri"].startswith("/")
        assert place.get("region", {"startLine": 1})["startLine"] >= 1  # 3.30.5
    line = next(r for r in results if r["ruleId"] == "truncate")["locations"][0]["physicalLocation"]
    assert line["artifactLocation"]["uri"] == "model/config.json"
    text = (model / "config.json").read_text().splitlines()
    assert '"truncate"' in text[line["region"]["startLine"] - 1]


# --- repairs


BOTH_KNOW = ["llama", "qwen2", "qwen3", "mistral", "gemma3_text", "deepseek_v3", "stablelm", "phi", "glm4"]
REPAIRED = [
    ("hf", "config-style", 0),
    ("hf", "number-as-text", 0),
    ("hf", "number-as-text", 1),
    ("gguf", "key-type", 0),
    ("gguf", "key-type", 1),
]


@pytest.mark.parametrize(("file_format", "rule", "number"), REPAIRED)
def test_a_repair_lies_beside_its_source_and_leaves_nothing_to_find(
    file_format: str, rule: str, number: int, tmp_path: Path
) -> None:
    path, _ = plant(file_format, rule, number, tmp_path)
    before = path.read_bytes() if path.is_file() else (path / "config.json").read_bytes()
    done = run("doctor", path, "--fix", "--json")
    assert done.code == 0, done.out
    (fixed,) = done.json["fixed"]
    output = Path(fixed["output"])
    assert output.parent == path.parent
    assert "-fixed" in output.name
    assert found_in(output) == set()
    assert (path.read_bytes() if path.is_file() else (path / "config.json").read_bytes()) == before
    again = run("doctor", path, "--fix")
    assert again.code == 3  # the source has its error, and what is there already is not written over
    assert "exists" in again.out


@pytest.mark.parametrize("family", BOTH_KNOW)
@pytest.mark.parametrize("scaling", [{}, {**planted.YARN, "attention_factor": 1.25}], ids=["plain", "yarn"])
def test_both_transformers_read_the_same_from_a_repair(family: str, scaling: dict[str, Any], tmp_path: Path) -> None:
    """Ask the two programs themselves, before and after; before, 4.57 is wrong and 5 is right."""
    config = configs.config(family, "v5", theta=1e6)
    keys = config["rope_parameters"]
    keys = keys.get("full_attention", keys)
    keys |= {**scaling, "rope_type": scaling.get("rope_type", "default")}
    if scaling:
        config |= {
            "max_position_embeddings": 2048,
            **({"head_dim": 32} if family == "mistral" else {}),
        }  # 4.57 needs it
    model = write_config(tmp_path / "model", config)
    assert run("doctor", model, "--fix").code == 0
    jobs = [{"path": str(each), "lengths": [64]} for each in (model, tmp_path / "model-fixed")]
    (source, output), (old_source, old_output) = probe(jobs), probe(jobs, v4_python())
    assert output == source
    for kind, rotation in source["layers"].items():
        assert _alike(rotation, old_output["layers"][kind])
    assert not all(_alike(rotation, old_source["layers"][kind]) for kind, rotation in source["layers"].items())


def _alike(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> bool:
    return all(
        a["inv_freq"] == pytest.approx(b["inv_freq"], rel=3e-6)
        and a["attention_factor"] == pytest.approx(b["attention_factor"])
        for a, b in zip(ours, theirs, strict=True)
    )


def test_llama_cpp_runs_a_file_whose_keys_were_retyped_as_it_runs_the_right_one(tmp_path: Path) -> None:
    right = gguf_files.model(tmp_path / "right.gguf", keys=planted.GGUF_YARN)
    wrong = gguf_files.model(
        tmp_path / "wrong.gguf", keys={**planted.GGUF_YARN, "rope.scaling.factor": (planted.FLOAT64, 4.0)}
    )
    assert run("doctor", wrong, "--fix").code == 0
    mended = tmp_path / "wrong-fixed.gguf"
    assert gguf_files.values(right).items() <= gguf_files.values(mended).items()
    assert (llama_logits(mended) == llama_logits(right)).all()


def test_a_gguf_file_is_mended_where_it_lies_and_a_directory_is_not(tmp_path: Path) -> None:
    path, _ = plant("gguf", "key-type", 0, tmp_path)
    model, _ = plant("hf", "config-style", 0, tmp_path)
    done = run("doctor", path, "--fix", "--in-place")
    assert done.code == 0, done.out
    assert found_in(path) == set()
    assert not (tmp_path / "model-fixed.gguf").exists()
    before = snapshot(model)
    done = run("doctor", model, "--fix", "--in-place")
    assert done.code == 3
    assert "only GGUF files can be edited in place" in done.out
    assert snapshot(model) == before
    assert run("doctor", path, "--in-place").code == 2
    assert run("doctor", path, "--fix", "--in-place", "-o", tmp_path / "x.gguf").code == 2


def test_a_number_that_the_right_type_cannot_hold_is_not_repaired(tmp_path: Path) -> None:
    path = gguf_files.model(tmp_path / "model.gguf", keys={"rope.freq_base": (planted.FLOAT64, 10000.1)})
    done = run("doctor", path, "--fix")
    assert done.code == 3
    assert [each.name for each in tmp_path.iterdir()] == ["model.gguf"]


def test_a_log_takes_the_place_of_a_log_alone(tmp_path: Path) -> None:
    path, _ = plant("hf", "config-style", 0, tmp_path)
    before = snapshot(tmp_path)
    for place, said in ((path / "config.json", "is not a SARIF log"), (tmp_path / "no" / "x.sarif", "does not exist")):
        done = run("doctor", path, "--fix", "--sarif", place)
        assert (done.code, said in done.err) == (1, True), done.err
        assert snapshot(tmp_path) == before  # no copy either: it is asked before anything is written
    log = tmp_path / "found.sarif"
    for _ in range(2):
        assert run("doctor", path, "--sarif", log).code == 3
        assert json.loads(log.read_text())["version"] == "2.1.0"


@pytest.mark.parametrize("rule", ["config-style", "number-as-text"])
def test_a_repair_that_differs_from_the_source_still_is_an_error(rule: str, tmp_path: Path) -> None:
    path, _ = plant("hf", rule, 0, tmp_path)
    (tmp_path / "other").mkdir()
    other = planted.hf("llama", rope_theta=2e5)(tmp_path / "other")
    done = run("doctor", path, "--source", other, "--fix", "--json")
    (fixed,) = done.json["fixed"]
    assert (done.code, fixed["errors_left"]) == (3, 1)
    assert run("doctor", fixed["output"], "--source", other).code == 3


def test_output_names_one_copy(tmp_path: Path) -> None:
    path, _ = plant("hf", "config-style", 0, tmp_path)
    assert run("doctor", path, "--fix", "-o", tmp_path / "here").code == 0
    assert config_of(tmp_path / "here")["rope_theta"] == 1e6
    assert run("doctor", path, "-o", tmp_path / "there").code == 2
    write_config(path / "inner", configs.config("llama", "v4"))
    assert run("doctor", path, "--fix", "-o", tmp_path / "there").code == 2


# --- real files


@pytest.mark.skipif(not REAL.is_dir(), reason="set ROPETOOL_REAL_FILES")
def test_real_configs_and_gguf_files_raise_no_false_alarm(tmp_path: Path) -> None:
    for path in (REAL / "configs").glob("*.json"):
        write_config(tmp_path / path.stem, path.read_text(encoding="utf-8"))
    found = examine([str(tmp_path)])
    errors = {(Path(one.name).name, f.rule) for one in found.examined for f in one.findings if f.severity == ERROR}
    # Both are dumps of transformers 5, whose one style 4.57 reads with the base 10000 and without YARN.
    assert errors == {
        ("Qwen__Qwen3-30B-A3B-Instruct-2507", "config-style"), ("deepseek-ai__DeepSeek-V2-Lite-Chat", "config-style"),
    }  # fmt: skip
    assert not [f for f in examine([str(REAL / "vocab-gguf")]).findings if f.severity != NOTE]


def test_the_demo_has_nothing_to_find() -> None:
    assert found_in(DEMO) == set()


# --- the hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.chdir(tmp_path)
    with local_hub(tmp_path / "cache", monkeypatch) as served:
        served.repositories["acme/llama"] = planted.hf(
            "llama", "v5", rope_parameters=BASE, num_hidden_layers=1, head_dim=64
        )(tmp_path)
        yield served


BASE = {"rope_type": "default", "rope_theta": 1e6}


def test_a_checkpoint_on_the_hub_is_examined_and_not_repaired_there(hub: Hub) -> None:
    done = run("doctor", "acme/llama", "--for", "transformers-v4", "--fix", "--json")
    assert done.code == 3, done.err
    (finding,) = done.json["checkpoints"][0]["findings"]
    assert (finding["rule"], finding["fix_is_command"]) == ("config-style", False)
    assert done.json["fixed"][0]["refusal"] == finding["fix"] == "download it, then run ropetool doctor FOLDER --fix"


def test_the_repository_that_a_file_names_is_compared_if_the_cache_has_it(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    named = {"rope.freq_base": 10000.0, "context_length": 512}
    path = gguf_files.model(folder / "plain.gguf", keys=named)
    header = read_header(path)
    address = Value.of(ValueType.STR, "https://huggingface.co/acme/llama")
    source = folder / "model.gguf"
    write_patched(header, Patch({"general.source.repo_url": address}), source)
    assert found_in(source) == set()  # nobody is asked
    assert run("inspect", "acme/llama").code == 0
    asked = len(hub.asked)
    found = examine([str(source)])
    assert len(hub.asked) == asked
    assert [finding.rule for finding in found.findings] == ["source-table"]
    (finding,) = found.findings
    assert run(*words(finding.fix)[1:], "-o", "mended.gguf").code == 0
    assert gguf_files.values(tmp_path / "mended.gguf")["llama.rope.freq_base"] == ("FLOAT32", 1e6)
    assert found_in("mended.gguf", source="acme/llama") == set()
