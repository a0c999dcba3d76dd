"""Editing JSON as text. The oracle is Python's json module: what it reads back, and what it would have written."""

from __future__ import annotations

import copy
import difflib
import json
import os
import pickle
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ropetool.errors import CorruptFile, PlanMismatch
from ropetool.files.hf import jsontext
from ropetool.files.hf.jsontext import ABSENT, Edit, apply_edits, parse_object, same

MISTRAL = """{
  "architectures": [
    "MistralForCausalLM"
  ],
  "attention_dropout": 0.0,
  "rms_norm_eps": 1e-05,
  "rope_scaling": {"type": "linear", "factor": 4.0},
  "rope_theta": 1e6,
  "übersetzt": "caf\\u00e9 — 东京",
  "vocab_size": 32000
}
"""


def changed_lines(before: str, after: str) -> tuple[list[str], list[str]]:
    """Return the lines that went and the lines that came."""
    diff = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    return [line[2:] for line in diff if line[:2] == "- "], [line[2:] for line in diff if line[:2] == "+ "]


# --- one edit, expected text written out


def test_a_scalar_changes_on_its_line_alone() -> None:
    after = apply_edits(MISTRAL, [Edit(("rope_theta",), 1e6, 5e5)], "c")
    assert changed_lines(MISTRAL, after) == (['  "rope_theta": 1e6,'], ['  "rope_theta": 500000.0,'])


def test_an_inner_scalar_changes_in_a_one_line_object() -> None:
    after = apply_edits(MISTRAL, [Edit(("rope_scaling", "factor"), 4.0, 8.0)], "c")
    assert after == MISTRAL.replace('"factor": 4.0', '"factor": 8.0')


def test_a_key_joins_a_one_line_object_on_its_line() -> None:
    after = apply_edits(MISTRAL, [Edit(("rope_scaling", "truncate"), ABSENT, False)], "c")
    assert after == MISTRAL.replace('"factor": 4.0}', '"factor": 4.0, "truncate": false}')


def test_a_one_line_object_is_replaced_on_its_line() -> None:
    old = {"type": "linear", "factor": 4.0}
    after = apply_edits(MISTRAL, [Edit(("rope_scaling",), old, {"rope_type": "yarn", "factor": 2.0})], "c")
    assert after == MISTRAL.replace('{"type": "linear", "factor": 4.0}', '{"rope_type": "yarn", "factor": 2.0}')


def test_an_object_takes_the_place_of_null_in_the_indentation_of_the_file() -> None:
    text = '{\n    "rope_scaling": null,\n    "x": 1\n}'
    after = apply_edits(
        text, [Edit(("rope_scaling",), None, {"rope_type": "longrope", "long_factor": [1.0, 2.5]})], "c"
    )
    assert after == (
        '{\n    "rope_scaling": {\n        "rope_type": "longrope",\n        "long_factor": [\n'
        '            1.0,\n            2.5\n        ]\n    },\n    "x": 1\n}'
    )


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (None, '{\n\t"a": 1,\n\t"b": 2,\n\t"new": "x"\n}'),
        ("a", '{\n\t"a": 1,\n\t"new": "x",\n\t"b": 2\n}'),
        ("b", '{\n\t"a": 1,\n\t"b": 2,\n\t"new": "x"\n}'),
    ],
)
def test_a_new_key_goes_last_or_behind_the_one_named(after: str | None, expected: str) -> None:
    text = '{\n\t"a": 1,\n\t"b": 2\n}'
    assert apply_edits(text, [Edit(("new",), ABSENT, "x", after)], "c") == expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("a", '{\r\n  "b": [1 , 2],\r\n  "c": null\r\n}\r\n'),
        ("b", '{\r\n  "a": 1,\r\n  "c": null\r\n}\r\n'),
        ("c", '{\r\n  "a": 1,\r\n  "b": [1 , 2]\r\n}\r\n'),
    ],
)
def test_a_removed_key_takes_its_line_and_one_comma(key: str, expected: str) -> None:
    text = '{\r\n  "a": 1,\r\n  "b": [1 , 2],\r\n  "c": null\r\n}\r\n'
    old = {"a": 1, "b": [1, 2], "c": None}[key]
    assert apply_edits(text, [Edit((key,), old, ABSENT)], "c") == expected


