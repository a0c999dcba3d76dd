"""What all drivers share: the cases are asked one after the other in a process that is started again when it dies.

A driver gives `main` a function that returns an engine's answers to the prompts of one checkpoint; the standard library does
the rest. Answers are written after each case, so that a run that is broken off has those before it.
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import traceback
from pathlib import Path

LIMIT = 600  # seconds for a case, the engine's start included


def main(engine, model_format, prepare, answer, options=()):
    """Answer the cases of a kit: DRIVER KIT OUT.json [CASE ...].

    prepare(arguments) imports the engine and returns its release and the versions of what it runs on. answer(path, prompts,
    context, arguments) returns for each prompt an object with "scores", "next" or both, as the README says.
    """
    parser = argparse.ArgumentParser(description=f"Answer the prompts of the conformance kit with {engine}.")
    parser.add_argument("kit", type=Path)
    parser.add_argument("out", type=Path, help="where the answers go; a case that is in it already is not asked again")
    parser.add_argument("cases", nargs="*", help="these alone; all where left out")
    parser.add_argument("--dtype", default="float32", help="what the engine computes in: float32 or bfloat16")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    for name, keywords in options:
        parser.add_argument(name, **keywords)
    arguments = parser.parse_args()
    if arguments.worker:
        _work(prepare, answer, arguments)
        return
    manifest = json.loads((arguments.kit / "manifest.json").read_text(encoding="utf-8"))
    known = manifest["cases"]
    if unknown := sorted(set(arguments.cases) - set(known)):
        parser.error("there is no case " + ", ".join(unknown))
    done = {"answers": {}}
    if arguments.out.is_file():
        done = json.loads(arguments.out.read_text(encoding="utf-8"))
        if (done["kit"], done["dtype"]) != (manifest["version"], arguments.dtype):
            parser.error(f"{arguments.out} has answers to version {done['kit']} in {done['dtype']}; name another file")
    worker = Worker()
    for name in arguments.cases or known:
        if name in done["answers"] or (model_format == "gguf" and known[name]["no_gguf"]):
            continue
        job = _job(arguments.kit, model_format, name)
        given = worker.ask(job)
        done = {
            "kit": manifest["version"], "engine": engine, **worker.about, "dtype": arguments.dtype, "format": model_format,
            "answers": {**done["answers"], name: given},
        }  # fmt: skip
        arguments.out.write_text(json.dumps(done), encoding="utf-8")
        print(f"{name}: {given.get('error', 'answered')}", file=sys.stderr, flush=True)
    worker.end()


def _job(kit, model_format, name):
    golden = json.loads((kit / "golden" / (name + ".json")).read_text(encoding="utf-8"))
    path = kit / "hf" / name if model_format == "hf" else kit / "gguf" / (name + ".gguf")
    prompts = [golden["ids"][: prompt["length"]] for prompt in golden["prompts"]]
    return {"path": str(path.resolve()), "prompts": prompts, "context": golden["context"]}


class Worker:
    """The process that holds the engine: this program again, with --worker."""

    def __init__(self):
        self.process, self.lines, self.about = None, None, {"release": "unknown", "versions": {}}

    def ask(self, job):
        """Return the answer to a case, or what stopped it."""
        if self.process is None:
            command = [sys.executable, *sys.argv, "--worker"]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.lines = queue.Queue()
            threading.Thread(target=_pass_on, args=(self.process.stdout, self.lines), daemon=True).start()
            about = self._line()
            if "error" in about:
                self.end()
                return about
            self.about = about
        try:
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the line that does not come says so
        given = self._line()
        if given.pop("ended", False):
            self.end()
        return given

    def _line(self):
        try:
            line = self.lines.get(timeout=LIMIT)
        except queue.Empty:
            return {"error": f"no answer within {LIMIT} seconds", "ended": True}
        if line:
            return json.loads(line)
        return {"error": f"its process ended with {self.process.wait()}", "ended": True}

    def end(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def _pass_on(stream, lines):
    for line in stream:
        lines.put(line)
    lines.put("")


def _work(prepare, answer, arguments):
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the engine prints is no answer

    def say(found):
        out.write(json.dumps(found) + "\n")
        out.flush()

    try:
        say(prepare(arguments))
    except BaseException as error:  # noqa: BLE001 - whatever stops the engine is the answer
        traceback.print_exc()
        say({"error": f"the engine does not start: {type(error).__name__}: {error}"})
        return
    for line in sys.stdin:
        job = json.loads(line)
        try:
            say({"prompts": answer(job["path"], job["prompts"], job["context"], arguments)})
        except BaseException as error:  # noqa: BLE001 - as above
            traceback.print_exc()
            say({"error": f"{type(error).__name__}: {error}"})
