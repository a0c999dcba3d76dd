"""`ropetool extend --variants`: an output for each length, and routing files that send each prompt to the shortest."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import configs
import gguf_files
import pytest
import yaml
from models import config_of, set_config, write_model
from running import run, snapshot

from ropetool.errors import OutputError
from ropetool.plans import applying, routing, serving

YARN = ("--method", "yarn")
LENGTHS = {"model-native": 512, "model-yarn-1024": 1024, "model-yarn-2048": 2048}


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    gguf_files.model(tmp_path / "model.gguf")
    return write_model(tmp_path / "model", configs.config("llama", "v4"))


def loaded(file: str) -> Any:
    return yaml.safe_load(Path(file).read_text(encoding="utf-8"))


def server_for(config: Any, tokens: int) -> str:
    """Return the model that LiteLLM 1.108.7 asks first for a prompt with this many tokens.

    As its router.py: _pre_call_checks drops servers whose max_input_tokens is below the count, and
    get_order_filtered_deployments keeps the lowest order.
    """
    assert config["router_settings"]["enable_pre_call_checks"] is True
    group = config["model_list"][0]["model_name"]
    deployments = [each for each in config["model_list"] if each["model_name"] == group]
    fit = [each for each in deployments if each["model_info"].get("max_input_tokens", tokens) >= tokens]
    first = min(fit, key=lambda each: each["litellm_params"]["order"])
    assert [each["litellm_params"]["order"] for each in fit].count(first["litellm_params"]["order"]) == 1
    return str(first["litellm_params"]["model"].removeprefix("openai/"))


def context_in(path: str) -> int:
    """Return the context length in the files of a model, by the gguf package or from config.json."""
    if path.endswith(".gguf"):
        return int(gguf_files.keys(Path(path))["llama.context_length"])
    return int(config_of(Path(path))["max_position_embeddings"])


# --- outputs


def test_each_length_has_its_own_output_and_the_weights_exist_once(tmp_path: Path, source: Path) -> None:
    before = snapshot(source)
    done = run("extend", "model", *YARN, "--variants", "2k,1k")
    assert done.code == 0, done.err
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for factor, name in ((2, "model-yarn-1024"), (4, "model-yarn-2048")):
        assert run("extend", "model", *YARN, "--factor", str(factor), "-o", f"single-{factor}").code == 0
        several, single = (AutoConfig.from_pretrained(tmp_path / each) for each in (name, f"single-{factor}"))
        assert several.max_position_embeddings == single.max_position_embeddings == 512 * factor
        tables = [ROPE_INIT_FUNCTIONS["yarn"](config, "cpu") for config in (several, single)]
        assert tables[0][0].tolist() == tables[1][0].tolist()
        assert tables[0][1] == tables[1][1]
        linked = os.stat(tmp_path / name / "model-00001-of-00002.safetensors").st_nlink
        assert (linked > 1) == ("share the weight files of the source" in done.out)
    assert snapshot(source) == before
    assert "Note: the outputs share the weight files of the source\n" in done.err


def test_the_space_that_copies_take_is_printed_before_they_are_written(tmp_path: Path) -> None:
    size = (tmp_path / "model.gguf").stat().st_size
    done = run("extend", "model.gguf", *YARN, "--variants", "1k,2k", "--json")
    assert done.code == 0, done.err
    assert done.json["new_bytes"] == 2 * size
    first = done.err.splitlines()[0]
    assert first.startswith("Note: the outputs take ")
    assert first.endswith(": the RoPE keys are in the file of the weights")
    for length in (1024, 2048):
        assert context_in(f"model-yarn-{length}.gguf") == length
    done = run("extend", "model", "--method", "ntk", "--variants", "1k", "--copy", "--json")
    assert done.json["new_bytes"] == sum(path.stat().st_size for path in Path("model").glob("*.safetensors"))


def test_of_a_split_model_only_the_first_file_is_copied(tmp_path: Path) -> None:
    first = gguf_files.model(tmp_path / "split.gguf", shards=2)
    done = run("extend", first, *YARN, "--variants", "1k,2k", "--json")
    assert done.code == 0, done.err
    assert done.json["new_bytes"] == 2 * first.stat().st_size
    served = [each["path"] for each in done.json["models"]]
    assert [Path(path).name for path in served] == [
        f"{name}-00001-of-00002.gguf" for name in ("split", "split-yarn-1024", "split-yarn-2048")
    ]
    assert [context_in(path) for path in served] == [512, 1024, 2048]


def test_all_outputs_go_into_the_folder_of_o(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    done = run("extend", "model.gguf", *YARN, "--variants", "1k,2k", "-o", "out", "--no-sidecars")
    assert done.code == 0, done.err
    names = ["model-yarn-1024.gguf", "model-yarn-2048.gguf"]
    records = [f"{name}.ropetool.json" for name in names]
    assert sorted(os.listdir("out")) == sorted(
        [*names, *records, "model-yarn-litellm.yaml", "model-yarn-llama-swap.yaml"]
    )


def test_without_a_method_all_variants_have_the_one_recommended_for_the_longest(tmp_path: Path) -> None:
    """A separate extension to the shorter length has a different method."""
    method = [
        run("extend", "model", "--target-length", length, "--dry-run", "--json").json["plan"]["method"]
        for length in ("768", "4k")
    ]
    plans = run("extend", "model", "--variants", "768,4k", "--dry-run", "--json").json["variants"]
    assert [each["plan"]["method"] for each in plans] == [method[1]] * 2


def test_outputs_of_a_new_base_are_named_by_their_length(tmp_path: Path) -> None:
    """The default name of an output of abf contains only the base."""
    done = run("extend", "model.gguf", "--method", "abf", "--rope-theta", "1e6", "--variants", "1k,2k", "--json")
    assert done.code == 0, done.err
    assert [each["name"] for each in done.json["models"]] == [
        "model-native",
        "model-abf-1e6-1024",
        "model-abf-1e6-2048",
    ]
    assert [context_in(each["path"]) for each in done.json["models"]] == [512, 1024, 2048]


# --- routing files


@pytest.mark.parametrize(("model", "program"), [("model.gguf", ["llama-server", "-m"]), ("model", ["vllm", "serve"])])
def test_every_model_of_both_files_is_served_with_its_own_context(model: str, program: list[str]) -> None:
    assert run("extend", model, *YARN, "--variants", "1k,2k").code == 0
    swap, proxy = loaded("model-yarn-llama-swap.yaml"), loaded("model-yarn-litellm.yaml")
    assert list(swap["models"]) == list(LENGTHS)  # the source comes first
    comments = Path("model-yarn-litellm.yaml").read_text().splitlines()
    started = [line.removeprefix("#   ") for line in comments if line.startswith(f"#   {program[0]} ")]
    for index, (name, context) in enumerate(LENGTHS.items()):
        words = shlex.split(swap["models"][name]["cmd"])
        assert words[:2] == program
        assert context_in(words[2]) == int(words[4]) == context
        assert os.path.isabs(words[2])
        assert words[5:] == ["--port", "${PORT}", words[7], name]
        port = 8081 + index
        assert shlex.split(started[index]) == [*words[:6], str(port), *words[7:]]
        own = [each for each in proxy["model_list"] if each["litellm_params"]["model"] == f"openai/{name}"]
        assert [each["model_name"] for each in own] == ["model", name]
        assert {each["litellm_params"]["api_base"] for each in own} == {f"http://127.0.0.1:{port}/v1"}


@pytest.mark.parametrize("model", ["model.gguf", "model"])
def test_a_prompt_goes_to_the_shortest_model_with_room_for_an_answer(model: str) -> None:
    assert run("extend", model, *YARN, "--variants", "1k,2k").code == 0
    proxy = loaded("model-yarn-litellm.yaml")
    contexts = {f"openai/{name}": context for name, context in LENGTHS.items()}
    for tokens in (1, 380, 384, 385, 512, 760, 768, 769, 1500, 5000):
        chosen = server_for(proxy, tokens)
        fits = [name for name, context in LENGTHS.items() if tokens <= context * 0.75]
        assert chosen == (fits[0] if fits else "model-yarn-2048"), tokens
    order = [each["litellm_params"] for each in proxy["model_list"] if each["model_name"] == "model"]
    assert [contexts[each["model"]] for each in sorted(order, key=lambda each: int(each["order"]))] == [512, 1024, 2048]
    assert proxy["router_settings"]["context_window_fallbacks"] == [{"model": list(LENGTHS)[1:]}]
    names = {each["model_name"] for each in proxy["model_list"]}
    assert names == {"model", *LENGTHS}  # a fallback can only be a model_name


def test_a_wrong_route_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect: limits and servers in opposite orders."""

    def reversed_limits(models: Sequence[routing.RoutedModel]) -> list[int | None]:
        return [*(int(0.75 * model.context) for model in reversed(models[1:])), None]

    monkeypatch.setattr(routing, "prompt_limits", reversed_limits)
    assert run("extend", "model.gguf", *YARN, "--variants", "1k,2k").code == 0
    assert server_for(loaded("model-yarn-litellm.yaml"), 1000) == "model-native"  # which has 512 tokens


