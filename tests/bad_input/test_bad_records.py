"""Records and certificates of another shape: one error that names the file, the key and the value, and a next step."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from running import Done, run

import ropetool
from ropetool.checkpoint import certificate, fingerprints
from ropetool.checkpoint.certificate import Certificate

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
HUGE = 10**400
CHECK = {"name": "tables", "figure": 0.0, "limit": 1e-6, "verdict": "pass", "detail": ""}
COMMANDS = {
    "inspect": ("inspect",),
    "extend": ("extend", "--method", "yarn", "--factor", "8", "--from", "current", "-o", "out"),
    "verify": ("verify", "--suite", "quick", "--lengths", "256"),
    "export": ("export", "--allow-unverified", "-o", "out.gguf"),
    "diff": ("diff", "m"),
    "bake": ("bake", "attention-factor", "-o", "out"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an extended checkpoint and its export."""
    folder = tmp_path_factory.mktemp("records")
    with chdir(folder):
        shutil.copytree(DEMO, "m")
        assert run("extend", "m", "--method", "yarn", "--factor", "4").code == 0
        assert run("export", "m-yarn-4x", "--allow-unverified", "--no-check", "-o", "e.gguf").code == 0
    return folder


@pytest.fixture
def output(made: Path) -> Iterator[Path]:
    record = made / "m-yarn-4x" / "ropetool.json"
    good = record.read_bytes()
    with chdir(made):
        yield record
    record.write_bytes(good)


def put(record: Path, place: str, value: Any) -> None:
    data = json.loads(record.read_text())
    holder, *path = data, *place.split(".")
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    record.write_text(json.dumps(data))


def one_error(done: Done, *parts: str) -> None:
    lines = done.err.splitlines()
    assert (done.code, done.out) == (1, ""), done
    assert [line.partition(":")[0] for line in lines] == ["Error", "Try"], lines
    assert all(part in lines[0] for part in parts), lines[0]
    assert len(lines[0]) < 400


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("trained_length", HUGE), ("trained_length", 0), ("trained_length", True), ("trained_length", "512"), ("source", 7),
        ("source", ["a"]), ("source_fingerprint", None), ("source_fingerprint", "\ud800"), ("plan", []),
        ("plan.method", 7), ("plan.method", ["yarn"]),
        ("plan.params", []), ("plan.params", "x"), ("plan.bakes", 1), ("plan.bakes", "x"), ("plan.bakes", [{}]),
        ("plan.reading", {}), ("plan.factor", "4"), ("plan.factor", HUGE), ("plan.factor", float("nan")), ("plan.suffix", 4),
        ("plan.edits", 7), ("plan.edits", {}),
    ],
)  # fmt: skip
def test_a_record_of_another_shape(command: str, place: str, value: Any, output: Path) -> None:
    put(output, place, value)
    name, *options = COMMANDS[command]
    shown = place if place.count(".") == 0 else place.partition(".")[2]
    one_error(run(name, "m-yarn-4x", *options), "m-yarn-4x/ropetool.json: not a valid ropetool record (", shown)
    assert not Path("out").exists()
    assert not Path("out.gguf").exists()


@pytest.mark.parametrize("value", [[], "x", 7, True], ids=repr)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_record_that_is_no_object(command: str, value: Any, output: Path) -> None:
    output.write_text(json.dumps(value))
    name, *options = COMMANDS[command]
    one_error(run(name, "m-yarn-4x", *options), "m-yarn-4x/ropetool.json: contains ")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("export", 7), ("export.bakes", 1), ("export.outtype", []), ("export.checks", 7), ("export.checks", [7]),
        ("export.checks", [{}]), ("export.checks", [{**CHECK, "limit": "x"}]), ("export.checks", [{**CHECK, "limit": HUGE}]),
        ("export.checks", [{**CHECK, "figure": float("nan")}]), ("export.checks", [{**CHECK, "name": None}]),
        ("export.checks", {"a": 1}),
    ],
)  # fmt: skip
def test_the_record_of_an_export(place: str, value: Any, made: Path) -> None:
    record = made / "e.gguf.ropetool.json"
    good = record.read_bytes()
    try:
        with chdir(made):
            put(record, place, value)
            for arguments in (
                ["inspect", "e.gguf"], ["verify", "e.gguf", "--against", "m-yarn-4x", "--suite", "quick"],
                ["extend", "e.gguf", "--method", "yarn", "--factor", "8", "--from", "current", "-o", "out.gguf"],
            ):  # fmt: skip
                done = run(*arguments)
                one_error(done, "e.gguf.ropetool.json: not a valid ropetool record (", place.partition(".")[2])
    finally:
        record.write_bytes(good)