def test_the_only_key_leaves_an_empty_object_and_one_fills_again() -> None:
    text = '{\n  "s": {\n    "a": 1\n  }\n}'
    emptied = apply_edits(text, [Edit(("s", "a"), 1, ABSENT)], "c")
    assert emptied == '{\n  "s": {}\n}'
    assert apply_edits(emptied, [Edit(("s", "a"), ABSENT, 1)], "c") == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", '{"k": 1}'),
        ('{"a":0}', '{"a":0,"k":1}'),
        ('{ "a": 0 }', '{ "a": 0, "k": 1 }'),
        ('{"a" : 0}', '{"a" : 0, "k" : 1}'),
        ('{ "a": 0,"b": 0 }', '{ "a": 0,"b": 0,"k": 1 }'),
        ('{\n\n  "a": 0\n\n}', '{\n\n  "a": 0,\n  "k": 1\n\n}'),
        ('\ufeff{"a": 0}\n', '\ufeff{"a": 0, "k": 1}\n'),
    ],
)
def test_a_new_key_follows_the_spacing_around_it(text: str, expected: str) -> None:
    assert apply_edits(text, [Edit(("k",), ABSENT, 1)], "c") == expected


def test_edits_see_the_ones_before_them() -> None:
    edits = [Edit(("s",), ABSENT, {"a": 1}), Edit(("s", "b"), ABSENT, 2), Edit(("s", "a"), 1, ABSENT)]
    assert parse_object(apply_edits("{}", edits, "c"), "c") == {"s": {"b": 2}}


def test_an_equal_value_keeps_its_spelling_and_another_type_does_not() -> None:
    assert apply_edits('{"a": 1E3}', [Edit(("a",), 1000.0, 1000.0)], "c") == '{"a": 1E3}'
    assert apply_edits('{"a": 1}', [Edit(("a",), 1, 1.0)], "c") == '{"a": 1.0}'
    assert apply_edits('{"a": 1}', [Edit(("a",), 1, True)], "c") == '{"a": true}'


def test_new_text_is_escaped_where_the_file_is_ascii() -> None:
    assert apply_edits('{"a": 1}', [Edit(("a",), 1, "é")], "c") == '{"a": "\\u00e9"}'
    assert apply_edits('{"ü": 1}', [Edit(("ü",), 1, "é")], "c") == '{"ü": "é"}'


def test_a_lone_surrogate_stays_an_escape_and_can_be_written() -> None:
    text = '{"é": {"a": "\\ud800"}}'
    after = apply_edits(text, [Edit(("é",), {"a": "\ud800"}, {"b": "\ud800"})], "c")
    assert json.loads(after.encode("utf-8")) == {"é": {"b": "\ud800"}}


# --- a source that is not what the plan was made for


@pytest.mark.parametrize(
    ("text", "edit", "place", "message"),
    [
        ('{"a": 1}', Edit(("a",), 2, 3), "c.json: a", "is 1, but the plan was made for 2"),
        ('{"a": 1}', Edit(("a",), 1.0, 3), "c.json: a", "is 1, but the plan was made for 1.0"),
        ('{"a": 1}', Edit(("a",), True, 3), "c.json: a", "is 1, but the plan was made for true"),
        ('{"a": 1}', Edit(("a",), ABSENT, 3), "c.json: a", "is 1, but the plan was made for absent"),
        ("{}", Edit(("a",), None, 3), "c.json: a", "is absent, but the plan was made for null"),
        ("{}", Edit(("a", "b"), 1, 3), "c.json: a.b", "a is absent, but the plan was made for an object"),
        ('{"a": [1]}', Edit(("a", "b"), 1, 3), "c.json: a.b", "a is [1], but the plan was made for an object"),
        (
            '{"a": {"b": {}}}',
            Edit(("a",), {"b": []}, 3),
            "c.json: a",
            'is {"b": {}}, but the plan was made for {"b": []}',
        ),
        ("{}", Edit(("a",), ABSENT, 3, "z"), "c.json: a", "must follow 'z', which is missing"),
        ("{}", Edit((), {}, 3), "c.json", "an edit does not name a key"),
    ],
)
def test_another_value_than_the_plans_is_refused(text: str, edit: Edit, place: str, message: str) -> None:
    with pytest.raises(PlanMismatch) as refused:
        apply_edits(text, [edit], "c.json")
    assert (refused.value.where, refused.value.message) == (place, message)
    assert refused.value.try_


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(PlanMismatch) as refused:
        apply_edits(json.dumps({"a": list(range(10_000))}), [Edit(("a",), 1, 2)], "c")
    assert len(refused.value.message) < 150


def test_same_is_json_equality_by_type() -> None:
    nan = float("nan")
    assert same({"a": 1, "b": [nan]}, {"b": [nan], "a": 1})
    different = [
        (1, 1.0),
        (1, True),
        (0, False),
        (0.0, -0.0),
        ([1], [1, 1]),
        ({"a": 1}, {"a": 1, "b": 1}),
        (None, ABSENT),
    ]
    assert not any(same(left, right) for left, right in different)


