#!/usr/bin/env python3
"""Answer the kit with llama.cpp, each checkpoint converted by llama.cpp's own convert_hf_to_gguf.py:

    python drivers/run_llama_cpp_converter.py KIT OUT.json --converter llama.cpp/convert_hf_to_gguf.py

The converter knows tokenizers by a hash of what they make of a text, and by family; the kit's is the same byte-level one for all
families, so the converter is told that it is one, split as llama-bpe, and transformers adds no tokens of the family to it.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import answering
import run_llama_cpp

# Families whose converter asks for layers of multi-token prediction, which the kit leaves out.
WITHOUT_MTP = ("qwen3_5_text",)
PROGRAM = """
import runpy, sys
del sys.argv[0]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
import conversion, transformers
from conversion import base
transformers.AutoTokenizer.from_pretrained = transformers.PreTrainedTokenizerFast.from_pretrained
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "llama-bpe"
found = conversion.get_model_class
def get_model_class(*arguments, **options):
    model = found(*arguments, **options)
    model.set_vocab = base.TextModel._set_vocab_gpt2
    return model
conversion.get_model_class = get_model_class
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def answer(job, arguments):
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "model.gguf"
        # The name is not the folder's: llama.cpp takes a model that is called phi3 for one with Phi-3's tokens.
        options = ["--outtype", job["quantised"] or "f32", "--model-name", "conformance", "--outfile", str(target)]
        if json.loads((Path(job["path"]) / "config.json").read_text(encoding="utf-8"))["model_type"] in WITHOUT_MTP:
            options.append("--no-mtp")
        command = [arguments.converter_python, "-c", PROGRAM, str(arguments.converter.resolve()), job["path"], *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            last = (done.stdout.strip().splitlines() or ["without a message"])[-1]
            if last.endswith("is not supported"):
                raise answering.Unsupported(last)
            raise ValueError(f"the converter stops: {last}")
        return run_llama_cpp.answer({**job, "path": str(target)}, arguments)


PYTHON = ("--converter-python", {"default": sys.executable, "help": "the Python that runs it; default this one"})
CONVERTER = (
    "--converter",
    {"type": Path, "required": True, "metavar": "convert_hf_to_gguf.py", "help": "llama.cpp's own"},
)

if __name__ == "__main__":
    options = [run_llama_cpp.GPU_LAYERS, CONVERTER, PYTHON]
    answering.main("llama.cpp's converter", "hf", run_llama_cpp.prepare, answer, options, quantises=True)