def whole(target: Path, **changed: Any) -> dict[str, Any]:
    """Return a passing certificate of the target, with some keys changed."""
    found = Certificate(
        "pass", "quick", 1024, (CHECK,), "t", {"torch": "2"}, "ropetool verify", certificate.now(),
        fingerprints.of(target), full_hash=True, lengths=(1024,),
    )  # fmt: skip
    return {**found.to_json(), **changed}


@pytest.mark.parametrize(
    ("changed", "shown"),
    [
        ({"checks": 7}, "checks is 7"),
        ({"checks": [7]}, "check 0 is 7; it must be an object"),
        ({"checks": [{}]}, "name of check 0 is absent"),
        ({"checks": [CHECK, {**CHECK, "detail": None}]}, "detail of check 1 is null"),
        ({"checks": [{**CHECK, "figure": HUGE}]}, "figure of check 0 is 1000"),
        ({"checks": [{**CHECK, "figure": float("nan")}]}, "figure of check 0 is NaN"),
        ({"checks": [{**CHECK, "limit": float("-inf")}]}, "limit of check 0 is -Infinity"),
        ({"checks": [{**CHECK, "figure": "0"}]}, 'figure of check 0 is "0"'),
        ({"checks": [{**CHECK, "figure": True}]}, "figure of check 0 is true"),
        ({"checks": [{**CHECK, "verdict": "maybe"}]}, 'verdict of check 0 is "maybe"'),
        ({"longest": HUGE}, "longest is 1000"),
        ({"longest": 1024.0}, "longest is 1024.0"),
        ({"lengths": [HUGE]}, "lengths is"),
        ({"lengths": [True]}, "lengths is"),
        ({"verdict": "fail"}, 'verdict is "fail", but its checks result in pass'),
        ({"versions": {"torch": 2}}, "versions is"),
        ({"fingerprint": "x" * 2000}, 'fingerprint is "xxx'),
        ({"made": 7}, "made is 7"),
        ({"made": "2026-01-01 <b>"}, 'made is "2026-01-01 <b>"'),
        ({"suite": "quick`"}, 'suite is "quick`"'),
        ({"command": "a " * 50_001}, 'command is "a a a'),
        ({"command": None}, "command is null"),
    ],
    ids=str,
)
def test_a_certificate_of_another_shape(changed: dict[str, Any], shown: str, output: Path) -> None:
    put(output, "certificate", whole(output.parent, **changed))
    where = f"m-yarn-4x/ropetool.json: certificate: not a valid ropetool certificate ({shown}"
    one_error(run("export", "m-yarn-4x", "-o", "out.gguf"), where)
    assert not Path("out.gguf").exists()
    for arguments in (["inspect", "m-yarn-4x"], ["diff", "m", "m-yarn-4x"]):
        assert run(*arguments).code in (0, 3)


def test_the_certificate_of_the_tests_is_one(output: Path) -> None:
    put(output, "certificate", whole(output.parent))
    assert certificate.state(output.parent).name == certificate.PASSED


@pytest.mark.parametrize("value", [7, "x", [], {}, True], ids=repr)
def test_a_certificate_that_is_none(value: Any, output: Path) -> None:
    put(output, "certificate", value)
    one_error(
        run("export", "m-yarn-4x", "-o", "out.gguf"),
        "m-yarn-4x/ropetool.json: certificate: not a valid ropetool certificate",
    )
