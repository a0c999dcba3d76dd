"""Model cards and importance matrices made to keep a reader busy: the time grows with their length, no faster."""

from __future__ import annotations

from pathlib import Path

import models
import numpy as np
import pytest
from running import bounded

from ropetool.files.gguf import Value, ValueType
from ropetool.files.gguf.entries import TensorInfo
from ropetool.files.gguf.writer import encode_head, encode_info

N = 3_900_000  # characters; a card has four million bytes at most
BLANKS, TABS = " " * N, "\t" * N
CARDS = {
    "blanks behind tags": f"---\ntags:{BLANKS}x\n---\n",
    "blanks behind tags and nothing else": f"---\ntags:{BLANKS}\n---\n",
    "blanks around null": f"---\ntags:{BLANKS[: N // 2]}null{BLANKS[: N // 2]}x\n---\n",
    "blanks before the colon": f"---\ntags{BLANKS}x\n---\n",
    "blanks before a remark": f"---\ntags:{TABS}#{'#' * 9}\n---\n",
    "blanks in a list": f"---\ntags:\n{BLANKS}- {BLANKS[:9]}\n---\n",
    "blanks behind a dash": f"---\ntags:\n-{BLANKS}\n---\n",
    "blanks instead of a list": f"---\ntags:\n{BLANKS}\n---\n",
    "an open list": f"---\ntags: [{BLANKS}\n---\n",
    "commas": f"---\ntags: [{',' * N}]\n---\n",
    "many keys": "---\n" + "tags :\n" * (N // 7) + "---\n",
    "many dashes": "---\n" + "---\t\tx\n" * (N // 7),
    "no end": "---\n" + "- a\n" * (N // 4),
    "line ends": "---\n" + "\n" * N + "---\n",
    "carriage returns": "---\ntags:" + "\r" * N + "x\n---\n",
    "blanks before the front": BLANKS + "--\n",
    "steps": "<!-- ropetool -->" + "1" * N + "<!-- /ropetool -->",
    "fences": "<!-- ropetool -->" + "`" * N + "<!-- /ropetool -->",
    "starts": "<!-- ropetool -->" * (N // 17),
    "ends": "<!-- ropetool -->" + "<!-- /ropetool -->" * (N // 18),
}
WITH_STEP = (
    "import pathlib; from ropetool.plans import model_card as p; card = p.read_card(pathlib.Path(sys.argv[1])); "
    "card = p.with_step(card, 'a step', '', [], base_model='a/b', long=True); p.with_verification(card, None)"
)


@pytest.mark.parametrize("case", CARDS)
def test_a_long_card_is_read_in_linear_time(case: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(CARDS[case], newline="")
    assert bounded(tmp_path / "README.md", program=WITH_STEP) == (0, "")


def test_an_export_of_a_long_card(tmp_path: Path) -> None:
    model = models.checkpoint(tmp_path / "model")
    (model / "README.md").write_text(f"---\ntags:{' ' * 60_000}\nlicense: mit\n---\n# A model\n")
    assert bounded("export", model, "--no-check", "-o", tmp_path / "out.gguf")[0] == 0
    assert "\n- ropetool\n" in (tmp_path / "out.gguf.README.md").read_text()


def test_an_importance_matrix_of_many_tensors_is_read_in_linear_time(tmp_path: Path) -> None:
    """As many as a GGUF file may have: 32,767 with their counts. Work that grows with their square would take minutes."""
    infos, data = [], bytearray()
    for number in range(2**15 - 1):
        for part in (".in_sum2", ".counts"):
            infos.append(TensorInfo(f"blk.{number}.x.weight{part}", (1,), 0, len(data), 4))
            data += np.float32(2 + number % 7).tobytes() + bytes(28)
    keys = {"general.type": Value.of(ValueType.STR, "imatrix")}
    head = b"".join(encode_head(keys, tensors=len(infos))) + b"".join(map(encode_info, infos))
    path = tmp_path / "imatrix.gguf"
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    read = (
        "import pathlib; from ropetool.gguf_export.imatrix import read_imatrix as read; "
        "found = read(pathlib.Path(sys.argv[1])); assert len(found) == 32767 and set(map(float, map(sum, found.values()))) == {1.0}"
    )
    assert bounded(path, program=read, seconds=10) == (0, "")


PAIRED = (
    "from ropetool.comparison.pairing import _by_number, _expert; "
    "names = ['layers.1.' * 113 + 'x' * 7, 'layers.1' + '.a' * 500 + '.experts', 'layers.' * 140, 'layers.' + '9' * 1000]; "
    "[(_expert(name), _by_number(name)) for name in names for _ in range(1000)]"
)


def test_names_of_tensors_are_taken_apart_in_linear_time() -> None:
    """Four thousand names as long as a header may have, as in four megabytes of it."""
    assert bounded(program=PAIRED) == (0, "")
