"""Token ids of the tokenizers library and of llama.cpp, for each pre-tokenizer that models publish and for real ones.

ROPETOOL_REAL_FILES names a folder with tokenizers of published models.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tokenizer_making as making
from settled import Comparison
from token_strings import compared, letters, strings

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("llama_cpp")

from ropetool.errors import LossyExport  # noqa: E402
from ropetool.files.gguf import Value, ValueType  # noqa: E402
from ropetool.gguf_export import token_check  # noqa: E402
from ropetool.gguf_model.tokenizer import tokenizer_values  # noqa: E402
from ropetool.gguf_model.tokenizer.pretokenizer import recognise  # noqa: E402
from ropetool.gguf_model.tokenizer.pretokenizer_names import NAMES  # noqa: E402
from ropetool.verification.results import PASS  # noqa: E402

REAL = Path(os.environ.get("ROPETOOL_REAL_FILES", "nowhere"), "tokenizers")
REAL_NAMES = sorted(path.name for path in REAL.glob("*/")) if REAL.is_dir() else []
PRE = "tokenizer.ggml.pre"

# Where digits are not merged, as in qwen2's vocabularies, splitting by one or by three makes no difference.
MISTAKEN = {
    "llama-bpe": ("qwen2", "gpt-2", "qwen35"), "smaug-bpe": ("qwen2", "gpt-2"), "qwen2": ("gpt-2", "qwen35"),
    "qwen35": ("gpt-2", "qwen2"), "gpt-2": ("qwen2", "smollm"), "smollm": ("qwen2",),
    "granite-embed-multi-97m": ("gpt-4o", "tekken"), "tekken": ("granite-embed-multi-97m", "llama-bpe"),
    "deepseek-llm": ("deepseek-coder", "gpt-2"), "deepseek-coder": ("deepseek-llm", "gpt-2"),
    "deepseek-v3": ("llama-bpe", "deepseek-llm"),
}  # fmt: skip


def marked(text: str) -> bool:
    return any(unicodedata.category(letter).startswith("M") for letter in text)


def cased(text: str) -> bool:
    """Return whether a small letter beyond ASCII has a large one behind it, marks between them aside."""
    bare = [letter for letter in text if not unicodedata.category(letter).startswith("M")]
    kinds = [(unicodedata.category(letter), letter > "\x7f") for letter in bare]
    return any(a == "Ll" and b in ("Lu", "Lt") and (far or near) for (a, far), (b, near) in itertools.pairwise(kinds))


def spaced(text: str) -> bool:
    return any(letter.isspace() and letter > "\x7f" for letter in text)


# What llama.cpp does otherwise under the best name it has, and the texts that may show it.
# gpt-4o, tekken: src/unicode.cpp, k_ucat_enum makes letters of \p{Lu} and \p{Ll} both, so the expressions in
# src/llama-vocab.cpp tell case by [^a-z] and [^A-Z]; tekken's leaves \p{M} out.
# deepseek: unicode_regex_split reads every space beyond ASCII as a vertical tab, which is in no range of letters.
DIFFERENCES: dict[str, Callable[[str], bool]] = {
    "gpt-4o": cased,
    "tekken": lambda text: marked(text) or cased(text),
    "deepseek-llm": spaced,
    "deepseek-coder": spaced,
}
# Split by std::regex, which takes a hundred times as long as what llama.cpp has written out.
SLOW = ("gpt-4o", "tekken", "deepseek-v3", "deepseek-llm", "deepseek-coder")
# One published structure for each name of llama.cpp's; those that share it differ in nothing but spelling.
FIRST: dict[str, str] = {}
for published, (_, _, ours) in making.PUBLISHED.items():
    FIRST.setdefault(ours, published)


@dataclass(frozen=True)
class Case:
    """A tokenizer, the keys and notes of its export, and llama.cpp's way with them."""

    name: str
    tokenizer: Any
    values: dict[str, Value]
    notes: tuple[str, ...]
    llama: making.Tokenise
    folder: Path

    def ids(self, text: str) -> list[int]:
        found: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return found

    def comparison(self, strings: str) -> Comparison:
        return compared(f"{strings} of {self.name}", self.folder / "tokenizer.json", self.values)

    @property
    def special(self) -> list[str]:
        return [token.content for token in self.tokenizer.get_added_tokens_decoder().values()]


@pytest.fixture(scope="module", params=[*FIRST.values(), *(f"real {name}" for name in REAL_NAMES)])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    name, folder = request.param, tmp_path_factory.mktemp("tokens")
    if name.startswith("real "):
        for file in (REAL / name.removeprefix("real ")).iterdir():
            shutil.copyfile(file, folder / file.name)
    else:
        steps, ignore_merges, _ = making.PUBLISHED[name]
        making.byte_level_tokenizer(steps, ignore_merges).save(str(folder / "tokenizer.json"))
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    values, notes = tokenizer_values(folder, {}, tokenizer.get_vocab_size() + 5)
    with making.llama(values, folder / "x.gguf") as llama:
        yield Case(name, tokenizer, values, notes, llama, folder)


def test_every_name_is_reached() -> None:
    assert {ours for _, _, ours in making.PUBLISHED.values()} == set(NAMES.values())


