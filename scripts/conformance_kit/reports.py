"""Reports for the maintainers of engines: one for each known fault, built from faults.json, the recorded scores and a kit.

Each has a title, a reproduction of at most ten lines, the expected and the actual value, and the line at fault.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from conformance_kit import page, record
from conformance_kit.goldens import RIGHT

LINES = 10  # of a reproduction, at most
LIKELY = 5  # next tokens that every engine returns
# By engine: the repository that takes the report. A release that is kept only for comparison has none.
UPSTREAM = {
    "transformers float32": "huggingface/transformers", "vllm float32": "vllm-project/vllm", "mlx-lm float32": "ml-explore/mlx-lm",
    "llama.cpp float32": "ggml-org/llama.cpp", "llama.cpp-converter float32": "ggml-org/llama.cpp",
}  # fmt: skip
# By engine: a program that prints the log probability of one token, in the folder of a kit. The high-level class of
# llama-cpp-python overrides rope keys, so llama.cpp is run by the driver.
PROGRAMS = {
    "transformers float32": """
import json, torch
from transformers import AutoModelForCausalLM

ids = json.load(open("golden/{case}.json"))["ids"][:{length}]
model = AutoModelForCausalLM.from_pretrained("hf/{case}", dtype=torch.float32)
with torch.no_grad():
    logits = model(torch.tensor([ids])).logits[0, -1]
print(torch.log_softmax(logits, -1)[{token}])
""",
    "vllm float32": """
import json
from vllm import LLM, SamplingParams

ids = json.load(open("golden/{case}.json"))["ids"][:{length}]
model = LLM("hf/{case}", dtype="float32", enforce_eager=True, max_model_len={context}, skip_tokenizer_init=True)
asked = SamplingParams(max_tokens=1, temperature=0, logprobs=20, detokenize=False)
print(model.generate([{{"prompt_token_ids": ids}}], asked)[0].outputs[0].logprobs[0][{token}])
""",
    "mlx-lm float32": """
import json, pathlib, mlx.core as mx, mlx.nn as nn
from mlx_lm.utils import load_model

ids = json.load(open("golden/{case}.json"))["ids"][:{length}]
model, _ = load_model(pathlib.Path("hf/{case}"), lazy=True)
model.set_dtype(mx.float32)
print(nn.log_softmax(model(mx.array([ids]))[0, -1])[{token}])
""",
    "llama.cpp float32": """
# python drivers/run_llama_cpp.py . answers.json {case}
import json

given = json.load(open("answers.json"))["answers"]["{case}"]
print(given["prompts"][{prompt}]["next"]["{token}"] if "prompts" in given else given["error"])
""",
    "llama.cpp-converter float32": """
# python drivers/run_llama_cpp_converter.py . answers.json {case} --converter llama.cpp/convert_hf_to_gguf.py
import json

given = json.load(open("answers.json"))["answers"]["{case}"]
print(given["prompts"][{prompt}]["next"]["{token}"] if "prompts" in given else given["error"])
""",
}


class Place(NamedTuple):
    """The compared number at which a right and a wrong table differ most.

    prompt, length: its index and its tokens. token: the next token. right, wrong: log probabilities in nats; wrong is None
    if no table of the kit fits.
    """

    prompt: int
    length: int
    token: int
    right: float
    wrong: float | None


def write(kit: Path, out: Path) -> list[Path]:
    """Write the reports into a new folder; return their paths.

    Raises: FileExistsError if the folder exists.
    """
    out.mkdir(parents=True)
    paths = []
    for number, (fault, text) in enumerate(reports(kit), 1):
        name = f"{number:02}-{fault['engine'].split()[0]}-{fault['cases'][0]}.md"
        (out / name).write_text(text, encoding="utf-8")
        paths.append(out / name)
    return paths


def reports(kit: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each fault of a recorded engine that has an upstream, with the text of its report."""
    engines = record.known()["engines"]
    for fault in page.faults():
        if fault["engine"] in UPSTREAM and fault["engine"] in engines and not fault.get("by_design"):
            yield fault, report(fault, engines[fault["engine"]], kit)


