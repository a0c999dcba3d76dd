"""The model card's section, its front matter and the Modelfile: by text, and through the outputs that carry them."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import configs
import gguf
import gguf_files
import pytest
import yaml
from markdown_it import MarkdownIt
from models import write_model
from running import run

import ropetool
from ropetool.checkpoint import certificate, fingerprints
from ropetool.checkpoint.certificate import Certificate
from ropetool.errors import CheckpointError
from ropetool.plans import model_card
from ropetool.plans.model_card import grafted, modelfile, portable, with_front_matter, with_step, with_verification
from ropetool.plans.serving import commands, gguf_lines, serving_lines
from ropetool.runtimes.decoded import Decoded, Readings
from ropetool.runtimes.inspection import Inspection

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
CHECK = {"name": "ratio", "figure": 1.23456, "limit": 1.5, "verdict": "pass", "detail": "a | b <!-- /ropetool -->"}
CERTIFICATE = {
    "verdict": "pass", "suite": "quick", "longest": 2048, "checks": [CHECK], "made": "2026-11-21T20:00:00+00:00",
    "command": "ropetool verify out --suite quick",
}  # fmt: skip
CARDS = ["", "# Mine\n", "---\nlicense: mit\n---\n# Mine\n\nText.\n", "---\r\nlicense: mit\r\n---\r\n# Mine\r\n"]


def front(card: str) -> dict[str, Any]:
    """Return the front matter as PyYAML reads it."""
    found: dict[str, Any] = yaml.safe_load(card.split("---")[1])
    return found


def made(card: str, step: str = "It was done.", command: str = "ropetool extend x", **options: Any) -> str:
    return with_step(card, step, command, ["llama-server -m x.gguf -c 8"], **{"long": True, **options})


def test_the_card_says_what_the_certificate_does_not_bind() -> None:
    data = {**CERTIFICATE, "full_hash": False, "unbound": 14_900_000_000}
    assert "can miss a change" not in with_verification(made(""), CERTIFICATE)
    card = with_verification(made(""), data)
    assert "The fingerprint covers samples of the weights and can miss a change in 13.88 GiB of them" in card


def test_a_hostile_check_is_letters_in_the_table() -> None:
    hostile = "\x1b]0;x\x07 `a` \\| [b](http://c) ![d](e) <script> *f*"
    card = with_verification(made(""), {**CERTIFICATE, "checks": [{**CHECK, "detail": hostile}]})
    (row,) = [line for line in card.splitlines() if line.startswith("| ratio")]
    assert "\x1b" not in row
    rendered = MarkdownIt("commonmark").enable("table").render(card)
    table = rendered.partition("<table>")[2].partition("</table>")[0]
    assert table.count("<td") == 5
    assert not {"a", "img", "script", "em", "code"} & set(re.findall(r"<([a-z]+)", table))
    assert html.unescape(re.findall(r"<td[^>]*>(.*?)</td>", table)[-1]) == hostile.translate({27: "\\x1b", 7: "\\x07"})


# --- front matter


@pytest.mark.parametrize(
    "lines",
    ["license: mit", "license: mit\ntags:\n- a\n- b\nlanguage:\n- en", "tags: [a, b]\nlicense: mit", "tags: []",
     "tags:\n  - a\nlicense: mit", "tags:\n- \"ropetool\"\n- a", "tags: ['ropetool', a]", "# a comment\nlicense: mit",
     "base_model: me/other\ntags:\n- a", "base_model:\n- me/one\n- me/two", "tags: [\"a, b\", 'c,d']", "tags: [a, ]",
     "tags:\nlicense: mit", "license: mit\ntags: null", "tags: ~", "tags: # these\n- a", "\"tags\":\n- a",
     "tags:\n- a # first\n- ropetool # ours", "base_model:\nlicense: mit", "license: mit\nbase_model: null"],
)  # fmt: skip
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_tags_and_base_model_join_what_is_there(lines: str, newline: str) -> None:
    card = f"---\n{lines}\n---\n# Mine\n".replace("\n", newline)
    before, after = front(card), with_front_matter(card, "acme/demo", ["ropetool", "long-context"])
    found = front(after)
    held = before.get("tags") or []
    assert found.pop("tags") == [*held, *(tag for tag in ("ropetool", "long-context") if tag not in held)]
    assert found.pop("base_model") == (before.get("base_model") or "acme/demo")
    assert found == {key: value for key, value in before.items() if key not in ("tags", "base_model")}
    assert after.endswith(f"---{newline}# Mine{newline}")
    assert "\n" not in after.replace("\r\n", "") or newline == "\n"
    assert with_front_matter(after, "acme/demo", ["ropetool", "long-context"]) == after


@pytest.mark.parametrize("start", ["\n", "\n \n", "\r\n", "\ufeff"])
def test_front_matter_below_the_first_line_is_joined(start: str) -> None:
    card = with_front_matter(f"{start}---\nlicense: mit\n---\n# Mine\n", "acme/demo", ["ropetool"])
    assert card.startswith(f"{start}---\n")
    assert front(card) == {"license": "mit", "tags": ["ropetool"], "base_model": "acme/demo"}
    assert card.count("---") == 2


HOSTILE = ["a\nlicense: mit", 'a"b\\c', "a: b # c", "größe/\U0001f600", "a\x1b/\u2028b", "- x", "null", "acme/demo"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_base_model_of_any_name_stays_one_text(name: str) -> None:
    for card in ("", "---\nlicense: gpl\n---\n"):
        found = with_front_matter(card, name, [])
        assert front(found)["base_model"] == name
        assert front(found).get("license", "gpl") == "gpl"
        assert "\x1b" not in found


def test_a_tag_that_is_no_list_stays() -> None:
    card = "---\ntags: rope\n---\n"
    assert front(with_front_matter(card, "", ["ropetool"])) == {"tags": "rope"}


@pytest.mark.parametrize("card", ["", "# Mine\n", "--- no front matter\n---\n"])
def test_a_card_without_front_matter_gets_one(card: str) -> None:
    found = with_front_matter(card, "acme/demo", ["ropetool"])
    assert front(found) == {"base_model": "acme/demo", "tags": ["ropetool"]}
    assert found.endswith(f"---\n\n{card}")
    assert front(with_front_matter(card, "", ["ropetool"])) == {"tags": ["ropetool"]}


# --- the section


@pytest.mark.parametrize("card", CARDS)
def test_words_of_others_stay_and_the_section_comes_once(card: str) -> None:
    first = made(card)
    again = made(first, "More was done.", "")
    for text in (first, again):
        assert text.count(model_card.START) == text.count(model_card.END) == 1
        assert card.rpartition("---")[2].strip() in text
    assert re.findall(r"^[0-9]+\. .*$", again, re.MULTILINE) == ["1. It was done.", "2. More was done."]
    assert "ropetool extend x" in again


def test_text_behind_the_section_stays() -> None:
    card = made("# Mine\n") + "\n## Thanks\n\nTo all.\n"
    again = with_verification(made(card, "More."), CERTIFICATE)
    assert again.startswith("---\ntags:\n- ropetool\n- long-context\n---\n\n# Mine\n\n<!-- ropetool -->\n")
    assert again.endswith("<!-- /ropetool -->\n\n## Thanks\n\nTo all.\n")


def test_figures_come_from_the_certificate_and_are_dropped_by_what_follows() -> None:
    card = made("# Mine\n")
    assert "Not verified yet" in card
    verified = with_verification(card, CERTIFICATE)
    assert "The quick suite of `ropetool verify`, up to 2048 tokens: passed (2026-11-21)." in verified
    assert "| ratio | 1.235 | 1.5 | pass | a \\| b &lt;!-- /ropetool --> |" in verified
    assert "ropetool verify out --suite quick" in verified
    assert "Not verified yet" not in verified
    assert with_verification(verified, CERTIFICATE) == verified
    assert with_verification(verified, {**CERTIFICATE, "verdict": "fail"}).count(": **failed** (") == 1
    assert "1.235" not in made(verified, "Baked.")
    assert with_verification("# Mine\n", CERTIFICATE) == "# Mine\n"
    of_source = with_verification(card, CERTIFICATE, of_source=True)
    assert "\n\nResults of the checkpoint before the export. The quick suite of" in of_source
    assert "before the export" not in with_verification(of_source, CERTIFICATE)


def test_a_command_cannot_end_its_fence() -> None:
    card = made("", command="ropetool extend 'a```b' -o 'x\n```'")
    assert "   ````sh\n   ropetool extend 'a```b' -o $'x\\n```'\n   ````\n" in card


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("ropetool extend /home/me/model --output=/data/out -o/x/y -p factors /tmp/f.json",
         "ropetool extend model --output=out -oy -p factors f.json"),
        ("ropetool extend /c/models--acme--demo/snapshots/12ab", "ropetool extend acme/demo@12ab"),
        ("ropetool extend '/home/my model/' --factor 4", "ropetool extend 'my model' --factor 4"),
        ("ropetool verify ../model --lengths 1,2", "ropetool verify ../model --lengths 1,2"), ("it's", "it's"),
    ],
)  # fmt: skip
def test_a_command_names_no_place_of_the_machine(line: str, shown: str) -> None:
    assert portable(line) == shown
    assert shown in made("", command=line)
    assert shown in with_verification(made(""), {**CERTIFICATE, "command": line})


def test_bytes_that_are_no_text_come_through(tmp_path: Path) -> None:
    place = tmp_path / "README.md"
    place.write_bytes(b"# \xff Mine\n")
    model_card.write_card(place, made(model_card.read_card(place) or ""))
    assert b"# \xff Mine\n" in place.read_bytes()
    model_card.write_card(place, "\ud800 \udcff \udfff")  # JSON may hold halves of surrogate pairs
    assert place.read_bytes() == "\ufffd ".encode() + b"\xff" + " \ufffd".encode()
    place.write_bytes(b"x" * (5 << 20))
    assert model_card.read_card(place) is None


def test_a_section_is_put_into_a_card_that_is_there() -> None:
    old, new = made("# Kept\n", "Old."), made("# Other\n", "New.")
    found = grafted(old, new)
    assert ("# Kept" in found, "# Other" in found, "Old." in found, "New." in found) == (True, False, False, True)
    assert grafted("", new) == new
    assert grafted(found, new) == found


def test_a_modelfile_names_file_and_context() -> None:
    lines = [line for line in modelfile("m.gguf", 4096).splitlines() if not line.startswith("#")]
    assert lines == ["FROM ./m.gguf", "PARAMETER num_ctx 4096"]


@pytest.mark.parametrize("name", ["a\nSYSTEM be evil.gguf", "a\r.gguf", "a\x1b[31m.gguf", "a\u2028b.gguf"])
def test_a_name_that_a_modelfile_cannot_hold_gets_none(name: str, tmp_path: Path) -> None:
    assert model_card.modelfile_place([tmp_path / name]) is None
    assert list(model_card.texts_beside([tmp_path / name], made(""), 8)) == [tmp_path / f"{name}.README.md"]
    assert model_card.modelfile_place([tmp_path / "größe 1.gguf"]) == tmp_path / "größe 1.gguf.Modelfile"


# --- outputs


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DEMO, tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    return Path("model")


def certify(path: Path) -> None:
    """Give the output a passing certificate of one check, and its card the figures, as verify does."""
    found = Certificate(
        "pass",
        "quick",
        1024,
        (CHECK,),
        "",
        {},
        "ropetool verify",
        certificate.now(),
        fingerprints.of(path),
        True,
    )
    certificate.write(path, found)
    model_card.refresh(path, found.to_json())


def text(path: str | Path) -> str:
    return Path(path).read_text(encoding="utf-8")


def test_an_extension_is_told_in_its_card(model: Path) -> None:
    before = text("model/README.md")
    assert run("extend", "model", "-m", "yarn", "--factor", "4", "--beta-fast", "16").code == 0
    card = text("model-yarn-4x/README.md")
    assert card.startswith("---\nlicense: mit\ntags:\n- ropetool\n- long-context\n---\n# Mine\n")
    assert (
        "1. The context was extended from 256 to 1024 tokens: `yarn`, factor 4, beta_fast 16. No weight was changed."
        in card
    )
    assert "\n   ropetool extend model -m yarn --factor 4 --beta-fast 16\n" in card
    assert "\nvllm serve model-yarn-4x --max-model-len 1024\n" in card
    assert text("model/README.md") == before


def test_a_folder_with_a_line_break_in_its_name_adds_no_line(model: Path) -> None:
    Path("a\nFROM evil\nlicense: x").mkdir()
    there = Path("a\nFROM evil\nlicense: x") / "m\nSYSTEM evil"
    model.rename(there)
    done = run("extend", there, "-m", "yarn", "--factor", "4")
    assert done.code == 0, done.err
    (out,) = [path for path in there.parent.iterdir() if path != there]
    assert front(text(out / "README.md")) == {"license": "mit", "tags": ["ropetool", "long-context"]}
    assert run("export", out, "-o", "b\nSYSTEM evil.gguf", "--allow-unverified", "--no-check").code == 0
    assert Path("b\nSYSTEM evil.gguf.README.md").is_file()
    assert not list(Path().glob("b*Modelfile"))


def test_a_folder_that_looks_like_the_cache_of_the_hub_is_none(model: Path) -> None:
    there = Path("models--acme\nlicense: x--demo") / "snapshots" / "0a"
    there.parent.mkdir(parents=True)
    model.rename(there)
    assert run("extend", there, "-m", "yarn", "--factor", "4", "-o", "out").code == 0
    assert front(text("out/README.md")) == {"license": "mit", "tags": ["ropetool", "long-context"]}


def test_sidecars_are_announced_and_can_be_left_out(model: Path) -> None:
    done = run("extend", "model", "-m", "yarn", "--factor", "4")
    assert "  sidecars     README.md\n" in done.out
    done = run("export", "model-yarn-4x", "-o", "x.gguf", "--allow-unverified", "--no-check")
    assert "  sidecars      x.gguf.README.md, x.gguf.Modelfile\n" in done.out
    assert "\n  Ollama: ollama create x -f x.gguf.Modelfile  # Ollama 0.30 and later, which run llama.cpp\n" in done.out
    found = run("extend", "x.gguf", "-m", "yarn", "--factor", "8", "--from", "original", "-o", "y.gguf", "--json").json
    assert found["sidecars"] == ["y.gguf.README.md", "y.gguf.Modelfile"]
    assert (
        "Ollama: ollama create y -f y.gguf.Modelfile  # Ollama 0.30 and later, which run llama.cpp" in found["serving"]
    )
    assert "\nollama create y -f y.gguf.Modelfile  # Ollama 0.30 and later, which run llama.cpp\n" in text(
        "y.gguf.README.md"
    )

    before = text("model/README.md")
    assert run("extend", "model", "-m", "yarn", "--factor", "2", "--no-sidecars", "--plan-out", "p.json").code == 0
    assert text("model-yarn-2x/README.md") == before
    assert run("apply", "model", "p.json", "-o", "applied", "--no-sidecars").code == 0
    assert text("applied/README.md") == before
    assert run("bake", "model", "score", "--multiplier", "1.5", "--no-sidecars", "-o", "baked").code == 0
    assert text("baked/README.md") == before
    for name, arguments in (
        ("z", ("export", "model", "-o", "z.gguf", "--no-check")),
        ("w", ("extend", "x.gguf", "-m", "yarn", "--factor", "8", "--from", "original", "-o", "w.gguf")),
    ):
        found = run(*arguments, "--no-sidecars", "--json").json
        assert sorted(path.name for path in Path().glob(f"{name}.gguf*")) == [
            f"{name}.gguf",
            f"{name}.gguf.ropetool.json",
        ]
        assert found["sidecars"] == []
        assert not any("ollama" in line for line in found["serving"])


def test_what_needs_no_sidecars_is_not_stopped_by_their_places(model: Path) -> None:
    Path("x.gguf.README.md").mkdir()
    assert run("export", "model", "-o", "x.gguf", "--no-check", "--no-sidecars").code == 0


def test_a_bake_is_a_second_step(model: Path) -> None:
    run("extend", "model", "-m", "yarn", "--factor", "4")
    certify(Path("model-yarn-4x"))
    assert "| ratio | 1.235 |" in text("model-yarn-4x/README.md")
    assert run("bake", "model-yarn-4x", "attention-factor").code == 0
    card = text("model-yarn-4x-baked/README.md")
    assert re.findall(r"^[0-9]\. \w+", card, re.MULTILINE) == ["1. The", "2. Baked"]
    assert "| ratio |" not in card
    assert "ropetool bake model-yarn-4x attention-factor" in card


def test_an_export_carries_card_certificate_and_keys(model: Path) -> None:
    run("extend", "model", "-m", "yarn", "--factor", "4")
    certify(Path("model-yarn-4x"))
    done = run("export", "model-yarn-4x", "-o", "x.gguf")
    assert done.code == 0, done.err
    card = text("x.gguf.README.md")
    assert "2. Exported to GGUF: matrices in bf16, positions stored as yarn keys." in card
    assert "| ratio | 1.235 |" in card
    assert "\nllama-server -m x.gguf -c 1024\n" in card
    assert text("x.gguf.Modelfile") == modelfile("x.gguf", 1024)
    keys = {name: value for name, value in gguf_files.keys("x.gguf").items() if name.startswith("ropetool.")}
    record = json.loads(text("model-yarn-4x/ropetool.json"))
    assert keys == {
        "ropetool.version": ropetool.__version__, "ropetool.method": "yarn", "ropetool.factor": 4.0,
        "ropetool.trained_length": 256, "ropetool.source_fingerprint": record["source_fingerprint"],
        "ropetool.verified.verdict": "pass", "ropetool.verified.suite": "quick", "ropetool.verified.longest": 1024,
        "ropetool.verified.grade": "research",
        "ropetool.verified.made": record["certificate"]["made"],
        "ropetool.verified.fingerprint": record["certificate"]["fingerprint"],
    }  # fmt: skip


def test_nothing_that_travels_names_a_place_of_the_machine(model: Path, tmp_path: Path) -> None:
    """With absolute paths on every command line."""
    assert run("extend", tmp_path / "model", "-m", "yarn", "--factor", "4").code == 0
    out = tmp_path / "model-yarn-4x"
    done = run("verify", out, "--suite", "quick", "--segments", "8", "--lengths", "128,512", "--grade", "research")
    assert "certificate: " in done.err
    assert run("export", out, "-o", tmp_path / "x.gguf", "--allow-unverified", "--no-check").code == 0
    assert run("extend", tmp_path / "x.gguf", "-m", "yarn", "--factor", "8", "--from", "original").code == 0
    told = [path for path in tmp_path.rglob("*") if path.is_file() and str(tmp_path).encode() in path.read_bytes()]
    assert told == []
    assert json.loads(text(out / "ropetool.json"))["certificate"]["command"].startswith("ropetool verify model-yarn-4x")
    assert len(list(tmp_path.rglob("*ropetool.json"))) == 3


def test_a_verification_of_the_export_is_told_beside_it(model: Path) -> None:
    run("extend", "model", "-m", "yarn", "--factor", "4")
    run("export", "model-yarn-4x", "-o", "x.gguf", "--allow-unverified")
    assert "Not verified yet" in text("x.gguf.README.md")
    certify(Path("x.gguf"))
    assert "| ratio | 1.235 |" in text("x.gguf.README.md")
    assert certificate.state(Path("x.gguf")).name == certificate.PASSED


def test_what_others_put_beside_an_export_stays(model: Path) -> None:
    Path("x.gguf.README.md").mkdir()
    Path("x.gguf.Modelfile").write_text("FROM ./y.gguf\n")
    done = run("export", "model", "-o", "x.gguf")
    assert done.code == 0
    assert "Note: x.gguf.README.md is not replaced, because it is not listed in a ropetool record\n" in done.err
    assert (list(Path("x.gguf.README.md").iterdir()), text("x.gguf.Modelfile")) == ([], "FROM ./y.gguf\n")


def test_a_card_that_is_too_long_is_carried_as_it_is(model: Path) -> None:
    (model / "README.md").write_bytes(b"x" * (model_card.MAX_CARD + 1))
    assert run("extend", "model", "-m", "yarn", "--factor", "4").code == 0
    assert Path("model-yarn-4x/README.md").read_bytes() == (model / "README.md").read_bytes()


def test_a_stale_certificate_says_nothing_in_the_export(model: Path) -> None:
    run("extend", "model", "-m", "yarn", "--factor", "4")
    certify(Path("model-yarn-4x"))
    tokenizer = Path("model-yarn-4x/tokenizer.json")
    tokenizer.write_text(tokenizer.read_text() + "\n")
    assert run("export", "model-yarn-4x", "-o", "x.gguf", "--allow-unverified").code == 0
    assert not [name for name in gguf.GGUFReader("x.gguf").fields if name.startswith("ropetool.verified")]
    assert "Not verified yet" in text("x.gguf.README.md")


def test_a_checkpoint_of_others_is_exported_without_our_keys(model: Path) -> None:
    assert run("export", "model", "-o", "x.gguf").code == 0
    assert not [name for name in gguf.GGUFReader("x.gguf").fields if name.startswith("ropetool.")]
    assert front(text("x.gguf.README.md")) == {"license": "mit", "tags": ["ropetool"]}


def test_what_a_user_wrote_beside_an_export_is_kept(model: Path) -> None:
    run("export", "model", "-o", "x.gguf")
    Path("x.gguf.README.md").write_text("# Told by me\n")
    Path("x.gguf.Modelfile").write_text("FROM ./x.gguf\nSYSTEM be brief\n")
    assert run("export", "model", "-o", "x.gguf", "--force").code == 0
    assert text("x.gguf.README.md").startswith("# Told by me\n")
    assert "1. Exported to GGUF" in text("x.gguf.README.md")
    assert text("x.gguf.Modelfile") == "FROM ./x.gguf\nSYSTEM be brief\n"
    first = text("x.gguf.README.md")
    run("export", "model", "-o", "x.gguf", "--force")
    assert text("x.gguf.README.md") == first


def test_our_keys_do_not_outlive_what_they_speak_of(model: Path) -> None:
    run("extend", "model", "-m", "yarn", "--factor", "4")
    run("export", "model-yarn-4x", "-o", "x.gguf", "--allow-unverified", "--no-check")
    done = run("extend", "x.gguf", "-m", "yarn", "--factor", "8", "--from", "original", "-o", "y.gguf")
    assert done.code == 0, done.err
    assert not [name for name in gguf.GGUFReader("y.gguf").fields if name.startswith("ropetool.")]
    assert re.findall(r"^[0-9]\. \w+", text("y.gguf.README.md"), re.MULTILINE) == ["1. The", "2. Exported", "3. The"]
    assert "in place of an earlier scaling" in text("y.gguf.README.md")


def test_a_model_in_shards_has_a_card_and_no_modelfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = gguf_files.model(tmp_path / "m.gguf", shards=2)
    made = ropetool.apply(ropetool.plan(first, "linear", factor=2), first, tmp_path / "out.gguf").output
    assert made.with_name(f"{made.name}.README.md").is_file()
    assert not list(tmp_path.glob("out*.Modelfile"))


# --- command lines


def reading_otherwise(found: Inspection, planted: dict[str, Decoded]) -> Inspection:
    """Return an inspection in which some runtimes read something else."""

    class Planted(Readings):
        def named(self, name: str) -> Decoded | None:
            return planted.get(name) or super().named(name)

    assert found.checkpoint is not None
    return dataclasses.replace(found, readings=Planted(found.readings.names, found.checkpoint))


@pytest.mark.parametrize(
    ("shown", "name"),
    [("m.gguf", "m"), ("/a/My Model (1).Q4_K_M.gguf", "My-Model-1-.Q4_K_M"), ("größe.gguf", "gr-e"), ("...", "model"),
     (f"{'x' * 200}.gguf", "x" * 80)],
)  # fmt: skip
def test_ollama_gets_a_name_that_it_takes(shown: str, name: str) -> None:
    line = gguf_lines(shown, 8, Path("Modelfile"))[-1]
    assert line == f"Ollama: ollama create {name} -f Modelfile  # Ollama 0.30 and later, which run llama.cpp"


def test_programs_that_hold_llama_cpp_are_told_the_context(tmp_path: Path) -> None:
    """Each states it in words of its own; in a shell the rest of the line is a comment."""
    source = gguf_files.model(tmp_path / "m.gguf")
    found = ropetool.inspect(source)
    lines = serving_lines(found, "m.gguf")
    assert lines == gguf_lines("m.gguf", 512)
    assert [line.partition("  #")[0] for line in lines] == [
        "llama.cpp: llama-server -m m.gguf -c 512", "KoboldCpp: koboldcpp --model m.gguf --contextsize 512",
        "LM Studio: lms load --context-length 512",
    ]  # fmt: skip
    assert commands(lines) == [line.partition(": ")[2] for line in lines]
    lines = serving_lines(reading_otherwise(found, {"llama.cpp": Decoded("llama.cpp", None, "no")}), "m.gguf")
    assert lines == ["llama.cpp: does not load it: no"]


def test_a_server_that_would_compute_something_else_gets_no_line(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", configs.config("llama", "v4"))
    plan = ropetool.plan(source, "yarn", factor=4)
    out = ropetool.apply(plan, source, tmp_path / "out").output
    lines = serving_lines(ropetool.inspect(out), "out")
    assert commands(lines) == [
        "python -m sglang.launch_server --model-path out --context-length 2048", "vllm serve out --max-model-len 2048"
    ]  # fmt: skip
    found = ropetool.inspect(out)
    assert found.rope is not None
    spoilt = {"vllm@0.25": Decoded("vllm@0.25", ropetool.inspect(source).rope)}
    lines = serving_lines(reading_otherwise(found, spoilt), "out")
    assert any(line.startswith("vllm 0.2") and "would compute something else: context 512" in line for line in lines)


def test_lines_compare_with_the_runtime_that_the_output_was_planned_for(tmp_path: Path) -> None:
    """vLLM applies one factor to both tables of LongRoPE where transformers has two, so a plan for vLLM differs there."""
    source = write_model(tmp_path / "model", configs.config("llama", "v4"))
    plan = ropetool.plan(source, "yarn", factor=4, native_short=True, attention_factor="yarn", for_runtimes="vllm")
    out = ropetool.apply(plan, source, tmp_path / "out").output
    assert "vllm serve out --max-model-len 2048" in commands(serving_lines(ropetool.inspect(out), "out"))


def test_a_card_beside_a_file_that_is_a_link_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    first = gguf_files.model(tmp_path / "in" / "m.gguf")
    (tmp_path / "id_ed25519").write_text("secret")
    model_card.beside(first, model_card.CARD).symlink_to(tmp_path / "id_ed25519")
    with pytest.raises(CheckpointError, match="is a link to a file outside the checkpoint"):
        ropetool.apply(ropetool.plan(first, "linear", factor=2), first, tmp_path / "out.gguf")
    assert not list(tmp_path.glob("out*"))
