"""GGUF outputs as a set of names: what --force may replace, what others wrote beside them, and what a kill leaves to load."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import configs
import gguf_files
import pytest
from models import write_model
from running import snapshot

import ropetool
from ropetool.checkpoint import provenance
from ropetool.errors import CheckpointError, OutputError
from ropetool.files import transaction
from ropetool.files.gguf import read_header
from ropetool.files.shard_names import shard_paths

SIDECARS = [".Modelfile", ".README.md", ".ropetool.json"]


def extended(source: Path, target: Path, factor: int = 2, **options: Any) -> Any:
    return ropetool.apply(ropetool.plan(source, "linear", factor=factor), source, target, **options)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return gguf_files.model(tmp_path / "in" / "m.gguf")


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return gguf_files.model(tmp_path / "in" / "m.gguf", shards=2)


def beside(target: Path) -> set[str]:
    return {path.name for path in target.parent.iterdir() if path.is_file()}


def record_of(target: Path) -> provenance.Provenance:
    made = provenance.record(target)
    assert made is not None
    return made


# --- the record


def test_a_record_lists_the_files(parts: Path, tmp_path: Path) -> None:
    first = extended(parts, tmp_path / "out.gguf").output
    made, shards = record_of(first), shard_paths(tmp_path / "out.gguf", 2)
    names = [path.name for path in shards] + [first.name + ".README.md", first.name + ".ropetool.json"]
    assert [entry["name"] for entry in made.files] == names
    assert [entry["size"] for entry in made.files[:2]] == [path.stat().st_size for path in shards]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("files", {}, r"files is \{\}"), ("files", ["a"], 'file 0 is "a"; it must be an object'),
        ("files", [{"size": 1}], "name of file 0 is absent"),
        ("files", [{"name": "a", "size": "1"}], 'size of file 0 is "1"'), ("files", [{"name": 1}], "name of file 0 is 1"),
    ],
)  # fmt: skip
def test_a_list_of_another_kind_is_refused(key: str, value: Any, reason: str, source: Path, tmp_path: Path) -> None:
    target = extended(source, tmp_path / "out.gguf").output
    record = provenance.beside(target)
    record.write_text(json.dumps({**json.loads(record.read_text()), key: value}))
    with pytest.raises(CheckpointError, match=reason):
        provenance.record(target)


def test_the_record_of_another_file_is_not_taken_for_this_ones(source: Path, tmp_path: Path) -> None:
    target = extended(source, tmp_path / "out.gguf").output
    assert ropetool.inspect(target).made is not None
    listed = target.stat().st_size
    gguf_files.model(target, keys={"context_length": 4096, "rope.scaling.type": "none"})
    assert target.stat().st_size != listed
    found = ropetool.inspect(target)
    assert found.made is None
    assert found.trained_length == 4096
    assert re.fullmatch(
        r"out.gguf.ropetool.json is the record of a different file with this name.* Move it away", found.notes[0]
    )
    with pytest.raises(
        CheckpointError, match=f"is the record of a different file with this name: it lists {listed:,} bytes"
    ):
        ropetool.plan(target, "linear", factor=2)
    provenance.beside(target).unlink()
    assert ropetool.plan(target, "linear", factor=2).trained_length == 4096


# --- force


def test_force_replaces_what_the_record_lists(source: Path, tmp_path: Path) -> None:
    target = extended(source, tmp_path / "out.gguf").output
    assert beside(target) == {"out.gguf", *(f"out.gguf{name}" for name in SIDECARS)}
    with pytest.raises(OutputError) as refused:
        extended(source, target, 4)
    assert (refused.value.message, refused.value.try_) == (
        "exists already",
        "pass another -o, or --force to replace it",
    )
    extended(source, target, 4, force=True)
    assert gguf_files.values(target)["llama.rope.scaling.factor"][1] == 4
    assert beside(target) == {"out.gguf", *(f"out.gguf{name}" for name in SIDECARS)}


def test_force_replaces_nothing_by_a_record_without_a_list(source: Path, tmp_path: Path) -> None:
    target = extended(source, tmp_path / "out.gguf").output
    record = provenance.beside(target)
    old = json.loads(record.read_text())
    record.write_text(json.dumps({key: value for key, value in old.items() if key != "files"}))
    with pytest.raises(OutputError, match="is not listed in a ropetool record"):
        extended(source, target, 4, force=True)


def foreign(target: Path) -> None:
    target.write_bytes(b"precious")


def without_record(target: Path) -> None:
    provenance.beside(target).unlink()


def record_of_others(target: Path) -> None:
    provenance.beside(target).write_text("{}")


def another_size(target: Path) -> None:
    with target.open("ab") as file:
        file.write(b"more")


def another_content(target: Path) -> None:
    data = bytearray(target.read_bytes())
    data[-1] ^= 1
    target.write_bytes(data)


@pytest.mark.parametrize("change", [foreign, without_record, record_of_others, another_size, another_content])
def test_a_file_that_no_record_speaks_of_is_never_replaced(change: Any, source: Path, tmp_path: Path) -> None:
    target = extended(source, tmp_path / "out.gguf").output
    change(target)
    before = snapshot(tmp_path)
    for force in (False, True):
        with pytest.raises(OutputError, match="exists already and") as refused:
            extended(source, target, 4, force=force)
        assert refused.value.try_ == "pass another -o, or move the existing output away"
        assert snapshot(tmp_path) == before


def test_one_part_of_others_keeps_all(parts: Path, tmp_path: Path) -> None:
    first = extended(parts, tmp_path / "out.gguf").output
    second = shard_paths(first, 2)[1]
    second.write_bytes(second.read_bytes() + b"more")
    before = snapshot(tmp_path)
    with pytest.raises(OutputError, match=r"does not match its record: it has [\d,]+ bytes instead of") as refused:
        extended(parts, first, 4, force=True)
    assert refused.value.where == str(second)
    assert snapshot(tmp_path) == before
    first.unlink()
    before = snapshot(tmp_path)
    with pytest.raises(OutputError, match=r"does not match its record: it has [\d,]+ bytes instead of") as refused:
        extended(parts, first, 4, force=True)
    assert refused.value.where == str(second)
    assert snapshot(tmp_path) == before


def test_a_record_that_lists_a_neighbour_takes_nothing_of_it(source: Path, tmp_path: Path) -> None:
    target = extended(source, tmp_path / "out.gguf").output
    record = provenance.beside(target)
    data = json.loads(record.read_text())
    names = (
        "thesis.tex",
        "in/m.gguf",
        "../thesis.tex",
        "out.gguf./../../x",
        "out.gguf.\0",
        f"out.gguf.{'x' * 300}",
        "out.gguf.\ud800",
    )
    for name in (*names, "out.gguf.Modelfile"):  # the last one twice
        data["files"].append({"name": name, "size": 4})
    (tmp_path / "thesis.tex").write_text("mine")
    record.write_text(json.dumps(data))
    extended(source, target, 4, force=True)
    assert (tmp_path / "thesis.tex").read_text() == "mine"
    assert source.is_file()


def test_a_record_whose_file_is_gone_needs_no_force(source: Path, tmp_path: Path) -> None:
    target = extended(source, tmp_path / "out.gguf").output
    target.unlink()
    extended(source, target, 4)
    assert record_of(target).plan["factor"] == 4


def test_without_force_nothing_that_is_not_written_again_goes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = extended(source, tmp_path / "out.gguf").output
    target.rename(tmp_path / "moved.gguf")
    modelfile = tmp_path / "out.gguf.Modelfile"
    text = modelfile.read_text()
    with monkeypatch.context() as patch:
        patch.setattr("ropetool.plans.model_card.texts_beside", lambda *_: {})
        extended(source, target, 4)
    assert modelfile.read_text() == text


def test_force_on_a_folder_keeps_what_a_kill_in_it_has_set_aside(source: Path, tmp_path: Path) -> None:
    """The hidden folder of a dead process may hold the only copy of a model."""
    model = write_model(tmp_path / "model", configs.config("llama", "v4"))
    out = ropetool.apply(ropetool.plan(model, "linear", factor=2), model, tmp_path / "out").output
    mine = extended(source, out / "mine.gguf").output
    before = mine.read_bytes()
    killed = """