def test_the_group_in_the_comment_of_llama_swap_is_a_valid_one() -> None:
    assert run("extend", "model.gguf", *YARN, "--variants", "1k,2k").code == 0
    text = Path("model-yarn-llama-swap.yaml").read_text()
    groups = yaml.safe_load(text.replace("\n#groups", "\ngroups").replace("\n#  ", "\n  "))["groups"]
    assert groups == {"model": {"swap": False, "members": list(LENGTHS)}}


@pytest.mark.parametrize("name", ["a b'c.gguf", 'quo"te.gguf', "back\\slash.gguf", "ünïcode: #x.gguf", "- [x].gguf"])
def test_odd_names_reach_the_servers_unchanged(name: str, tmp_path: Path) -> None:
    gguf_files.model(tmp_path / name)
    done = run("extend", tmp_path / name, *YARN, "--variants", "1k", "--json")
    assert done.code == 0, done.err
    files = done.json["routing"]
    for model, served in zip(loaded(files["llama-swap"])["models"].items(), done.json["models"], strict=True):
        assert model[0] == served["name"]
        words = shlex.split(model[1]["cmd"])
        assert (words[2], words[-1]) == (served["path"], served["name"])
    assert loaded(files["litellm"])["model_list"][0]["model_name"] == name.removesuffix(".gguf")