def test_absent_stays_itself_through_copies() -> None:
    assert copy.deepcopy(ABSENT) is ABSENT
    assert pickle.loads(pickle.dumps(ABSENT)) is ABSENT
    assert repr(ABSENT) == "ABSENT"


# --- text that is not a JSON object


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n  "a": 1\n  "b": 2\n}', "is not valid JSON: Expecting ',' delimiter at line 3, column 3"),
        ('\ufeff{"a" 1}', "is not valid JSON: Expecting ':' delimiter at line 1, column 6"),
        ("", "is not valid JSON: Expecting value at line 1, column 1"),
        ("{} x", "is not valid JSON: Extra data at line 1, column 4"),
        ("[1]", "contains [1] instead of a JSON object"),
        ("null", "contains null instead of a JSON object"),
        ('{"a": {"b": 1, "b": 2}}', "contains the key 'b' twice in one object"),
        ('{"a": ' + "[" * 100_000, "is nested more than 100 levels deep"),
        ('{"a": ' + "[" * 100 + "]" * 100 + "}", "is nested more than 100 levels deep"),
        ('{"a": ' + '{"a":' * 150 + "1" + "}" * 151, "is nested more than 100 levels deep"),
        ('{"a": [' + "0," * 200_000 + "0]}", "contains more than 200,000 values"),
        (" " * (jsontext.SMALL.chars + 1), "has 8,388,609 characters; ropetool reads at most 8,388,608"),
    ],
    ids=lambda value: value[:30],
)
def test_what_is_no_json_object_is_refused(text: str, message: str) -> None:
    with pytest.raises(CorruptFile) as refused:
        parse_object(text, "c.json")
    assert (refused.value.where, refused.value.message) == ("c.json", message)
    with pytest.raises(CorruptFile):
        apply_edits(text, [], "c.json")


def test_a_number_that_python_will_not_convert_is_refused() -> None:
    with pytest.raises(CorruptFile, match="contains an integer with too many digits"):
        parse_object('{"a": ' + "1" * 5_000 + "}", "c.json")


def test_nesting_and_constants_within_the_limits_are_read() -> None:
    assert parse_object('{"a": ' + "[" * 99 + "]" * 99 + "}", "c")["a"]
    assert parse_object('{"a": [Infinity, -Infinity]}', "c") == {"a": [float("inf"), float("-inf")]}


def test_hostile_text_costs_little_memory() -> None:
    texts = ['{"a": [' + "[]," * 5_000_000, '{"a": ' + "[" * 10_000_000, '{"a": "' + "\\n" * 10_000_000]
    for text in texts:
        tracemalloc.start()
        with pytest.raises(CorruptFile):
            parse_object(text, "c")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 64 << 20


# --- properties

KEYS = st.one_of(st.sampled_from(["rope_theta", "a", "b.c", "é", '"', "\\", "x y", ""]), st.text(max_size=4))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.sampled_from(["}", '",\n{', "é"]),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=6)
INDENTS = st.sampled_from([2, 4, "\t", 0, None])