import os, sys
import ropetool
from ropetool.files import renames
renames.Order.put_all = lambda order: os._exit(9)
source, target = sys.argv[1:]
ropetool.apply(ropetool.plan(source, "linear", factor=4), source, target, force=True)
"""
    assert subprocess.run([sys.executable, "-c", killed, source, mine]).returncode == 9
    assert not mine.exists()
    for name in (*SIDECARS, ""):  # as if they had been moved elsewhere
        mine.with_name(mine.name + name).unlink(missing_ok=True)
    (left,) = out.glob(".mine.gguf.ropetool-*")
    with pytest.raises(OutputError, match=f"contains files that its record does not list: {left.name}/old/") as refused:
        ropetool.apply(ropetool.plan(model, "linear", factor=4), model, out, force=True)
    assert f"{left.name}/old/mine.gguf" in refused.value.message
    assert (left / "old" / "mine.gguf").read_bytes() == before
    extended(source, out / "mine.gguf", 4, force=True)
    for path in out.glob("mine.gguf*"):
        path.unlink()
    ropetool.apply(ropetool.plan(model, "linear", factor=4), model, out, force=True)


# --- what others wrote beside it


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", [".README.md", ".Modelfile"])
@pytest.mark.parametrize("kind", ["file", "link", "folder", "pipe"])
def test_what_others_wrote_beside_a_file_stays(kind: str, name: str, force: bool, source: Path, tmp_path: Path) -> None:
    place = tmp_path / f"out.gguf{name}"
    (tmp_path / "mine").write_text("# Written by ropetool, says the thief")
    if kind == "folder":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "link":
        place.symlink_to("mine")
    else:
        place.write_text("# Written by ropetool, says the thief")
    written = extended(source, tmp_path / "out.gguf", force=force)
    assert written.notes == (f"{place} is not replaced, because it is not listed in a ropetool record",)
    if place.is_file():
        assert place.read_text() == "# Written by ropetool, says the thief"
    assert place.is_symlink() == (kind == "link")
    listed = [entry["name"] for entry in record_of(tmp_path / "out.gguf").files]
    assert place.name not in listed
    extended(source, tmp_path / "out.gguf", 4, force=True)
    assert not place.is_file() or place.read_text() == "# Written by ropetool, says the thief"


@pytest.mark.parametrize("kind", ["extend", "export"])
def test_what_others_write_beside_a_file_while_it_is_flushed_stays_and_the_output_too(
    kind: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To flush a large model takes minutes."""
    card, real = tmp_path / "out.gguf.README.md", transaction.flush

    def flush(folder: Path) -> None:
        if (folder / "out.gguf").exists():
            card.write_text("mine")
        real(folder)

    monkeypatch.setattr(transaction, "flush", flush)
    if kind == "extend":
        notes: Any = extended(source, tmp_path / "out.gguf").notes
    else:
        model = Path(ropetool.__file__).parent / "demo" / "model"
        notes = ropetool.export(model, tmp_path / "out.gguf", check=False).notes
    assert f"{card} is not replaced, because it is not listed in a ropetool record" in notes
    assert card.read_text() == "mine"
    assert card.name not in [entry["name"] for entry in record_of(tmp_path / "out.gguf").files]
    monkeypatch.undo()
    if kind == "extend":
        extended(source, tmp_path / "out.gguf", 4, force=True)
        assert card.read_text() == "mine"