@pytest.mark.parametrize("name", ["a${HOME}.gguf", "line\nend.gguf"])
def test_a_path_that_llama_swap_would_change_is_refused(name: str, tmp_path: Path) -> None:
    gguf_files.model(tmp_path / name)
    before = snapshot(tmp_path)
    done = run("extend", tmp_path / name, *YARN, "--variants", "1k")
    assert (done.code, snapshot(tmp_path)) == (1, before)
    assert "llama-swap cannot start a server for this path" in done.err


def test_a_source_in_another_scale_is_named(tmp_path: Path) -> None:
    assert run("extend", "model.gguf", *YARN, "--factor", "2", "-o", "scaled.gguf").code == 0
    done = run("extend", "scaled.gguf", *YARN, "--variants", "2k", "--from", "current", "--dry-run", "--json")
    assert [each["context"] for each in done.json["models"]] == [1024, 2048]
    done = run("extend", "scaled.gguf", *YARN, "--variants", "2k", "--from", "original", "--dry-run", "--json")
    assert [each["context"] for each in done.json["models"]] == [1024, 2048]
    assert "Note: the source is already scaled, which costs quality on short prompts" in done.err


def test_the_length_that_the_user_names_is_the_context_of_the_source() -> None:
    done = run("extend", "model.gguf", *YARN, "--variants", "1k", "--original-length", "256", "--dry-run", "--json")
    assert [each["context"] for each in done.json["models"]] == [256, 1024]


# --- whole or not at all