@pytest.mark.parametrize("name", making.PUBLISHED)
def test_the_structure_gives_the_name(name: str) -> None:
    steps, ignore_merges, ours = making.PUBLISHED[name]
    data = {
        "model": {"vocab": {"a": 0}, "merges": [], "ignore_merges": ignore_merges},
        "pre_tokenizer": sequence(steps),
    }
    assert recognise(data, "here")[0] == ours


def sequence(steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": steps}


def test_the_case_has_its_name(case: Case) -> None:
    wanted = making.PUBLISHED[case.name][2] if case.name in making.PUBLISHED else case.name.removeprefix("real ")
    assert case.values[PRE].decode() == wanted
    assert bool(case.notes) == (case.name in DIFFERENCES)


def test_ten_thousand_strings_give_the_same_tokens(case: Case) -> None:
    made = case.comparison("strings")
    texts = list(strings(500 if made.settled else 10_000, case.special))
    wrong = [text for text in texts if case.ids(text) != case.llama(text)]
    if case.name not in DIFFERENCES:
        assert wrong == []
    assert [text for text in wrong if not DIFFERENCES[case.name](text)] == []
    # A difference that is no more has to leave the table.
    assert made.settled or bool(wrong) == (case.name in DIFFERENCES)
    assert any(token in text for text in texts for token in case.special)
    made.passed()


def test_every_letter_gives_the_same_tokens(case: Case) -> None:
    made = case.comparison("letters")
    known = letters()[:: (60 if case.name in SLOW else 3) * (20 if made.settled else 1)]  # they come in runs of a kind
    around = [f"a{x}b {x}1 {x}{x}  {x}\n'{x}" for x in known]
    wrong = [text for text in around if case.ids(text) != case.llama(text)]
    assert [text for text in wrong if not DIFFERENCES.get(case.name, lambda text: False)(text)] == []
    made.passed()


def test_the_wrong_name_would_be_seen(case: Case, tmp_path: Path) -> None:
    for other in MISTAKEN[str(case.values[PRE].decode())]:
        changed = {**case.values, PRE: Value.of(ValueType.STR, other)}
        with making.llama(changed, tmp_path / f"{other}.gguf") as llama:
            texts = strings(3000, case.special)  # a few tell, but where merges seldom cross the words
            expected = DIFFERENCES.get(case.name, lambda text: False)
            assert any(case.ids(text) != llama(text) for text in texts if not expected(text))


def test_the_check_at_export(case: Case) -> None:
    assert token_check.check_tokens(case.folder, case.values, case.notes).verdict == PASS
    other = "smollm" if case.values[PRE].decode() == "gpt-2" else "gpt-2"
    with pytest.raises(LossyExport, match="texts get different tokens"):
        token_check.check_tokens(case.folder, {**case.values, PRE: Value.of(ValueType.STR, other)}, ())


def test_the_check_sees_an_added_token_that_gets_another_id(tmp_path: Path) -> None:
    steps, ignore_merges, _ = making.PUBLISHED["gpt-2"]
    data = json.loads(making.byte_level_tokenizer(steps, ignore_merges).to_str())
    data["added_tokens"][-1]["id"] += 1  # the library counts on from the last token, whatever the file says
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    values, notes = tokenizer_values(tmp_path, {}, 3100)
    with pytest.raises(LossyExport, match="for example '<tool_call>'"):
        token_check.check_tokens(tmp_path, values, notes)


def test_the_check_composes_text_for_llama_cpp_if_the_tokenizer_does(tmp_path: Path) -> None:
    """As `import` checks a Qwen 2 file, without notes: an accent of its own is composed for both, all else is compared."""
    steps, ignore_merges, _ = making.PUBLISHED["qwen2"]
    making.byte_level_tokenizer(steps, ignore_merges).save(str(tmp_path / "tokenizer.json"))
    values, _ = tokenizer_values(tmp_path, {}, 3100)
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    data["normalizer"] = {"type": "NFC"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with making.llama(values, tmp_path / "vocabulary.gguf") as llama:
        encode = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode
        assert encode("e\u0301\u0323", add_special_tokens=False).ids != llama("e\u0301\u0323")
    assert token_check.check_tokens(tmp_path, values, ()).detail.endswith("llama.cpp, composed before")
    with pytest.raises(LossyExport, match="texts get different tokens"):
        token_check.check_tokens(tmp_path, {**values, PRE: Value.of(ValueType.STR, "gpt-2")}, ())
    with pytest.raises(LossyExport, match="texts get different tokens"):  # an export does not say so
        token_check.check_tokens(tmp_path, values, (), compose=False)


def test_without_the_packages_nothing_is_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "there is no tokenizer.json" in token_check.check_tokens(tmp_path, {}, ()).detail
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "llama_cpp and tokenizers are not installed" in token_check.check_tokens(tmp_path, {}, ()).detail


def test_unknown_expressions_are_shown(tmp_path: Path) -> None:
    making.byte_level_tokenizer([making.split(r"\w+|\W"), making.BYTES], False).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(LossyExport, match=r"splits text by \\w\+\|\\W; known: llama-bpe"):
        tokenizer_values(tmp_path, {}, 4000)
