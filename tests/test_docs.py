"""The documentation: generated parts are fresh, every command in it exists, its examples run, its JSON is what is printed."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import test_imports
from choosing.tuned_sample import sample
from documenting import documented
from forks import COMMAND, run_python
from loading import script

import ropetool
from ropetool import families
from ropetool.choosing.options import CandidateOptions
from ropetool.cli import COMMANDS, group
from ropetool.lab.tuning.options import TuneOptions
from ropetool.lab.tuning.report import tune_json
from ropetool.plans.advice import advise, with_bounds
from ropetool.plans.bakes import BakeOptions
from ropetool.report import answered
from ropetool.report.advised import advice_json
from ropetool.report.inspected import inspection_json
from ropetool.report.verdict import verify_json
from ropetool.runtimes import inspection
from ropetool.verification.options import VerifyOptions
from ropetool.verification.verdict.checking import check

ROOT = Path(ropetool.__file__).parents[1]
DEMO = ROOT / "ropetool" / "demo" / "model"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FORBIDDEN = re.compile(r"(?i)\bsessions?\b|/work/|\bissue #?\d|\bpart [0-9] of\b|\bhelper\b|\bTODO\b")


docs = script("docs.py")


# --- generated parts


def test_generated_parts_are_fresh() -> None:
    stale = [path.name for path, text in docs.generated() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run scripts/docs.py"


def test_the_export_grid_refuses_what_the_logits_test_lists_as_lost() -> None:
    from exporting.test_export_families import LOSSY

    spelling = {"yarn, beta_fast 8": "yarn, beta 8"}
    cells = {
        (family, spelling.get(cell, cell))
        for family, (_, held) in docs.family_page.export_grid.grid().items()
        for cell, how in zip(docs.family_page.export_grid.CELLS, held, strict=True)
        if how == docs.family_page.export_grid.NOT
    }
    # A factor that norms take away is refused before an export.
    refused = {(family, cell) for family, cell in cells if families.get(family).norm_after and cell != "longrope"}
    assert cells - refused == set(LOSSY) - refused
    assert refused <= {(family, cell) for family, _ in refused for cell in ("yarn", "yarn, beta 8")} | set(LOSSY)


def test_a_changed_page_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = docs.cli_reference().replace("--factor", "--faktor", 1)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "cli.md").write_text(changed, encoding="utf-8")
    monkeypatch.setattr(docs, "generated", lambda: iter([(tmp_path / "docs" / "cli.md", docs.cli_reference())]))
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["docs.py", "--check"])
    assert docs.main() == 1
    assert (tmp_path / "docs" / "cli.md").read_text(encoding="utf-8") == changed
    monkeypatch.setattr(sys, "argv", ["docs.py"])
    assert docs.main() == 0
    monkeypatch.setattr(sys, "argv", ["docs.py", "--check"])
    assert docs.main() == 0


PARTS = [name.removeprefix("ropetool ") for name, _ in docs.commands() if name.count(" ") == 2]


@pytest.mark.parametrize("name", PARTS)
def test_every_part_of_a_command_has_help_with_an_example(name: str) -> None:
    context = dict(docs.commands())[f"ropetool {name}"]
    assert 10 < len((context.command.help or "").partition("\n")[0]) < 60
    assert re.search(rf"\n *ropetool {name} ", context.command.help or "")
    assert all(p.help for p in context.command.params if isinstance(p, click.Option))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_is_in_the_reference(name: str) -> None:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    first = (command.help or "").partition("\n")[0]
    assert 10 < len(first) < 60
    assert COMMANDS[name][1] == first or name in ("methods", "families", "runtimes")
    assert len(COMMANDS[name][1]) < 60
    assert all(p.help for p in command.params if isinstance(p, click.Option) and not p.metavar)
    assert f"\n## ropetool {name}\n" in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def test_the_tree_says_what_every_folder_of_code_holds() -> None:
    said = dict(re.split(r"/ +", line.strip(), maxsplit=1) for line in docs.tree().splitlines()[1:-1])
    folders = {path.parent for name in ("ropetool", "scripts", "tests") for path in (ROOT / name).rglob("*.py")}
    assert {folder.name for folder in folders} <= set(said)
    assert all(len(words) > 10 for words in said.values())


def test_the_layers_are_those_that_imports_are_held_to() -> None:
    table = docs.layer_table()
    for number, names in enumerate(test_imports.LAYERS):
        assert f"| {number} | {', '.join(f'`{name}`' for name in names)} |" in table


# --- commands in the text


def blocks(text: str, *languages: str) -> Iterator[str]:
    """Yield the fenced blocks of these languages."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language in languages:
            yield block


