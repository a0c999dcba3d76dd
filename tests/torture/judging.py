"""Says what is wrong with the files that a disturbed command left; the empty text is the verdict that all is well.

The yardsticks are the bytes that undisturbed runs leave and llama.cpp's own rule on which files it loads together.
Imports nothing of ropetool.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from functools import cache

from gguf import GGUFReader

from torture.commands import Ended
from torture.scenes import OUT, SOURCE, Files, Stage, contents

_HIDDEN = re.compile(r"\..*ropetool.*")
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
RECORD = ".ropetool.json"
TRACEBACK = "Traceback (most recent call last)"


# --- states


def untouched(stage: Stage) -> str:
    """Say whether the source has changed, by bytes, modes and times."""
    return _difference("the source", stage.source, contents(stage.place / SOURCE, times=True))


def killed(stage: Stage, found: Files) -> str:
    """Say what is wrong with the output's folder after a sudden end: each output is absent or whole, no two are mixed."""
    visible, hidden = _sorted(found)
    problems = [
        _strange(stage, visible, hidden),
        *(_directory(stage, name, visible, hidden) for name in sorted(_directories(stage))),
        *(_file(stage, name, content) for name, content in visible.items() if "/" not in name and content is not None),
        *(_model(stage, files, visible) for files in loadable(visible)),
    ]
    return "; ".join(problem for problem in problems if problem)


def at_rest(stage: Stage, found: Files, *allowed: Files) -> str:
    """Say what is wrong where everything has to be as in one of the states, with nothing hidden beside it."""
    if found in allowed:
        return ""
    hidden = _sorted(found)[1]
    if hidden:
        return f"left behind: {', '.join(sorted(hidden)[:3])}"
    return min((_difference("the output", state, found) for state in allowed), key=len)


def refused(ended: Ended, codes: tuple[int, ...] = (1,)) -> str:
    """Say what is wrong with how a command gave up: the exit code, no sentence, a traceback."""
    if ended.code not in codes:
        return f"exit code {ended.code}: {_last_line(ended.text)}"
    if TRACEBACK in ended.text:
        return f"a traceback: {_last_line(ended.text)}"
    return ""


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no word"])[-1][:200]


def _sorted(found: Files) -> tuple[Files, Files]:
    """Return what is seen and what is hidden, by the first part of the name."""
    hidden = {name: content for name, content in found.items() if name.startswith(".")}
    return {name: content for name, content in found.items() if name not in hidden}, hidden


def _difference(what: str, wanted: Files, found: Files) -> str:
    lacking, extra = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    changed = sorted(name for name in wanted.keys() & found.keys() if wanted[name] != found[name])
    parts = [f"{word} {', '.join(names[:3])}" for word, names in
             (("lacks", lacking), ("has", extra), ("differs in", changed)) if names]  # fmt: skip
    return f"{what} {' and '.join(parts)}" if parts else ""


# --- parts of a state


def _strange(stage: Stage, visible: Files, hidden: Files) -> str:
    known = stage.before.keys() | stage.after.keys()
    tops = {name.partition("/")[0] for name in known}
    odd = [name for name in visible if name.partition("/")[0] not in tops]
    odd += [name for name in hidden if not _HIDDEN.match(name.partition("/")[0])]
    return f"strange: {', '.join(odd[:3])}" if odd else ""


def _directories(stage: Stage) -> set[str]:
    return {
        name
        for state in (stage.before, stage.after)
        for name, content in state.items()
        if content is None and "/" not in name
    }


def _below(files: Files, name: str) -> Files:
    start = f"{name}/"
    return {path.removeprefix(start): content for path, content in files.items() if path.startswith(start)}


def _directory(stage: Stage, name: str, visible: Files, hidden: Files) -> str:
    old, new = (_below(state, name) if name in state else None for state in (stage.before, stage.after))
    found = _below(visible, name) if name in visible else None
    if found is not None:
        return "" if found in (old, new) else f"{name} is neither the old nor the new one"
    if old is None:
        return ""
    if stage.scene.no_exchange and any(
        _below(hidden, path) == old for path, content in hidden.items() if content is None
    ):
        return ""  # set aside, whole
    return f"the old {name} is gone"


def _file(stage: Stage, name: str, content: bytes) -> str:
    if content in (stage.before.get(name), stage.after.get(name)):
        return ""
    return f"{name} is neither the old nor the new one"


def _model(stage: Stage, files: tuple[str, ...], visible: Files) -> str:
    """Say what is wrong with files that llama.cpp would load together: they and their record are of one making."""
    record = files[0] + RECORD
    together = (*files, record)
    for state in (stage.before, stage.after):
        if all(state.get(name) == visible.get(name) for name in together):
            return ""
    olds = [name for name in files if visible[name] == stage.before.get(name)]
    if record not in visible:
        return f"{files[0]} is without its record"
    if len(olds) not in (0, len(files)):
        return f"{files[0]} loads as a mix: {', '.join(olds)} old, the others new"
    return f"{files[0]} has the record of another file"


# --- llama.cpp's rule


def loadable(visible: Files) -> Iterator[tuple[str, ...]]:
    """Yield the files of each model that llama.cpp would load.

    A file that does not say it is split is one by itself; else all parts lie beside it under their names, say the same
    number of parts, their own place among them, and have together as many tensors as the first announces.
    """
    stated = {
        name: _stated(content)
        for name, content in visible.items()
        if name.endswith(".gguf") and "/" not in name and content is not None
    }
    for name, (number, count, announced, _) in stated.items():
        if count <= 1:
            yield (name,)
            continue
        form = _PART.fullmatch(name)
        if number != 0 or form is None:
            continue
        parts = tuple(f"{form[1]}-{at:05}-of-{count:05}.gguf" for at in range(1, count + 1))
        held = [stated.get(part) for part in parts]
        agree = all(one is not None and one[:2] == (at, count) for at, one in enumerate(held))
        if agree and sum(one[3] for one in held if one is not None) == announced:
            yield parts


@cache
def _stated(content: bytes) -> tuple[int, int, int, int]:
    """Return a file's place among the parts, their number, the tensors announced, and those that it has."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(content)
        file.flush()
        reader = GGUFReader(file.name)
        keys = ("split.no", "split.count", "split.tensors.count")
        found = [int(field.contents()) if (field := reader.get_field(key)) else 0 for key in keys]
        return found[0], found[1], found[2], len(reader.tensors)


def seen(stage: Stage) -> Files:
    """Return what lies in the folder of the output now."""
    return contents(stage.place / OUT)
