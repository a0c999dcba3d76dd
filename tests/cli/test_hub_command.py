"""Commands with a hub id: outputs in the current folder, nothing written into the cache, the id in the output's card."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import gguf
import gguf_files
import pytest
from hub_server import Hub, local_hub
from running import Done, run, snapshot

import ropetool
from ropetool.checkpoint import provenance

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
pytestmark = pytest.mark.usefixtures("short_texts", "few_rows")
QUICK = ["--suite", "quick", "--segments", "8", "--lengths", "1024", "--grade", "research"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    shutil.copytree(DEMO, tmp_path / "served")
    (tmp_path / "served" / "README.md").write_text("---\nlicense: mit\ntags: [tiny]\n---\n# Demo\n")
    with local_hub(tmp_path / "cache", monkeypatch) as served:
        served.repositories["acme/demo"] = tmp_path / "served"
        yield served


def cache(tmp_path: Path) -> dict[str, tuple[bytes | None, int]]:
    """Return what the snapshots and blobs of the cache hold."""
    return {
        name: found for name, found in snapshot(tmp_path / "cache").items() if "blobs" in name or "snapshots" in name
    }


def here() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


def good(*arguments: str | Path) -> Done:
    done = run(*arguments)
    assert done.code == 0, done.err
    return done


def key(path: Path, name: str) -> object:
    return gguf.GGUFReader(path).fields[name].contents()


def test_outputs_go_to_the_current_folder_and_the_cache_stays(hub: Hub, tmp_path: Path) -> None:
    good("inspect", "acme/demo")
    assert here() == []
    good("extend", "acme/demo", "--method", "yarn", "--factor", "4")
    before = cache(tmp_path)
    assert here() == ["demo-yarn-4x"]
    good("bake", "acme/demo", "score", "--multiplier", "1.5")
    good("export", "acme/demo")
    assert "demo-baked" in here()
    assert "demo-BF16.gguf" in here()
    assert cache(tmp_path) == before


def test_the_output_names_the_model_it_came_from(hub: Hub) -> None:
    good("extend", "acme/demo@main", "--method", "yarn", "--factor", "4")
    card = Path("demo-yarn-4x/README.md").read_text()
    assert card.startswith(
        "---\nlicense: mit\ntags: [tiny, ropetool, long-context]\nbase_model: acme/demo\n---\n# Demo\n"
    )
    assert "ropetool extend acme/demo@main --method yarn --factor 4\n" in card
    assert run("verify", "demo-yarn-4x", *QUICK).code in (0, 3)
    assert "| ratio |" in Path("demo-yarn-4x/README.md").read_text()


def test_the_record_names_the_commit_on_the_hub_and_finds_it_in_the_cache(hub: Hub, tmp_path: Path) -> None:
    good("extend", "acme/demo", "--method", "yarn", "--factor", "4")
    text = Path("demo-yarn-4x/ropetool.json").read_text()
    assert re.search(r'"source": "acme/demo@[0-9a-f]{40}"', text)
    assert str(tmp_path) not in text
    Path("far").mkdir()
    Path("demo-yarn-4x").rename("far/moved")
    (made,) = provenance.lineage(Path("far/moved"))
    assert made.source.startswith(str(tmp_path / "cache"))
    assert provenance.source_problem(made) == ""


def test_the_file_says_where_the_model_came_from(hub: Hub) -> None:
    good("export", "acme/demo", "-o", "x.gguf")
    file = Path("x.gguf")
    assert key(file, "general.name") == "Demo"
    assert key(file, "general.organization") == "Acme"
    assert key(file, "general.source.repo_url") == "https://huggingface.co/acme/demo"
    assert key(file, "general.license") == "mit"


def test_a_verification_writes_nothing_into_the_cache(hub: Hub, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "served")
    made = ropetool.apply(ropetool.plan(DEMO, "yarn", factor=4), DEMO, tmp_path / "served").output
    good("inspect", "acme/demo")
    done = run("verify", "acme/demo", "--baseline", DEMO, *QUICK)
    assert "ropetool does not write certificates into the Hub cache" in done.err
    assert done.code in (0, 3)
    assert "demo (yarn, factor 4), measured up to " in done.out.partition("\n")[0]
    assert " against model, " in done.out.partition("\n")[0]
    first = cache(tmp_path)
    run("verify", "acme/demo", "--baseline", DEMO, *QUICK, "--certificate", "certificate.json")
    assert cache(tmp_path) == first
    assert here() == ["certificate.json"]
    assert (made / "ropetool.json").read_bytes() == next(
        path.read_bytes() for path in (tmp_path / "cache").rglob("snapshots/*/ropetool.json")
    )


def test_a_gguf_file_on_the_hub_is_extended(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    gguf_files.model(folder / "m.gguf")
    hub.repositories["acme/files"] = folder
    good("extend", "acme/files:m.gguf", "--method", "yarn", "--factor", "4")
    assert "m-yarn-4x.gguf" in here()
    assert "base_model: acme/files\n" in Path("m-yarn-4x.gguf.README.md").read_text()
    assert good("inspect", "m-yarn-4x.gguf", "--json").json["trained_length"] == 512


PLANS = {
    "keys": "--method yarn --factor 4",
    "bake": "--method yarn --factor 8 --attention-factor none --for transformers --for vllm --for sglang",
}


@pytest.mark.parametrize("what", PLANS)
def test_a_dry_run_fetches_weights_only_for_a_bake(what: str, hub: Hub, tmp_path: Path) -> None:
    wish = [*PLANS[what].split(), "--dry-run", "--json"]
    expected = good("extend", tmp_path / "served", *wish).json
    found = good("extend", "acme/demo", *wish).json
    assert bool(expected["plan"].get("bakes")) == (what == "bake") == (hub.served["model.safetensors"] > 0)
    assert found.pop("output") == str(Path("demo-yarn-4x" if what == "keys" else "demo-yarn-8x").absolute())
    expected.pop("output")
    for one in (found, expected):
        one["plan"].pop("weight_files", None)  # with the time of the file
        one["plan"]["identity"].pop("weights")  # which are not here when no bake asks for them
    assert found["plan"] == expected["plan"]
    if what == "keys":
        assert [line.replace("acme/demo", str(tmp_path / "served")) for line in found["flags"]] == expected["flags"]
        assert set(hub.served) == {"config.json", "tokenizer_config.json"}


def test_a_dry_run_of_a_bake_fetches_no_weights(hub: Hub) -> None:
    done = good("bake", "acme/demo", "score", "--multiplier", "2", "--dry-run")
    assert "the source has no weights" in done.err
    assert hub.served["model.safetensors"] == 0
    assert set(hub.served) == {"config.json", "tokenizer_config.json"}


def test_a_dry_run_names_the_revision_for_servers(hub: Hub) -> None:
    flags = good("extend", "acme/demo@main", *PLANS["keys"].split(), "--dry-run", "--json").json["flags"]
    assert any("vllm serve acme/demo --revision main --max-model-len 1024" in line for line in flags)


def test_a_dry_run_of_what_is_in_the_cache(hub: Hub) -> None:
    good("export", "acme/demo")
    done = good("extend", "acme/demo", *PLANS["keys"].split(), "--dry-run")
    assert "only config.json is here" not in done.err
    assert "/models--acme--demo/snapshots/" in done.out


def test_a_plan_that_is_kept_is_made_of_the_whole_model(hub: Hub) -> None:
    good("extend", "acme/demo", *PLANS["bake"].split(), "--dry-run", "--plan-out", "plan.json")
    good("apply", "acme/demo", "plan.json", "-o", "out")
    assert hub.served["model.safetensors"] > 0


def test_two_models_are_compared(hub: Hub) -> None:
    assert good("diff", "acme/demo", DEMO).code == 0


@pytest.mark.parametrize(
    "line",
    ["inspect acme/none", "extend acme/none -m yarn --factor 2", "verify acme/none", "export acme/none",
     "bake acme/none score --multiplier 2", "diff acme/none acme/none"],
)  # fmt: skip
def test_every_command_refuses_in_two_lines(line: str, hub: Hub) -> None:
    done = run(*line.split())
    assert (done.code, done.out) == (1, "")
    error, try_ = done.err.splitlines()
    assert error.startswith("Error: acme/none: does not exist here, and http://127.0.0.1:")
    assert try_ == "Try: check the name; for a private model, run hf auth login or set HF_TOKEN"