def command_lines(text: str) -> Iterator[list[str]]:
    """Yield the arguments of every `ropetool` call in fenced blocks."""
    for block in blocks(text, "console", "text", "bash", "sh"):
        for line in block.splitlines():
            for part in line.strip().removeprefix("$ ").split("&&"):
                if part.strip().startswith("ropetool "):
                    words = shlex.split(part, comments=True)
                    yield words[1 : words.index(">") if ">" in words else None]


def complaint(arguments: list[str]) -> str:
    """Return what click says against a command line, without running it."""
    name, *rest = arguments
    if name.startswith("-"):
        return "" if name in ("--help", "-h", "--version") else f"no option {name}"
    command = group.get_command(click.Context(group), name)
    if command is None:
        return f"no command {name}"
    try:
        context = command.make_context(name, rest)
        while isinstance(command, click.Group):
            name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            assert command is not None
            context = command.make_context(name, rest, parent=context)
    except click.exceptions.Exit:
        return ""
    except click.ClickException as error:
        return error.format_message()
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_in_the_text_exist(page: Path) -> None:
    found = list(command_lines(page.read_text(encoding="utf-8")))
    assert {" ".join(line): complaint(line) for line in found if complaint(line)} == {}
    assert found or page.stem not in ("README", "cli")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ropetool extent model", "no command extent"),
        ("ropetool gguf sett model.gguf", "No such command 'sett'"),
        ("ropetool gguf merge model-00001-of-00002.gguf", "Missing option '-o'"),
        ("ropetool extend model --method yarn --faktor 4", "No such option"),
        ("ropetool verify X --lengths 256,many", "not a list of lengths"),
        ("ropetool advise model", "Missing option"),
    ],
)
def test_a_wrong_command_in_the_text_is_seen(line: str, reason: str) -> None:
    (found,) = command_lines(f"```console\n$ {line}\n```\n")
    assert reason in complaint(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_text_speaks_of_the_project_alone(page: Path) -> None:
    assert FORBIDDEN.findall(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        if name.startswith("https://"):
            continue
        linked = page.parent / name if name else page
        assert linked.is_file(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings], target


# --- examples that run


# How a file got there is the file system's business.
PLACED = re.compile(r"  other files  .*\n(  storage      .*\n)?")


def plain(text: str) -> str:
    return PLACED.sub("", text)


def shown(name: str) -> str:
    """Return the output that the tutorial shows under this name."""
    text = (ROOT / docs.TUTORIAL).read_text(encoding="utf-8")
    found = re.search(rf"<!-- output-{name} -->\n+```text\n(.*?)```\n+<!-- /output-{name} -->", text, re.DOTALL)
    assert found is not None, f"{docs.TUTORIAL} shows no output {name}; run scripts/docs.py --examples"
    return found[1]


def output_of(arguments: Sequence[str], folder: Path) -> str:
    """Return what docs.example_output does, from a process that need not load torch again."""
    if not (folder / "ropetool").exists():
        shutil.copytree(DEMO, folder / "ropetool" / "demo" / "model")
    done = run_python(COMMAND, *arguments, folder=folder, together=True)
    assert done.code == 0, done.out
    return done.out


def test_the_worked_example_prints_what_the_tutorial_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = dict(docs.examples())
    assert list(lines) == ["inspect", "plan", "extend", "verify", "export", "gguf"]
    # Their figures depend on the machine, so they are not run here.
    assert "Does it work at full length?" in shown("verify")
    assert "at most" in shown("gguf")
    for name in ("inspect", "plan", "extend", "export"):
        if name == "export":  # which asks for a certificate
            with monkeypatch.context() as patch:
                patch.chdir(tmp_path)
                assert ropetool.verify("X", far_text=False).exit_code == 0
        found = output_of(lines[name], tmp_path)
        assert plain(found) == plain(shown(name))
    assert (tmp_path / "X" / "config.json").is_file()


def test_the_front_page_shows_what_commands_printed() -> None:
    """Its outputs are parts of those of the tutorial; `...` stands for what is left out."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    printed = {" ".join(["ropetool", *line]): shown(name) for name, line in docs.examples()}
    found = re.findall(r"^```console\n\$ (ropetool [^\n]+)\n```\n\n```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(found) == 4
    for command, excerpt in found:
        whole = iter(printed[command].splitlines())
        for line in excerpt.splitlines():
            assert line == "..." or line in whole, (command, line)


def test_the_picture_of_the_front_page_is_drawn_from_its_record() -> None:
    picture = script("front/front_picture.py")
    record = json.loads(picture.RECORD.read_text(encoding="utf-8"))
    assert complaint(record["command"].split()[1:]) == ""
    shown, again = (
        re.sub(rb"<style>.*?</style>", b"", each) for each in (picture.PICTURE.read_bytes(), picture.drawn(record))
    )
    assert shown == again  # but for the names of colours
    losses = {name: dict(found) for name, found in record["losses"].items()}
    assert losses["as it is"][2048] > losses["linear x8"][2048] > losses["yarn x8"][2048]  # as the text beside it says
    assert losses["ntk x8"][512] < losses["as it is"][512] < losses["ntk x8"][2048]


def test_the_recording_shows_what_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = script("front/recording.py")
    shown = recording.shown()
    assert tuple(shown) == recording.COMMANDS
    shutil.copytree(DEMO, tmp_path / "model")
    for command, rows in shown.items():
        assert complaint(command.split()[1:]) == ""
        if " verify " in command:  # its figures depend on the machine
            with monkeypatch.context() as patch:
                patch.chdir(tmp_path)
                result = ropetool.verify("X", far_text=False)
            assert rows[0].startswith(f"{result.answers.verdict}: X: perplexity ")
            questions = [line[0].text for line in answered.questions_section(result).table.rows]
            assert [row.strip().partition("  ")[0] for row in rows if "?" in row][: len(questions)] == questions
            continue
        output = plain(recording.printed(command, tmp_path))
        printed = [row.plain.rstrip() for row in recording.screen(command, output)[1:] if row.plain.strip()]
        left = iter(rows)
        assert [row for row in printed if row not in left] == []
        assert len(rows) - len(printed) <= 3  # how files were placed


def test_the_recording_is_small_and_names_no_place(tmp_path: Path) -> None:
    picture = script("front/recording.py").PICTURE
    text = picture.read_text(encoding="utf-8")
    assert len(text) < 60_000
    assert not re.search(r"/(tmp|home|root|work)/|https?://(?!www\.w3\.org/2000/svg)|@import|<(image|script|a)\b", text)
    assert "(docs/recording.svg)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_front_page_is_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert 100 <= len(lines) <= 130
    assert [line for line in lines if len(line) > 120] == []


def test_every_function_is_documented_with_its_parameters() -> None:
    rows = re.findall(r"^\| `(\w+)\((.*?)\)` \|", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    documented = {name: [word for word in words.split(", ") if word != "*"] for name, words in rows}
    fields = {"bake": [field.name for field in dataclasses.fields(BakeOptions)]}
    for name in set(ropetool.__all__) - {"__version__"}:
        parameters = inspect.signature(getattr(ropetool, name)).parameters
        known = [each for each in parameters if each != "options"] + fields.get(name, [])
        names = documented.pop(name)
        if names[-1] == "...":  # the row of `plan` has the others
            names, known = names[:-1], known[: len(names) - 1]
        assert names == known, name
    assert documented == {}


@pytest.mark.parametrize("options", [VerifyOptions, CandidateOptions, TuneOptions])
def test_every_option_of_a_measurement_is_documented(options: type[Any]) -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `\w+` \| `{options.__module__}\.{options.__name__}` \| (.*) \|$", text, re.MULTILINE)
    assert row is not None
    assert re.findall(r"`(\w+)`", row[1]) == [field.name for field in dataclasses.fields(options)]


def test_the_python_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(DEMO, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    source = "\n".join(blocks(text, "pycon"))
    parsed = doctest.DocTestParser().get_doctest(source, {}, "api.md", "docs/api.md", 0)
    assert len(parsed.examples) > 10
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    report: list[str] = []
    runner.run(parsed, out=report.append)
    assert report == []


# --- JSON


def key_tree(value: Any) -> Any:
    """Return the keys of nested objects; a list is that of its first entry, anything else is nothing."""
    if isinstance(value, dict):
        return {key: key_tree(inner) for key, inner in value.items()}
    if isinstance(value, list) and value:
        return key_tree(value[0])
    return None


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Return a folder with the extended demo checkpoint in `out`, and what extend printed."""
    folder = tmp_path_factory.mktemp("extended")
    line = "extend ropetool/demo/model --method yarn --factor 8 --beta-fast 16 -o out --json"
    return folder, json.loads(output_of(line.split(), folder))


def test_the_json_of_inspect_is_documented() -> None:
    assert key_tree(documented("inspect --json")) == key_tree(inspection_json(inspection.inspect(DEMO)))


def test_the_json_of_advise_is_documented() -> None:
    made = advice_json(with_bounds(advise(inspection.inspect(DEMO), 2048)))
    assert key_tree(documented("advise --json")) == key_tree(made)


def test_the_json_of_tune_is_documented() -> None:
    assert key_tree(documented("tune --json")) == key_tree(tune_json(sample(), Path("plan.json")))


def test_the_json_of_extend_is_documented(extended: tuple[Path, Any]) -> None:
    assert set(documented("extend --json")) == set(extended[1])


def test_the_json_of_a_plan_is_documented(extended: tuple[Path, Any]) -> None:
    assert key_tree(documented("Plan")) == key_tree(extended[1]["plan"])


def test_the_json_of_check_is_documented(extended: tuple[Path, Any]) -> None:
    assert key_tree(documented("check --json")) == key_tree(check(extended[0] / "out").to_json())


def test_the_answers_of_verify_are_documented(extended: tuple[Path, Any], tmp_path: Path) -> None:
    output = shutil.copytree(extended[0] / "out", tmp_path / "out")  # verify writes into its record
    texts = sorted((ROOT / "ropetool" / "demo" / "text").iterdir())[:3]
    found = ropetool.verify(output, baseline=DEMO, texts=texts).to_json()["answers"]
    assert key_tree(documented("answers of verify --json")) == key_tree(found)


def test_the_provenance_is_documented(extended: tuple[Path, Any]) -> None:
    made = json.loads((extended[0] / "out" / "ropetool.json").read_text(encoding="utf-8"))
    assert made["plan"] == extended[1]["plan"]
    section = (ROOT / "docs" / "api.md").read_text(encoding="utf-8").partition("## ropetool.json")[2]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(made)


def test_the_json_of_export_is_documented(extended: tuple[Path, Any]) -> None:
    line = ["export", str(extended[0] / "out"), "-o", str(extended[0] / "out.gguf"), "--allow-unverified", "--json"]
    assert set(documented("export --json")) == set(json.loads(output_of(line, extended[0])))


def test_the_json_of_verify_is_documented(extended: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropetool.verification.run.DIVERGENCE_TOKENS", 2048)  # keys are asked for, and no figures
    measures = ["last-segment", "position", "far", "retrieval", "yarn"]
    texts = sorted((ROOT / "ropetool" / "demo" / "text").iterdir())[:4]
    result = ropetool.verify(
        extended[0] / "out", lengths=[64, 272], segments=8, trials=1, measures=measures, texts=texts, against=DEMO
    )
    assert key_tree(documented("verify --json")) == key_tree(verify_json(result))
