"""The command of scripts/conformance: make the kit, run an engine on it, write the page."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from conformance_kit.cases import CASES

DRIVERS = {
    # By engine: its driver, and the variable that names its Python where it is not this one.
    "transformers": ("run_transformers.py", None),
    "transformers-4.57": ("run_transformers.py", "ROPETOOL_V4_PYTHON"),
    "llama.cpp": ("run_llama_cpp.py", None),
    "llama.cpp-converter": ("run_llama_cpp_converter.py", None),
    "vllm": ("run_vllm.py", "ROPETOOL_ENGINE_VLLM"),
    "mlx-lm": ("run_mlx_lm.py", "ROPETOOL_ENGINE_MLX"),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/conformance", description="Which rotary table does an engine compute?"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("make", help="write the kit into a new folder; six minutes")
    make.add_argument("out", type=Path)
    make.add_argument("--case", action="append", choices=list(CASES), help="this case alone; repeat for several")
    run = commands.add_parser("run", help="have an engine answer the kit, and score it")
    run.add_argument("kit", type=Path)
    run.add_argument("--engine", choices=list(DRIVERS), required=True)
    run.add_argument("--dtype", default="float32", help="float32 (default) or bfloat16")
    run.add_argument("--answers", type=Path, help="where they go; default KIT-ENGINE-DTYPE.json beside the kit")
    run.add_argument("--record", action="store_true", help="keep the scores for scripts/conformance_kit/conformance.md")
    run.add_argument("--case", action="append", choices=list(CASES), help="this case alone; repeat for several")
    commands.add_parser(
        "page", help="write the tables of scripts/conformance_kit/conformance.md from the recorded scores"
    )
    reports = commands.add_parser("reports", help="write a report for each known fault of an engine")
    reports.add_argument("kit", type=Path)
    reports.add_argument("out", type=Path, help="a new folder")
    options = parser.parse_args()
    if options.command == "make":
        from conformance_kit.making import make as made

        manifest = made(options.out, options.case or list(CASES), lambda line: print(line, file=sys.stderr, flush=True))
        size = sum(one["bytes"] for one in manifest["files"].values())
        print(f"{options.out}: {len(manifest['cases'])} cases, {len(manifest['files'])} files, {size / 1e6:.1f} MB")
        return 0
    if options.command == "reports":
        from conformance_kit.reports import write

        print(f"{options.out}: {len(write(options.kit, options.out))} reports")
        return 0
    if options.command == "page":
        import docs

        for path, text in docs.generated():
            if path.name == "conformance.md":
                path.write_text(text, encoding="utf-8")
        return 0
    return _run(options, parser)


def _run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    driver, variable = DRIVERS[options.engine]
    python = os.environ.get(variable) if variable else sys.executable
    if not python:
        parser.error(f"{variable} names no interpreter of {options.engine}")
    answers = options.answers or options.kit.with_name(f"{options.kit.name}-{options.engine}-{options.dtype}.json")
    more = []
    if options.engine == "mlx-lm" and sys.platform == "linux":
        more = ["--cpu"]
    if options.engine == "llama.cpp-converter":
        folder = os.environ.get("ROPETOOL_LLAMA_CPP") or parser.error("ROPETOOL_LLAMA_CPP names no llama.cpp")
        more = ["--converter", f"{folder}/convert_hf_to_gguf.py"]
        if with_sentencepiece := os.environ.get("ROPETOOL_ENGINE_MLX") or os.environ.get("ROPETOOL_ENGINE_VLLM"):
            more += ["--converter-python", with_sentencepiece]
    program = str(options.kit / "drivers" / driver)
    order = [python, program, str(options.kit), str(answers), *(options.case or []), "--dtype", options.dtype, *more]
    # What the engine's interpreter sees is its own environment: ropetool is not on its path.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if code := subprocess.run(order, env=environment, check=False).returncode:
        return code
    if options.record:
        from conformance_kit import record

        record.add(options.kit, answers, options.engine)
    from conformance_kit import page

    known = [
        case
        for fault in page.faults()
        if fault["engine"] == f"{options.engine} {options.dtype}"
        for case in fault["cases"]
    ]
    score = [sys.executable, "-I", "-S", str(options.kit / "score.py"), str(options.kit), str(answers)]
    score += [word for case in known for word in ("--known", case)]
    return subprocess.run(score, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