def report(fault: Mapping[str, Any], scored: Mapping[str, Any], kit: Path) -> str:
    case = fault["cases"][0]
    golden = json.loads((kit / "golden" / f"{case}.json").read_text(encoding="utf-8"))
    measured = scored["cases"][case]
    place = furthest(golden, measured.get("nearest"))
    fields = {
        "case": case,
        "length": place.length,
        "context": golden["context"],
        "token": place.token,
        "prompt": place.prompt,
    }
    program = PROGRAMS[fault["engine"]].strip().format(**fields)
    named = ", ".join(f"{name} {version}" for name, version in scored["versions"].items())
    versions = f" ({named})" if named else ""
    also = f"\n\nThe same line is at fault in {_listed(fault['cases'][1:])}." if fault["cases"][1:] else ""
    where = f"`{fault['file']}:{fault['line']}`"
    size = _size(kit, fault["engine"], case)
    return f"""# {fault["title"]}

Repository: {UPSTREAM[fault["engine"]]}. Version: {scored["engine"]} {scored["release"]}{versions}, on a CPU, in float32.

{where} {fault["does"]}:

```
{fault["code"]}
```{also}

## Reproduction

The checkpoint has {_keys(kit / "hf" / case / "config.json")}, random weights, and {size}.
The attached folder has it, the token ids of the prompt, and the drivers: `scripts/conformance make kit --case {case}`.

```python
{program}
```

## Expected

{_expected(place, case)}

## Actual

{_actual(place, measured)}

Case `{case}` of the ropetool conformance kit, version {scored["kit"]}, shows the difference.
"""


def furthest(golden: Mapping[str, Any], nearest: str | None) -> Place:
    """Return the next token whose probability differs most between two tables, of those that an engine returns.

    If no wrong table fits, return a likely one after the longest prompt.
    """
    by_name = {table["name"]: table["next"] for table in golden["tables"]}
    right = by_name[RIGHT]
    wrong = by_name[nearest] if nearest not in (None, RIGHT) else None
    if wrong is None:
        at = len(right) - 1
        i = sorted(range(len(right[at])), key=lambda i: -right[at][i])[min(LIKELY, len(right[at])) - 1]
    else:
        places = [
            (at, i)
            for at, values in enumerate(wrong)
            for i in sorted(range(len(values)), key=lambda i: -values[i])[:LIKELY]
        ]
        at, i = max(places, key=lambda place: abs(_probability(right, place) - _probability(wrong, place)))
    prompt = golden["prompts"][at]
    return Place(at, prompt["length"], prompt["tokens"][i], right[at][i], None if wrong is None else wrong[at][i])


def _probability(values: Sequence[Sequence[float]], place: tuple[int, int]) -> float:
    return math.exp(values[place[0]][place[1]])


def _expected(place: Place, case: str) -> str:
    return (
        f"{place.right:.4f}, the log probability of token {place.token} after {place.length} tokens. transformers computes it "
        f"in float64; `golden/{case}.json` has {place.right:.6f}."
    )


def _actual(place: Place, measured: Mapping[str, Any]) -> str:
    if measured["level"] == 0:
        return f"No valid answer: `{measured['said']}`"
    if place.wrong is None:
        return f"No such value: the answers are off by up to {measured['largest']} nats, and by {measured['mean']} on average."
    return (
        f'{place.wrong:.4f}. This is the value of the mistake "{measured["nearest"]}", which fits the compared numbers best. '
        f"The answers are off by up to {measured['largest']} nats, and by {measured['mean']} on average."
    )


def _keys(path: Path) -> str:
    """Return the model type and the rope keys of a config, as text."""
    config = json.loads(path.read_text(encoding="utf-8"))
    rope = {
        key: value for key, value in config.items() if re.search("rope|rotary|max_position", key) and value is not None
    }
    shown = json.dumps(rope)
    return f"`model_type` {config['model_type']} and `{shown if len(shown) < 400 else shown[:400] + ' ...'}`"


def _size(kit: Path, engine: str, case: str) -> str:
    path = kit / "gguf" / f"{case}.gguf" if engine == "llama.cpp float32" else kit / "hf" / case / "model.safetensors"
    return f"{path.stat().st_size / 1000:.0f} kB"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