def test_a_dry_run_prints_all_plans_and_writes_nothing(tmp_path: Path) -> None:
    before = snapshot(tmp_path)
    done = run("extend", "model", *YARN, "--variants", "1k,2k", "--dry-run")
    assert done.code == 0, done.err
    assert done.out.count("plan for llama\n") == 2
    assert "\nrouting by prompt length\n  model-native     context 512   prompts up to 384 tokens\n" in done.out
    assert f"  llama-swap --config {tmp_path}/model-yarn-llama-swap.yaml\n" in done.out
    data = run("extend", "model", *YARN, "--variants", "1k,2k", "--dry-run", "--json").json
    assert [each["plan"]["max_position_embeddings"] for each in data["variants"]] == [1024, 2048]
    assert data["written"] is False
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "taken", ["model-yarn-1024", "model-yarn-2048", "model-yarn-litellm.yaml", "model-yarn-llama-swap.yaml"]
)
@pytest.mark.parametrize("force", [(), ("--force",)])
def test_nothing_is_written_if_one_of_the_files_cannot_be(taken: str, force: tuple[str, ...], tmp_path: Path) -> None:
    place = tmp_path / taken
    if place.suffix:
        place.write_text("of somebody else")
    else:
        place.mkdir()
        (place / "thesis.txt").write_text("of somebody else")
    before = snapshot(tmp_path)
    done = run("extend", "model", *YARN, "--variants", "1k,2k", *force)
    assert (done.code, done.out, snapshot(tmp_path)) == (1, "", before)
    assert f"Error: {place}: exists already" in done.err


def test_nothing_is_written_if_the_later_shard_of_an_output_exists(tmp_path: Path) -> None:
    first = gguf_files.model(tmp_path / "split.gguf", shards=2)
    (tmp_path / "split-yarn-2048-00002-of-00002.gguf").write_text("of somebody else")
    before = snapshot(tmp_path)
    done = run("extend", first, *YARN, "--variants", "1k,2k")
    assert (done.code, snapshot(tmp_path)) == (1, before)


def test_nothing_is_written_if_the_disk_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (tmp_path / "model.gguf").stat().st_size
    before = snapshot(tmp_path)

    def free(nbytes: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(size * 9, 0, nbytes))

    free(2 * size - 1)
    done = run("extend", "model.gguf", *YARN, "--variants", "1k,2k")
    assert (done.code, done.out, snapshot(tmp_path)) == (1, "", before)
    assert f"Error: {tmp_path}: the outputs take " in done.err
    free(2 * size)
    assert run("extend", "model.gguf", *YARN, "--variants", "1k,2k").code == 0


def test_if_the_second_output_fails_what_is_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = applying._apply_directory

    def fails(plan: Any, path: Path, target: Path, **more: Any) -> Any:
        if target.name.endswith("2048"):
            raise OutputError("no space left", where=str(target))
        return write(plan, path, target, **more)

    monkeypatch.setattr(applying, "_apply_directory", fails)
    done = run("extend", "model", *YARN, "--variants", "1k,2k,4k")
    assert (done.code, done.out) == (1, "")
    at = f"{tmp_path}/model-yarn"
    assert done.err.splitlines()[-2:] == [
        f"Note: already written: {at}-1024; not written: {at}-2048, {at}-4096, {at}-llama-swap.yaml, {at}-litellm.yaml. "
        "To write all of them, run the command again with --force",
        f"Error: {at}-2048: no space left",
    ]
    assert sorted(path.name for path in tmp_path.glob("model-yarn*")) == ["model-yarn-1024"]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert run("extend", "model", *YARN, "--variants", "1k,2k,4k", "--force").code == 0
    assert len(list(tmp_path.glob("model-yarn*"))) == 5


def test_the_routing_files_appear_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_text

    def fails(path: Path, text: str, **more: Any) -> int:
        if path.name.endswith("-litellm.yaml"):
            raise OSError(28, "No space left on device")
        return write(path, text, **more)

    monkeypatch.setattr(Path, "write_text", fails)
    done = run("extend", "model", *YARN, "--variants", "1k")
    assert done.code == 1
    assert list(tmp_path.glob("*.yaml")) == []
    assert f"Note: already written: {tmp_path}/model-yarn-1024; not written: " in done.err


