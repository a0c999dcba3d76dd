"""The JSON editor, held against the same edit of the parsed data."""

from __future__ import annotations

import json
import random
from typing import Any

from torture import mutating


def texts() -> list[bytes]:
    """Return objects in the styles in which people write them."""
    data = {"a": 1, "b": {"c": [1, {"d": 2}], "e": "é\u2028"}, "f": [], "g": {}, "h": None, "i": -1.5e10}
    lines = json.dumps(data, indent=2, ensure_ascii=False)
    styles = [
        json.dumps(data),
        json.dumps(data, separators=(",", ":")),
        lines,
        lines.replace("\n", "\r\n"),
        "\ufeff" + lines,
    ]
    styles += [
        json.dumps(data, indent="\t"),
        '{ "a" :1,\n\n "b":{"c": 2} , "d": "\\u00e9" }\n',
        "{}",
        '{"a":{}}',
        "{\n}",
    ]
    return [style.encode() for style in styles]


def edit(data: bytes, rng: random.Random) -> None:
    """Edit a member of an object, or add one, and hold the text against the same edit of the parsed data.

    Half of the texts are good ones, made here: mutated ones are mostly refused.
    """
    from ropetool.errors import CorruptFile
    from ropetool.files.hf.jsontext import ABSENT, Edit, apply_edits, parse_object

    if rng.random() < 0.7:
        data = _good_text(rng).encode("utf-8", "surrogatepass")
    text = data.decode("utf-8", "replace")
    try:
        parsed = parse_object(text, "here")
    except CorruptFile:
        return
    spans = mutating.spans.__wrapped__(text)
    objects = [span.path for span in spans if isinstance(_followed(parsed, span.path), dict) and _keys_only(span.path)]
    holder = rng.choice(objects)
    inside = _followed(parsed, holder)
    key = rng.choice([*inside, "new", "é"])
    old = inside.get(key, ABSENT)
    new = rng.choice([ABSENT, *[mutating.random_value(rng)] * 3]) if old is not ABSENT else mutating.random_value(rng)
    edited = apply_edits(text, [Edit((*holder, key), old, new)], "here")
    if new is ABSENT:
        del inside[key]
    else:
        inside[key] = new
    found = json.loads(edited.removeprefix("\ufeff"))
    assert _canonical(found) == _canonical(parsed), f"{text!r} became {edited!r}"
    if old is not ABSENT and new is not ABSENT:
        span = next(span for span in spans if span.path == (*holder, key))
        assert edited.startswith(text[: span.begin]), "the text before has changed"
        assert edited.endswith(text[span.end :]), "the text behind has changed"
    else:
        assert edited.startswith("\ufeff") == text.startswith("\ufeff"), "the byte order mark has changed"


def _good_text(rng: random.Random) -> str:
    data = {f"k{number}": mutating.random_value(rng) for number in range(rng.randrange(5))}
    indent = rng.choice((None, None, 0, 1, 2, 4, "\t"))
    text = json.dumps(
        data, indent=indent, ensure_ascii=rng.random() < 0.5, separators=rng.choice((None, (",", ":"), (" , ", " : ")))
    )
    if rng.random() < 0.2:
        text = text.replace("\n", "\r\n")
    return rng.choice(("", "", "", "\ufeff", " \n")) + text + rng.choice(("", "\n", " "))


def _keys_only(path: tuple[str | int, ...]) -> bool:
    return all(isinstance(part, str) for part in path)


def _followed(data: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        data = data[part]
    return data


def _canonical(data: Any) -> str:
    return json.dumps(data, sort_keys=True)
