"""Models on the hub: what names one, what is asked of the server and what is not, and how refusals read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf_files
import pytest
from hub_server import TOKEN, Hub, local_hub

import ropetool
from ropetool.errors import (
    CheckpointError,
    CorruptFile,
    HubError,
    HubUnreachable,
    MissingDependency,
    MissingFile,
    NotACheckpoint,
    RopetoolError,
)
from ropetool.escaping import install_line
from ropetool.files.gguf import HeaderGoesOn, parse_header, read_header
from ropetool.files.hub import HubId, absolute, beside, hub_id, local, name_of, origin, peeking
from ropetool.report.inspected import inspection_json
from ropetool.runtimes import inspection

DEMO = Path(ropetool.__file__).parent / "demo" / "model"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.chdir(tmp_path)
    with local_hub(tmp_path / "cache", monkeypatch) as served:
        yield served


@pytest.fixture
def demo(hub: Hub, tmp_path: Path) -> Path:
    """Return the folder of acme/demo: a checkpoint with much beside it."""
    folder = tmp_path / "served"
    shutil.copytree(DEMO, folder)
    more = {
        "README.md": "# Demo\n", "LICENSE": "free\n", "pytorch_model.bin": "pickle", "modeling_demo.py": "raise SystemExit",
        "consolidated.safetensors": "again", "original/params.json": "{}", "onnx/model.safetensors": "again",
        "pytorch_model.bin.index.json": "{}", "additional_chat_templates/tools.jinja": "{{ x }}",
        "generation_config.json": "{}", "picture.png": "png", ".gitattributes": "x",
    }  # fmt: skip
    for name, text in more.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    hub.repositories["acme/demo"] = folder
    return folder


@pytest.fixture
def ggufs(hub: Hub, tmp_path: Path) -> Path:
    """Return the folder of acme/files, of GGUF models: one with a frequency vector, one in shards, in a folder."""
    folder = tmp_path / "files"
    (folder / "sub").mkdir(parents=True)
    gguf_files.model(folder / "one.gguf", divisors=gguf_files.llama3_divisors())
    gguf_files.model(folder / "sub" / "m.gguf", shards=2)
    hub.repositories["acme/files"] = folder
    return folder


def shards(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "sub").iterdir())


def told(source: str | Path, **changes: Any) -> dict[str, Any]:
    """Return what inspect finds, but for the name of the source."""
    return {**inspection_json(inspection.inspect(source)), "source": "", **changes}


def asked_for(hub: Hub) -> set[str]:
    """Return the names of the files whose content was sent."""
    return {name for name, count in hub.served.items() if count}


# --- names


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("acme/demo", HubId("acme/demo")),
        ("acme/demo@v1.0", HubId("acme/demo", "v1.0")),
        ("acme/demo@refs/pr/1", HubId("acme/demo", "refs/pr/1")),
        ("acme/demo-GGUF:demo.gguf", HubId("acme/demo-GGUF", "", "demo.gguf")),
        ("acme/demo@main:Q8/demo-00001-of-00002.gguf", HubId("acme/demo", "main", "Q8/demo-00001-of-00002.gguf")),
        *((text, None) for text in (
            "demo", "./acme/demo", "/acme/demo", "acme/demo/", "acme/demo/x", "../demo", "acme/demo@", "acme/demo:",
            "acme/demo.gguf", "acme/config.json", "acme/demo@a b", "a\0/b", "-acme/demo", "~/demo", "out/model--v2",
            "acme/demo.", "acme/demo-", "acme./demo", "acme/de..mo", "acme/demo.git",
        )),
    ],
)  # fmt: skip
def test_what_is_a_hub_id(text: str, found: HubId | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert hub_id(text) == found
    assert found is None or str(found) == text


@pytest.mark.parametrize("text", ["acme/de--mo", "acme/demo.", "ac..me/demo", "acme/demo.git", "acme/" + "x" * 97])
def test_what_no_repository_can_be_called_is_not_looked_for(text: str, hub: Hub) -> None:
    validated = pytest.importorskip("huggingface_hub.utils").validate_repo_id
    with pytest.raises(ValueError, match=r"(?i)repo.?id"):  # huggingface_hub takes none of them
        validated(text)
    validated("acme/" + "x" * 96)
    assert hub_id("acme/" + "x" * 96) is not None
    with pytest.raises(NotACheckpoint, match="does not exist"):
        inspection.inspect(text)
    assert hub.asked == []


@pytest.mark.parametrize(
    ("page", "named"),
    [("", "acme/demo"), ("/", "acme/demo"), ("/tree/main", "acme/demo@main"), ("?library=x", "acme/demo"),
     ("/blob/v1/q8/m.gguf", "acme/demo@v1:q8/m.gguf"), ("/resolve/main/m.gguf?download=true", "acme/demo@main:m.gguf")],
)  # fmt: skip
def test_the_address_of_a_page_is_told_how_it_is_named(page: str, named: str) -> None:
    with pytest.raises(NotACheckpoint, match="is a URL") as caught:
        local(f"https://huggingface.co/acme/demo{page}")
    assert caught.value.try_ == named


def test_a_revision_with_slashes(hub: Hub, demo: Path, offline: Any) -> None:
    hub.revisions = ("refs/pr/1",)
    assert told("acme/demo@refs/pr/1") == told(demo)
    path = local("acme/demo@refs/pr/1")
    with pytest.raises(HubError, match="does not have a revision 'refs/pr/2'"):
        local("acme/demo@refs/pr/2")
    offline()
    assert local("acme/demo@refs/pr/1") == path


def test_an_existing_path_wins_and_a_path_object_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert hub_id(Path("acme/demo")) is None
    Path("acme").mkdir()
    assert hub_id("acme/demo") == HubId("acme/demo")
    Path("acme/demo").symlink_to("nowhere")
    assert hub_id("acme/demo") is None
    assert local("acme/demo") == Path("acme/demo")


@pytest.mark.parametrize("text", ["acme/demo:model.safetensors", "acme/demo:../x.gguf"])
def test_a_single_file_has_to_be_a_gguf_file(text: str) -> None:
    with pytest.raises(NotACheckpoint, match=r"is not a \.gguf file"):
        hub_id(text)


def test_a_file_named_like_a_path_is_told_how_it_is_named() -> None:
    with pytest.raises(NotACheckpoint, match="does not exist") as caught:
        hub_id("acme/demo@main/q8/x.gguf")
    assert caught.value.try_ == "acme/demo@main:q8/x.gguf, if it is a file on the hub"


def test_what_a_path_of_the_cache_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "hub" / "models--acme--demo" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "blob").write_text("x")
    (folder / "m.gguf").symlink_to("blob")
    assert origin(folder) == HubId("acme/demo", "abc")
    assert origin(folder / "q8" / "m.gguf") == HubId("acme/demo", "abc", "q8/m.gguf")
    assert [origin(path) for path in (tmp_path, tmp_path / "snapshots" / "abc", folder.parent)] == [None] * 3
    assert beside(folder) == tmp_path / "demo"
    assert beside(folder / "q8" / "m.gguf") == tmp_path / "m.gguf"
    assert beside(tmp_path / "x") == tmp_path / "x"
    assert absolute(folder / "m.gguf") == folder / "m.gguf"
    assert [name_of(path) for path in (folder, folder / "m.gguf", tmp_path)] == ["demo", "m.gguf", tmp_path.name]


# --- inspect


def test_inspect_reads_the_config_and_no_weights(hub: Hub, demo: Path) -> None:
    assert told("acme/demo") == told(demo)
    assert str(inspection.inspect("acme/demo").source) == "acme/demo"
    assert asked_for(hub) == {"config.json"}
    assert sum(hub.served.values()) < 2000
    assert not [line for line in hub.asked if "storage" in line or "safetensors" in line]


def test_inspect_of_an_output_knows_the_trained_length(hub: Hub, tmp_path: Path) -> None:
    made = ropetool.apply(ropetool.plan(DEMO, "yarn", factor=4), DEMO, tmp_path / "made").output
    hub.repositories["acme/made"] = made
    assert inspection.inspect("acme/made").trained_length == 256
    assert told("acme/made") == told(made)


def test_a_repository_of_pickles_is_described(hub: Hub, demo: Path) -> None:
    for path in demo.glob("*.safetensors"):
        path.unlink()
    (note,) = [note for note in inspection.inspect("acme/demo").notes if "pickle files" in note]
    assert note.endswith(" acme/demo demo-safetensors`")  # what fetches them too


def test_an_adapter_on_the_hub_is_no_model(hub: Hub, demo: Path) -> None:
    (demo / "config.json").rename(demo / "adapter_config.json")
    for call in (inspection.inspect, local):
        with pytest.raises(NotACheckpoint, match="acme/demo: is a PEFT adapter: changes to a model, not a model"):
            call("acme/demo")


def test_inspect_reads_the_header_of_a_gguf_file_by_range(hub: Hub, ggufs: Path) -> None:
    with (ggufs / "one.gguf").open("r+b") as file:
        file.truncate(5 << 30)  # a hole: 5 GB that nobody may ask for
    assert told("acme/files:one.gguf") == told(ggufs / "one.gguf")
    assert 0 < hub.served["one.gguf"] < 300_000
    assert not (ggufs.parent / "cache").exists()


def test_vectors_far_into_the_file_are_read(hub: Hub, ggufs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peeking, "FIRST_BYTES", 64)
    assert told("acme/files:one.gguf") == told(ggufs / "one.gguf")
    header = read_header(ggufs / "one.gguf")
    assert header.header_end <= hub.served["one.gguf"] <= 2 * header.header_end + 1024
    # the table does depend on the vector, so that one read wrong would be seen
    plain = gguf_files.model(ggufs / "plain.gguf")
    assert (
        told(plain)["rope"]["full_attention"]["inv_freq"]
        != told("acme/files:one.gguf")["rope"]["full_attention"]["inv_freq"]
    )


@pytest.mark.parametrize("number", [0, 1])
def test_shards_are_found_from_any_of_them(number: int, hub: Hub, ggufs: Path) -> None:
    names = shards(ggufs)
    assert len(names) == 2
    assert told(f"acme/files:sub/{names[number]}") == told(ggufs / "sub" / names[0])
    assert asked_for(hub) == set(names)


def test_a_shard_that_the_repository_lacks(hub: Hub, ggufs: Path) -> None:
    first, second = shards(ggufs)
    (ggufs / "sub" / second).unlink()
    with pytest.raises(MissingFile, match=f"does not contain sub/{second}"):
        inspection.inspect(f"acme/files:sub/{first}")


def test_a_record_beside_a_gguf_file_is_read(hub: Hub, ggufs: Path) -> None:
    plan = ropetool.plan(ggufs / "sub" / shards(ggufs)[0], "linear", factor=2)
    made = ropetool.apply(plan, ggufs / "sub" / shards(ggufs)[0], ggufs / "long.gguf").output
    assert told(f"acme/files:{made.name}") == told(made)
    assert inspection.inspect(f"acme/files:{made.name}").trained_length == 512


def test_every_cut_of_a_header_asks_for_more(tmp_path: Path) -> None:
    path = gguf_files.model(tmp_path / "m.gguf", divisors=gguf_files.llama3_divisors())
    whole, size = path.read_bytes(), path.stat().st_size
    end = read_header(path).header_end
    for cut in range(end):
        with pytest.raises(HeaderGoesOn):
            parse_header(memoryview(whole[:cut]), path, size)
    assert parse_header(memoryview(whole[:end]), path, size).tensors == read_header(path).tensors
    with pytest.raises(CorruptFile) as caught:
        parse_header(memoryview(whole[: end - 1]), path, end - 1)
    assert not isinstance(caught.value, HeaderGoesOn)


def test_a_server_without_ranges_is_refused(hub: Hub, ggufs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.ranges = False
    monkeypatch.setattr(peeking, "FIRST_BYTES", 64)
    with pytest.raises(HubError, match="sends more than the 65,536 requested bytes"):
        inspection.inspect("acme/files:one.gguf")


def test_a_config_without_end_is_not_fetched(hub: Hub, demo: Path) -> None:
    (demo / "config.json").write_text(" " * (9 << 20))
    with pytest.raises(CorruptFile, match="reads at most 8,388,608"):
        inspection.inspect("acme/demo")
    assert not hub.served


# --- downloads


def test_what_belongs_to_a_checkpoint_is_fetched_once(hub: Hub, demo: Path) -> None:
    path = local("acme/demo")
    assert origin(path) == HubId("acme/demo", hub.commit("acme/demo"))
    assert {str(found.relative_to(path)) for found in path.rglob("*") if found.is_file()} == {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md", "LICENSE",
        "generation_config.json", "additional_chat_templates/tools.jinja",
    }  # fmt: skip
    assert (path / "model.safetensors").read_bytes() == (DEMO / "model.safetensors").read_bytes()
    hub.served.clear()
    assert local("acme/demo@main") == path
    assert asked_for(hub) == set()


def test_downloads_are_silent_unless_bars_are_asked_for(
    hub: Hub, demo: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(
        "huggingface_hub.utils"
    ).enable_progress_bars()  # transformers turns those of all packages off, for good
    local("acme/demo")
    assert capfd.readouterr() == ("", "")
    (demo / "added.json").write_text("{}")
    local("acme/demo", bars=True)
    assert "Fetching" in capfd.readouterr().err


def test_files_of_a_gguf_model_are_fetched_with_their_record(hub: Hub, ggufs: Path) -> None:
    names = shards(ggufs)
    (ggufs / "sub" / f"{names[0]}.ropetool.json").write_text("{}")
    path = local(f"acme/files:sub/{names[1]}")
    assert path.name == names[1]
    assert {found.name for found in path.parent.iterdir()} == {*names, f"{names[0]}.ropetool.json"}
    assert "one.gguf" not in asked_for(hub)


def test_the_token_reaches_the_hub_and_not_its_storage(hub: Hub, demo: Path, ggufs: Path) -> None:
    local("acme/demo")
    inspection.inspect("acme/files:one.gguf")
    assert f"Bearer {TOKEN}" in hub.tokens
    assert hub.stored_tokens == {""}


def test_a_whole_file_in_the_cache_is_not_read_again(hub: Hub, ggufs: Path) -> None:
    local("acme/files:one.gguf")
    hub.served.clear()
    assert told("acme/files:one.gguf") == told(ggufs / "one.gguf")
    assert asked_for(hub) == set()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Any:
    from huggingface_hub import constants

    return lambda: monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_what_is_cached_serves_offline(hub: Hub, demo: Path, ggufs: Path, offline: Any) -> None:
    path, file = local("acme/demo"), local("acme/files:one.gguf")
    offline()
    hub.asked.clear()
    assert (local("acme/demo"), local("acme/files:one.gguf")) == (path, file)
    for source in ("acme/demo", "acme/files:one.gguf"):
        assert inspection.inspect(source).notes[0] == peeking.FROM_CACHE
    assert hub.asked == []


def test_offline_without_a_copy(hub: Hub, demo: Path, offline: Any) -> None:
    offline()
    for call in (local, inspection.inspect):
        with pytest.raises(HubUnreachable, match="HF_HUB_OFFLINE turns the hub off") as caught:
            call("acme/demo")
        assert caught.value.try_ == "unset HF_HUB_OFFLINE, or pass the path of a copy"


def test_a_config_in_the_cache_is_not_taken_for_the_model(hub: Hub, demo: Path, offline: Any) -> None:
    inspection.inspect("acme/demo")
    offline()
    assert told("acme/demo", notes=[]) == told(demo, notes=[])
    with pytest.raises(HubUnreachable, match="does not contain the model with its weights"):
        local("acme/demo")


# --- refusals


def test_there_is_no_such_model(hub: Hub) -> None:
    with pytest.raises(
        HubError, match=r"does not exist here, and http.*acme/none does not exist or is not open to you"
    ) as caught:
        local("acme/none")
    assert not isinstance(caught.value, HubUnreachable)
    assert "hf auth login" in caught.value.try_


@pytest.mark.parametrize(
    ("status", "code", "kind", "message"),
    [
        (403, "GatedRepo", HubError, "gated"),
        (401, "GatedRepo", HubError, "gated"),
        (403, "", HubError, "status 403"),
        (500, "", HubUnreachable, r"does not answer \(status 500\)"),
        (429, "", HubUnreachable, r"does not answer \(status 429\)"),
    ],
)
def test_what_the_hub_refuses(status: int, code: str, kind: type, message: str, hub: Hub) -> None:
    hub.refusals["acme/demo"] = (status, code)
    for call in (local, inspection.inspect):
        with pytest.raises(HubError, match=message) as caught:
            call("acme/demo")
        assert type(caught.value) is kind
        assert caught.value.where == "acme/demo"
        assert caught.value.try_


def test_a_revision_that_is_not_there(hub: Hub, demo: Path) -> None:
    with pytest.raises(HubError, match="does not have a revision 'v9'"):
        local("acme/demo@v9")


def test_a_file_that_is_not_there(hub: Hub, ggufs: Path) -> None:
    with pytest.raises(MissingFile, match=r"does not contain this file; its GGUF files: one\.gguf, sub/m-"):
        inspection.inspect("acme/files:two.gguf")


def test_a_repository_of_gguf_files_says_how_to_name_one(hub: Hub, ggufs: Path) -> None:
    for call in (local, inspection.inspect):
        with pytest.raises(NotACheckpoint, match=r"does not contain a config\.json; its GGUF files") as caught:
            call("acme/files")
        assert caught.value.try_ == "ropetool inspect acme/files:one.gguf"


def test_pickles_are_never_fetched(hub: Hub, demo: Path) -> None:
    (demo / "model.safetensors").unlink()
    shutil.rmtree(demo / "onnx")
    (demo / "consolidated.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"the weights are pickles \(pytorch_model.bin\)") as caught:
        local("acme/demo@main")
    assert caught.value.try_.endswith(" acme/demo demo-safetensors")
    assert asked_for(hub) == set()


def test_nobody_answers(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # the port that discards
    with pytest.raises(HubUnreachable, match=r"http://127.0.0.1:9 does not answer \(Connect") as caught:
        local("acme/demo")
    assert "HF_ENDPOINT" in caught.value.try_


def test_an_answer_that_is_none(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub_server.Handler.api", lambda handler, repo, rest: handler.send([1, 2]))
    hub.repositories["acme/demo"] = Path()
    with pytest.raises(HubError, match="file 0 is 1; it must be an object"):
        local("acme/demo")


def test_a_full_disk_is_not_the_hubs_fault(hub: Hub, demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device", "/cache/blob")

    monkeypatch.setattr("huggingface_hub.snapshot_download", full)
    with pytest.raises(OSError, match="No space left") as caught:
        local("acme/demo")
    assert not isinstance(caught.value, RopetoolError)


def test_the_package_is_needed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependency, match="ropetool needs huggingface_hub") as caught:
        local("acme/demo")
    assert caught.value.try_ == install_line("hub")


# --- by its own variables


def test_the_variables_of_huggingface_hub_are_obeyed(hub: Hub, demo: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(tmp_path / "there"), "HF_TOKEN": "hf_other",
        "HF_HOME": str(tmp_path / "home"),
    }  # fmt: skip

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ropetool", "inspect", "acme/demo", "--json"]
        return subprocess.run(command, env={**environment, **more}, capture_output=True, text=True, timeout=120)

    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert {**json.loads(done.stdout), "source": ""} == json.loads(json.dumps(told(demo)))
    assert "Bearer hf_other" in hub.tokens
    assert list((tmp_path / "there" / "models--acme--demo" / "snapshots").iterdir())
    assert run(HF_HUB_OFFLINE="1").returncode == 0
    refused = run(HF_HUB_OFFLINE="1", HF_HUB_CACHE=str(tmp_path / "empty"))
    assert (refused.returncode, json.loads(refused.stdout)["error"]["type"]) == (1, "HubUnreachable")
    assert "Traceback" not in refused.stderr