def test_force_replaces_earlier_outputs_and_routing_files() -> None:
    assert run("extend", "model", *YARN, "--variants", "1k").code == 0
    assert run("extend", "model", *YARN, "--variants", "1k,2k").code == 1
    assert run("extend", "model", *YARN, "--variants", "1k,2k", "--force").code == 0
    assert list(loaded("model-yarn-llama-swap.yaml")["models"]) == list(LENGTHS)


# --- refusals


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("--factor 4", 2, "--variants lists the lengths itself and does not accept --factor"),
        ("--target-length 4k", 2, "--variants lists the lengths itself and does not accept --target-length"),
        ("--in-place", 2, "--variants writes several outputs and does not accept --in-place"),
        ("--companion model", 2, "--variants writes several outputs and does not accept --companion"),
        ("--plan-out plan.json", 2, "--variants writes several outputs and does not accept --plan-out"),
        ("--native-short", 2, "--variants does not accept --native-short: the routing files send short prompts to the source"),
        ("--verify", 2, "--variants does not accept --verify: verify or export each output separately"),
        ("--export x.gguf", 2, "--variants does not accept --export: verify or export each output separately"),
        ("--method auto", 2, "--method auto does not work with --variants: name the method"),
        ("--variants 1k,1024", 1, "--variants: contains 1024 twice"),
        ("--variants 1k,x", 2, "'1k,x' is not a list of lengths"),
        ("--variants 256,1k", 1, "--variants 256: 256 is below the 512 tokens of the trained length"),
        ("--variants 512,1k", 1, "--variants 512: yarn with --target-length 512 changes nothing"),
        ("--variants 1k,1M", 1, "--variants 1048576: --force-factor: 2048 times the trained length"),
        ("-o nowhere", 1, "nowhere/output: the directory nowhere does not exist"),
        ("-o model.gguf", 1, "model.gguf is a file, not a directory"),
    ],
)  # fmt: skip
def test_options_that_exclude_each_other_are_refused(options: str, code: int, words: str, tmp_path: Path) -> None:
    before = snapshot(tmp_path)
    done = run("extend", "model", *YARN, "--variants", "1k,2k", *options.split())
    assert (done.code, done.out, snapshot(tmp_path)) == (code, "", before)
    assert words in done.err


def test_without_a_server_that_reads_all_outputs_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(tmp_path)
    differs = "would compute something else"
    monkeypatch.setattr(
        serving, "_objection", lambda _, output: differs if output.rope.max_position_embeddings > 512 else ""
    )
    done = run("extend", "model", *YARN, "--variants", "1k")
    assert (done.code, snapshot(tmp_path)) == (1, before)
    assert f"no server can serve all outputs: vllm@0.32: {differs}; sglang@0.5.16: {differs}" in done.err


@pytest.mark.parametrize("method", ["dynamic", "yarn"])
def test_the_server_is_one_that_reads_what_transformers_reads(method: str) -> None:
    """vLLM and SGLang use one table for all lengths, so `dynamic` in the source is not read as transformers reads it."""
    scaling = {"rope_type": method, "factor": 2.0, "original_max_position_embeddings": 512}
    set_config(Path("model"), rope_scaling=scaling, max_position_embeddings=1024)
    done = run("extend", "model", *YARN, "--variants", "4k", "--from", "original", "--dry-run", "--json")
    assert (done.code == 0) == (method == "yarn"), done.err


def test_a_next_step_has_all_lengths(tmp_path: Path) -> None:
    assert run("extend", "model.gguf", *YARN, "--factor", "2", "-o", "scaled.gguf").code == 0
    done = run("extend", "scaled.gguf", *YARN, "--variants", "2k,4k", "--dry-run")
    try_ = done.err.splitlines()[-1].removeprefix("Try: ropetool ")
    assert try_ == "extend scaled.gguf --method yarn --from original --dry-run --variants 2048,4096"
    assert run(*shlex.split(try_)).code == 0