def test_what_the_earlier_output_had_and_the_new_one_has_not_goes_unless_it_was_changed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = [extended(source, tmp_path / f"{name}.gguf").output for name in ("own", "changed")]
    (tmp_path / "changed.gguf.Modelfile").write_text("FROM ./changed.gguf\nSYSTEM be brief\n")
    monkeypatch.setattr("ropetool.plans.model_card.texts_beside", lambda *_: {})
    for target in targets:
        extended(source, target, 4, force=True)
    left = {path.name for path in tmp_path.iterdir() if path.suffix == ".Modelfile"}
    assert left == {"changed.gguf.Modelfile"}


# --- kills and errors, with everything that ropetool does

# Forks once per step; each child ends itself before its n-th change of a name, removal or flush. Then another one goes on.
KILLED = """
import json, os, signal, sys
from pathlib import Path
import gguf_files
import ropetool
from ropetool.checkpoint import listings, provenance
from ropetool.files import renames
from ropetool.files.shard_names import shard_paths

root, source, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
first_plan, plan, last_plan = (ropetool.plan(source, "linear", factor=factor) for factor in (2, 4, 8))


def counted(real, left):
    def call(*args, **options):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **options)

    return call


def state(files):
    if not files[0].exists():
        return None
    factor = gguf_files.values(files[0])["llama.rope.scaling.factor"][1]
    made = provenance.record(files[0])
    rule = listings.files_rule(files)
    return [factor, made.plan["factor"], not any(rule(file) for file in files)]


status, step, found = 1, 0, []
while status:
    step += 1
    place = root / f"{step:03}"
    place.mkdir()
    target = place / "out.gguf"
    files = shard_paths(target, count)
    ropetool.apply(first_plan, source, target)
    child = os.fork()
    if child == 0:
        left = [step]
        for owner, names in ((os, ("rename", "replace", "fsync", "unlink", "rmdir")), (renames, ("_renameat2",))):
            for name in names:
                setattr(owner, name, counted(getattr(owner, name), left))
        ropetool.apply(plan, source, target, force=True)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    killed = state(files)
    notes = ropetool.apply(last_plan, source, target, force=True).notes
    found.append([killed, state(files), notes, sorted(path.name for path in place.iterdir())])
print(json.dumps(found))
"""