def objects_in(value: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    if not isinstance(value, dict):
        return []
    found = [(path, value)]
    for key, inner in value.items():
        found += objects_in(inner, (*path, key))
    return found


def draw_edit(data: st.DataObject, document: dict[str, Any]) -> Edit:
    path, holder = data.draw(st.sampled_from(objects_in(document)))
    kind = data.draw(st.sampled_from(["add", "remove", "replace"])) if holder else "add"
    if kind == "add":
        key = data.draw(KEYS.filter(lambda key: key not in holder))
        after = data.draw(st.none() | st.sampled_from(list(holder))) if holder else None
        return Edit((*path, key), ABSENT, data.draw(VALUES), after)
    key = data.draw(st.sampled_from(list(holder)))
    return Edit((*path, key), holder[key], ABSENT if kind == "remove" else data.draw(VALUES))


def edited(document: dict[str, Any], edit: Edit) -> dict[str, Any]:
    """The oracle: the edit made on the parsed document, order of keys included."""
    document = copy.deepcopy(document)
    holder = document
    for key in edit.path[:-1]:
        holder = holder[key]
    key, items = edit.path[-1], list(holder.items())
    if edit.old is ABSENT:
        position = len(items) if edit.after is None else list(holder).index(edit.after) + 1
        items.insert(position, (key, edit.new))
    else:
        items = [(k, edit.new if k == key else v) for k, v in items if k != key or edit.new is not ABSENT]
    holder.clear()
    holder.update(items)
    return document


def ordered(text: str) -> Any:
    return json.loads(text.removeprefix("\ufeff"), object_pairs_hook=lambda pairs: ("object", repr(pairs)))


@settings(max_examples=250, deadline=None, derandomize=True)
@given(
    data=st.data(), document=DOCUMENTS, indent=INDENTS, ascii_only=st.booleans(), crlf=st.booleans(), bom=st.booleans()
)
def test_the_edited_text_is_the_text_of_the_edited_document(
    data: st.DataObject, document: dict[str, Any], indent: int | str | None, ascii_only: bool, crlf: bool, bom: bool
) -> None:
    """json.dumps of the edited document is the oracle for every character."""
    if not ascii_only:
        document["ключ"] = "значение"  # else the text does not show that it is not meant to be ASCII
    assume(document)  # an empty file shows no indentation

    def write(value: Mapping[str, Any]) -> str:
        text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
        return ("\ufeff" if bom else "") + (text.replace("\n", "\r\n") if crlf else text)

    text = write(document)
    for _ in range(3):
        edit = draw_edit(data, document)
        after = edited(document, edit)
        assume(after and (ascii_only or "ключ" in after))
        text = apply_edits(text, [edit], "c")
        document = after
        assert text == write(document)


@st.composite
def odd_text(draw: st.DrawFn, value: Any) -> str:
    """Return JSON with spaces anywhere, as no writer would set them."""

    def space() -> str:
        return draw(st.sampled_from(["", " ", "\n", "\r\n  ", "\t", "\n\n "]))

    def write(value: Any) -> str:
        if isinstance(value, dict):
            inner = ",".join(
                f"{space()}{json.dumps(k)}{space()}:{space()}{write(v)}{space()}" for k, v in value.items()
            )
            return "{" + (inner or space()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(f"{space()}{write(v)}{space()}" for v in value) + "]"
        return json.dumps(value, ensure_ascii=draw(st.booleans()))

    return space() + write(value) + space()


@settings(max_examples=250, deadline=None, derandomize=True)
@given(data=st.data(), document=DOCUMENTS)
def test_any_spacing_reads_back_as_the_edited_document(data: st.DataObject, document: dict[str, Any]) -> None:
    text = data.draw(odd_text(document))
    edits = []
    for _ in range(data.draw(st.integers(1, 4))):
        edit = draw_edit(data, document)
        document = edited(document, edit)
        edits.append(edit)
    assert ordered(apply_edits(text, edits, "c")) == ordered(json.dumps(document))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data(), document=DOCUMENTS)
def test_an_added_key_that_is_removed_again_leaves_no_trace(data: st.DataObject, document: dict[str, Any]) -> None:
    text = data.draw(odd_text(document))
    path, holder = data.draw(st.sampled_from(objects_in(document)))
    assume(holder)  # an empty object may hold spaces, which nothing brings back
    key = data.draw(KEYS.filter(lambda key: key not in holder))
    value = data.draw(VALUES)
    after = data.draw(st.none() | st.sampled_from(list(holder)))
    added = apply_edits(text, [Edit((*path, key), ABSENT, value, after)], "c")
    assert added != text
    assert apply_edits(added, [Edit((*path, key), value, ABSENT)], "c") == text


# --- files of real models, where they are at hand

REAL = [
    path.read_bytes().decode("utf-8")
    for path in sorted(Path(os.environ.get("ROPETOOL_REAL_FILES", "/nowhere"), "configs").glob("*.json"))
]


@pytest.mark.parametrize("text", [MISTRAL, *REAL], ids=lambda text: str(len(text)))
def test_in_a_real_config_every_number_can_change_on_its_line_alone(text: str) -> None:
    config = parse_object(text, "c")
    one_line = "\n" not in text.strip()
    numbers = [(p, k, v) for p, holder in objects_in(config) for k, v in holder.items() if type(v) in (int, float)]
    assert numbers
    for path, key, value in numbers:
        after = apply_edits(text, [Edit((*path, key), value, value + 7)], "c")
        gone, come = changed_lines(text, after)
        assert (len(gone), len(come)) == (1, 1)
        assert one_line or gone[0].split(":")[0] == come[0].split(":")[0]
        assert apply_edits(after, [Edit((*path, key), value + 7, value)], "c").count(key) == text.count(key)


@pytest.mark.parametrize("text", [MISTRAL, *REAL], ids=lambda text: str(len(text)))
def test_in_a_real_config_a_new_object_is_only_added_lines(text: str) -> None:
    after = apply_edits(text, [Edit(("rope_new",), ABSENT, {"rope_type": "yarn", "factor": 4.0})], "c")
    same_front = next(i for i, pair in enumerate(zip(text, after, strict=False)) if len(set(pair)) == 2)
    added = len(after) - len(text)
    assert after[:same_front] + after[same_front + added :] == text
    assert after[same_front : same_front + added].count("\n") == (4 if "\n" in text.strip() else 0)
    assert json.loads(after)["rope_new"] == {"rope_type": "yarn", "factor": 4.0}
