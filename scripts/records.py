"""The measured records of the repository: what each is made from, and how it is made again.

A record is stale if the meaning of an input has changed since the record was made. In Python files, comments, docstrings,
imports and the names of local variables mean nothing. scripts/records.json has the inputs of each record as they were.
scripts/record lists and remakes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from code_meaning import meant

ROOT = Path(__file__).resolve().parents[1]
STAMPS = ROOT / "scripts" / "records.json"
NOT_INSTALLED = "not installed"
Stamp = Mapping[str, Mapping[str, str]]  # "inputs": digest by path; "versions": release by package


@dataclass(frozen=True)
class Record:
    """A measured record.

    name: of the record, for scripts/record.
    inputs: globs of the files that decide its figures.
    command: the script below scripts/ that makes it, with its arguments.
    minutes: of one core.
    outputs: the files that the command writes.
    page: the page of docs/ that shows the figures, empty if none does.
    versions: packages whose release decides the figures too.
    needs: what has to be installed or given beforehand, empty if nothing.
    """

    name: str
    inputs: tuple[str, ...]
    command: tuple[str, ...]
    minutes: int
    outputs: tuple[str, ...]
    page: str = ""
    versions: tuple[str, ...] = ()
    needs: str = ""

    def inputs_now(self) -> dict[str, str]:
        """Return a digest of each input by its path, with the script itself."""
        patterns = (f"scripts/{self.command[0]}", *self.inputs)
        paths = sorted({path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()})
        return {
            path.relative_to(ROOT).as_posix(): hashlib.sha256(meant(path)).hexdigest()[:16]
            for path in paths
            if "__pycache__" not in path.parts
        }

    def stamp(self) -> Stamp:
        """Return what the record is made from now."""
        return {"inputs": self.inputs_now(), "versions": {name: _release(name) for name in self.versions}}

    def reasons(self, stamp: Stamp | None) -> list[str]:
        """Return why the record is stale, a phrase for each cause; empty if it is current. stamp: as it was made."""
        if stamp is None:
            return ["it has no stamp"]
        return [
            *_differences(stamp["inputs"], self.inputs_now()),
            *(
                f"{name} {release}, made with {stamp['versions'].get(name, 'none')}"
                for name in self.versions
                if (release := _release(name)) not in (stamp["versions"].get(name), NOT_INSTALLED)
            ),
        ]


def _release(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def _differences(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for path in sorted(before.keys() | now.keys()):
        if before.get(path) != now.get(path):
            word = "new" if path not in before else "gone" if path not in now else "changed"
            yield f"{word}: {path}"


def stamps() -> dict[str, Any]:
    """Return the committed stamps by the name of the record."""
    found: dict[str, Any] = json.loads(STAMPS.read_text(encoding="utf-8")) if STAMPS.exists() else {}
    return found


def write_stamp(record: Record, stamp: Stamp) -> None:
    """Write what a record was made from."""
    content = {**stamps(), record.name: stamp}
    STAMPS.write_text(json.dumps(dict(sorted(content.items())), indent=1) + "\n", encoding="utf-8")


def is_current(name: str) -> bool:
    """Return whether a record was made from the inputs of now."""
    return not BY_NAME[name].reasons(stamps().get(name))


# --- the table

DEMO = "ropetool/demo/model/*"
TORCH = ("ropetool/verification/runners/torch_*.py", "ropetool/verification/scoring.py")
LLAMA = ("ropetool/verification/runners/llama_*.py",)
FAMILIES = (
    "ropetool/weights/*.py",
    "ropetool/families/*.py",
    "ropetool/families/*.json",
    "ropetool/families/generated/*.json",
    "tests/configs.py",
)
STATISTICS = ("ropetool/verification/statistics.py", "ropetool/verification/measures/segments.py")
LLAMA_SOURCES = "the sources of llama.cpp below ROPETOOL_LLAMA_SOURCES, as in llama-cpp-python's source archive"
PEERS = "ROPETOOL_PEERS, a folder with the sources of the engines"
REAL = "ROPETOOL_REAL_FILES, a folder with published configs, and the converter of llama.cpp (use_converter of scripts/lib.sh)"
ASKING = ("scripts/engine_files/recording.py", "scripts/engine_files/small_models.py")
DEFECTS = (
    DEMO, "ropetool/verification/readback/*.py", "ropetool/plans/claims.py", "ropetool/verification/gate.py",
    "ropetool/verification/kl_gate.py", "ropetool/verification/floors.py", "ropetool/verification/statistics.py",
    "ropetool/verification/measures/loss.py", "ropetool/verification/measures/divergence.py", "scripts/defects/defects_*.py",
)  # fmt: skip

RECORDS = (
    Record(
        "demo-losses", (DEMO, *TORCH, "tests/verification/test_effects.py"), ("catalogue/demo_losses.py",), 2,
        ("tests/verification/demo_losses.json",),
    ),
    Record(
        "catalogue-losses", (DEMO, *TORCH, "ropetool/texts/manifest.json"), ("catalogue/catalogue_losses.py",), 20,
        ("tests/verification/catalogue_losses.json",), "judging.md", needs="the texts of scripts/catalogue/text_catalogue.py",
    ),
    Record(
        "intervals",
        (
            *STATISTICS, "ropetool/verification/shares.py", "ropetool/verification/measures/loss.py",
            "ropetool/verification/verdict/bounds.py",
            "tests/verification/catalogue_losses.json",
        ),
        ("catalogue/intervals.py",), 2,
        ("tests/verification/intervals.json",), "judging.md",
    ),
    Record(
        "kl-floors", (DEMO, "ropetool/verification/measures/divergence.py", "ropetool/verification/short_divergence.py"),
        ("floors/kl_floors.py",), 10, ("ropetool/verification/kl_floors.json",), "judging.md",
        needs="the second model of scripts/train_demo_model.py --second",
    ),
    Record(
        "export-gate",
        (
            "ropetool/verification/floors.py", "ropetool/verification/kl_gate.py", "ropetool/verification/measures/noise.py",
            "ropetool/verification/runners/noisy.py", "ropetool/verification/runners/torch_noise.py", "tests/exporting/gate_cells.py",
        ),
        ("floors/export_gate.py",), 10, (), "export.md",
    ),
    Record(
        "defects-demo", DEFECTS, ("defects/defects.py", "--model", "demo"), 15, ("tests/verification/defects.json",), "judging.md",
        needs=REAL,
    ),
    Record(
        "defects-second", DEFECTS, ("defects/defects.py", "--model", "second"), 10, ("tests/verification/defects.json",), "judging.md",
        needs="the second model of scripts/train_demo_model.py --second",
    ),
    Record(
        "default-verdicts",
        (
            *DEFECTS, *STATISTICS, "ropetool/verification/verdict/*.py", "ropetool/texts/manifest.json",
            "scripts/defects/default_verdicts.py",
        ),
        ("defects/default_verdicts.py",), 50, ("tests/verification/default_verdicts.json",), "judging.md",
        needs="the second model of scripts/train_demo_model.py --second",
    ),
    Record(
        "planted-tables",
        (
            "ropetool/identify/hypotheses.py", "ropetool/identify/reference.py", "ropetool/identify/prompts.py",
            "ropetool/identify/deciding.py", "ropetool/identify/asking.py", "ropetool/runtimes/hf_formulas.py",
            "ropetool/verification/runners/torch_rotation.py", "ropetool/servers/base.py", "tests/model_server.py",
        ),
        ("identify/planted_tables.py",), 40, ("tests/identify/planted.json",), "inspecting.md",
    ),
    Record(
        "identified", ("ropetool/identify/*.py", "ropetool/servers/*.py"), ("identify/identified.py",), 40,
        ("tests/identify/identified.json",), "inspecting.md", needs="ROPETOOL_LLAMA_SERVER and ROPETOOL_ENGINE_VLLM",
    ),
    Record(
        "cache-types", (DEMO, *LLAMA), ("floors/cache_types.py",), 20, ("tests/verification/cache_types.json",), "judging.md",
        versions=("llama-cpp-python",),
    ),
    Record(
        "retrieval-power", ("ropetool/verification/measures/retrieval.py", *STATISTICS), ("floors/retrieval_power.py",), 1, (), "judging.md"
    ),
    Record(
        "tune-noise", ("ropetool/lab/tuning/*.py", *STATISTICS), ("tune/tune_noise.py",), 2, ("tests/choosing/tune_noise.json",),
        "choosing.md",
    ),
    Record(
        "tune-demo", (DEMO, "ropetool/lab/tuning/*.py", *TORCH), ("tune/tune_demo.py",), 30, ("tests/choosing/tune_demo.json",),
        "choosing.md",
    ),
    Record(
        "yardsticks-demo", (DEMO, "ropetool/lab/yardsticks/*.py", *TORCH), ("yardsticks/yardsticks_demo.py",), 6,
        ("tests/verification/yardsticks_demo.json",), "measurements.md",
    ),
    Record("bench-yardsticks", ("ropetool/lab/yardsticks/*.py",), ("benchmarks/bench_yardsticks.py", "--write"), 5, (), "measurements.md"),
    Record(
        "bench-in-place",
        ("ropetool/files/gguf/in_place/*.py", "ropetool/files/gguf/journal.py", "ropetool/files/system.py"),
        ("benchmarks/bench_in_place.py", "--write"), 2,
        ("docs/benchmarks-in-place.svg",), "measurements.md",
    ),
    Record(
        "front-picture", (DEMO,), ("front/front_picture.py", "--measure"), 4, ("docs/front.svg", "tests/choosing/front.json"),
        "../README.md",
    ),
    Record("recording", (DEMO, "ropetool/report/*.py"), ("front/recording.py",), 2, ("docs/recording.svg",), "../README.md"),
    Record(
        "bake-grid-transformers",
        (
            *FAMILIES, "tests/baking/bake_models.py", "tests/baking/bake_references.py", "scripts/bake_grid/grid_transformers.py",
        ),
        ("bake_grid/grid.py", "--by", "transformers"), 6, ("tests/baking/bake_grid.json",), "bake.md",
    ),
    Record(
        "bake-grid-llama.cpp",
        (
            *FAMILIES, "tests/baking/bake_gguf_models.py", "tests/gguf_files.py", "tests/gguf_logits.py",
            "scripts/bake_grid/grid_llama_cpp.py",
        ),
        ("bake_grid/grid.py", "--by", "llama.cpp"), 6, ("tests/baking/bake_grid.json",), "bake.md",
    ),
    Record(
        "converted", ("ropetool/gguf_export/converter/*.py", "tests/exporting/remote_models/*.py"), ("converted/converted.py",), 40,
        ("tests/exporting/converted.json",), "export.md", versions=("transformers", "llama-cpp-python"), needs="ROPETOOL_ENGINE_MLX",
    ),
    Record("golden", (), ("golden/golden.py",), 2, ("tests/golden/yarn.json",), versions=("transformers",)),
    Record("settled", (), ("settled/settle.py",), 8, ("tests/settled.json",), versions=("transformers", "llama-cpp-python", "gguf")),
    Record(
        "families", ("ropetool/probing/*.py", "scripts/families/probe_records.py"), ("families/probe",), 6,
        ("ropetool/families/generated/llama.json",), "families.md",
        versions=("transformers",),
    ),
    Record(
        "older-releases", ("ropetool/doctor/older_releases.py", "tests/oracle/rotary_probe.py", "scripts/following/readings.py"),
        ("following/older_readings.py",), 10, ("tests/oracle/older_releases.json",),
    ),
    Record(
        "peers", ("tests/oracle/peers.py", "scripts/peers.txt"), ("golden/golden_peers.py",), 3, ("tests/oracle/peers.json",), needs=PEERS
    ),
    Record(
        "engine-sources", ("scripts/peers.txt",), ("engine_files/engine_sources.py",), 1,
        ("ropetool/runtimes/vllm_models.json", "ropetool/runtimes/sglang_models.json"), needs=PEERS,
    ),
    Record(
        "exllamav3-files", (*ASKING, "scripts/peers.txt"), ("engine_files/exllamav3_files.py",), 1,
        ("ropetool/families/engine_files/exllamav3.json",), needs=PEERS,
    ),
    Record(
        "mlx-files", (*ASKING, "constraints-mlx.txt"), ("engine_files/mlx_files.py",), 40,
        ("ropetool/families/engine_files/mlx_lm.json", "ropetool/families/engine_files/mlx_vlm.json"), needs="ROPETOOL_ENGINE_MLX",
    ),
    Record(
        "engines-vllm", ("ropetool/runtimes/vllm.py", "scripts/engines/engine_grid/*.py", "constraints-vllm.txt"),
        ("engines/run", "--engine", "vllm"), 60, ("tests/oracle/engines_vllm.json",), needs="3.4 GB for the engine",
    ),
    Record(
        "conformance-kit", ("scripts/conformance_kit/*.py", "scripts/conformance_kit/shipped/*"), ("conformance", "page"), 1,
        ("scripts/conformance_kit/conformance.md",), "", versions=("transformers", "torch"),
    ),
    Record(
        "gguf-key-types", (), ("gguf_keys/gguf_key_types.py",), 1, ("ropetool/runtimes/llama_cpp/key_types.json",),
        versions=("llama-cpp-python",), needs=LLAMA_SOURCES,
    ),
    Record(
        "gguf-loading", ("ropetool/runtimes/llama_cpp/key_types.json",), ("gguf_keys/gguf_loading.py",), 1,
        ("ropetool/runtimes/llama_cpp/loading.json",), versions=("llama-cpp-python",), needs=LLAMA_SOURCES,
    ),
    Record(
        "real-models",
        (
            *TORCH, "ropetool/rope/**/*.py", "ropetool/gguf_import/*.py", "ropetool/verification/verdict/*.py",
            "ropetool/verification/statistics.py", "ropetool/verification/texts.py", "ropetool/texts/medium/*.xz",
        ),
        ("real_models/measure", "--stale"), 200, ("tests/verification/real_models.json",), "measurements.md",
        versions=("torch", "transformers"), needs="the files of the models (scripts/real_models/README.md)",
    ),
    Record(
        "real-models-served",
        (
            "ropetool/identify/*.py", "ropetool/servers/*.py", "ropetool/gguf_export/*.py", "ropetool/gguf_model/*.py",
            "ropetool/rope/**/*.py", *LLAMA,
        ),
        ("real_models/serve", "--again"), 90, ("tests/verification/real_models_served.json",), "measurements.md",
        versions=("torch", "transformers", "llama-cpp-python"),
        needs="the files of the models, ROPETOOL_LLAMA_SERVER and ROPETOOL_ENGINE_VLLM",
    ),
    Record(
        "laboratory", ("scripts/lab/lab_*.py",), ("lab/train", "--again"), 440, ("tests/lab/small.json", "tests/lab/large.json"),
        "measurements.md",
    ),
    Record(
        "training-free", ("scripts/lab/lab_scoring.py", "ropetool/lab/yardsticks/*.py"), ("lab/training_free", "--again"), 60,
        ("tests/lab/training_free.json",), "measurements.md", needs="ROPETOOL_SMOLLM2, the path of SmolLM2's GGUF file",
    ),
    Record(
        "finetuned", ("scripts/lab/lab_training.py", DEMO), ("lab/finetune", "--again"), 75, ("tests/lab/finetuned.json",),
        "measurements.md", versions=("transformers",),
    ),
    Record(
        "closed-forms", ("scripts/lab/lab_scoring.py", "ropetool/lab/usage/*.py", "ropetool/lab/tuning/*.py", DEMO),
        ("lab/measured", "--again"), 180, ("tests/lab/measured.json",), "measurements.md",
        needs="ROPETOOL_SMOLLM2, the path of SmolLM2's GGUF file",
    ),
)  # fmt: skip
BY_NAME = {record.name: record for record in RECORDS}