@pytest.mark.parametrize("count", [1, 2], ids=["one file", "two parts"])
def test_a_kill_never_leaves_a_mix_or_a_file_without_its_record(count: int, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    source = gguf_files.model(tmp_path / "in" / "m.gguf", shards=count)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path, source, str(count)],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    killed = [state for state, *_ in found]
    assert len(found) > 20
    assert all(state in (None, [2, 2, True], [4, 4, True]) for state in killed)
    phases = [state for i, state in enumerate(killed) if i == 0 or state != killed[i - 1]]
    assert phases == [[2, 2, True], None, [4, 4, True]]
    for _, after, notes, names in found:
        assert after == [8, 8, True]
        assert not any(name.startswith(".") for name in names)
        assert len(names) == 4
        assert all("an interrupted command" in note or note.startswith("put back out") for note in notes)
    assert all(notes for _, _, notes, _ in found[:-1])


@pytest.mark.parametrize("force", [False, True], ids=["new", "replaced"])
def test_an_error_at_any_rename_takes_all_parts_back(
    force: bool, parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ropetool.files import renames

    if force:
        extended(parts, tmp_path / "out.gguf")
    before, step, real = snapshot(tmp_path), 0, renames._renameat2
    while True:
        step += 1
        calls = 0

        def failing(*args: Any, at: int = step) -> bool:
            nonlocal calls
            calls += 1
            if calls == at:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(*args)

        monkeypatch.setattr(renames, "_renameat2", failing)
        try:
            extended(parts, tmp_path / "out.gguf", 4, force=force)
        except OutputError:
            assert snapshot(tmp_path) == before
            continue
        break
    assert step == 5  # the card, the record and two parts
    assert len(read_header(tmp_path / "out-00001-of-00002.gguf").tensors) > 0
