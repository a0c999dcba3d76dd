"""What all drivers share: they answer one case after the other in a process that is started again if it dies.

A driver passes `main` a function that returns an engine's answers to the prompts of one case. The standard library does
the rest. The file is written after each case, so an interrupted run keeps its answers.
"""

import argparse
import difflib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections import namedtuple
from pathlib import Path

LIMIT = 600  # seconds for a case, the engine's start included

# A prompt as one row of a batch. prompt: its index. number: of the row, and of its cache. kept: tokens in that cache.
# new: the token ids that follow them.
Row = namedtuple("Row", "prompt number kept new")


class Unsupported(Exception):
    """The engine has no class for the model type, or has no cache to keep. The case then counts as n/a."""


def steps(job):
    """Yield the batches of a case, in order: lists of rows.

    Most cases have one row in each batch and nothing in the cache. With job["together"] 2, the engine computes two rows in
    one batch. With job["share"], a row goes on from the cache of the row with the same number in the batch before.
    """
    width, prompts = job["together"], job["prompts"]
    for first in range(0, len(prompts), width):
        rows = []
        for at in range(first, first + width):
            kept = len(prompts[at - width]) if job["share"] and at >= width else 0
            rows.append(Row(at, at - first, kept, prompts[at][kept:]))
        yield rows


def answered(row, log_probs):
    """Return the answer to a prompt.

    log_probs: for each token of row.new, the log probabilities of all tokens that may follow it. Lists or arrays.
    """
    log_probs = [values.tolist() if hasattr(values, "tolist") else list(values) for values in log_probs]
    if len(log_probs) != len(row.new):
        raise ValueError(f"{len(log_probs)} rows of log probabilities for {len(row.new)} new tokens")
    following = zip(log_probs[:-1], row.new[1:], strict=True)
    scores = [None] * (row.kept + 1) + [values[token] for values, token in following]
    return {"scores": scores, "next": dict(enumerate(log_probs[-1]))}


def in_order(given):
    """Return the answers to all prompts from a dictionary of answers by the index of the prompt."""
    return [given[prompt] for prompt in sorted(given)]


def main(engine, model_format, prepare, answer, options=(), quantises=False):
    """Answer the cases of a kit: DRIVER KIT OUT.json [CASE ...].

    prepare(arguments): imports the engine and returns its release and the versions of what it runs on. A file is continued
    only if they are the same.
    answer(job, arguments): returns for each prompt an object with "scores", "next" or both, as the README describes.
    job has "path", "prompts", "context", "share", "together" and "quantised".
    quantises: whether the engine computes with matrices of the type job["quantised"].
    """
    parser = argparse.ArgumentParser(description=f"Answer the prompts of the conformance kit with {engine}.")
    parser.add_argument("kit", type=Path)
    parser.add_argument("out", type=Path, help="where the answers go; a case with an answer in it is not asked again")
    parser.add_argument("cases", nargs="*", help="these alone, and again if they have an answer; all where left out")
    parser.add_argument("--fresh", action="store_true", help="ask every case again")
    parser.add_argument("--dtype", default="float32", help="what the engine computes in: float32 or bfloat16")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    for name, keywords in options:
        parser.add_argument(name, **keywords)
    arguments = parser.parse_args()
    if arguments.worker:
        _work(prepare, answer, arguments)
        return
    if arguments.out.is_dir():
        parser.error(f"{arguments.out} is a folder; name a file for the answers")
    manifest = _manifest(parser, arguments)
    known = manifest["cases"]
    about = {"kit": manifest["version"], "dtype": arguments.dtype, "format": model_format}
    before, answers = None, {}
    if arguments.out.is_file() and not arguments.fresh:
        before = _before(parser, arguments.out)
        answers = before["answers"]
        _same(parser, arguments.out, before, about)
    left = [
        name for name in arguments.cases or known
        if (arguments.cases or not _is_answered(answers.get(name)))
        and not (model_format == "gguf" and known[name]["no_gguf"])
    ]  # fmt: skip
    if kept := len(set(answers) - set(left)):
        print(f"{kept} cases are kept from {arguments.out} and not asked again; --fresh asks them", file=sys.stderr)
    if not left:
        return
    worker = Worker()
    try:
        started = worker.start()
        if "error" in started:
            parser.error(f"{started['error']}; nothing is written")
        about = {**about, "engine": engine, **started}
        if before is not None:
            _same(parser, arguments.out, before, about)
        for name in left:
            job = _job(arguments.kit, model_format, name)
            given = worker.ask(job)
            if quantises and job["quantised"] and "prompts" in given:
                given["quantised"] = job["quantised"]
            answers = {**answers, name: given}
            arguments.out.write_text(json.dumps({**about, "answers": answers}), encoding="utf-8")
            print(
                f"{name}: {given.get('error') or given.get('unsupported') or 'answered'}", file=sys.stderr, flush=True
            )
    finally:
        worker.end()


def _manifest(parser, arguments):
    """Return the manifest of the kit. Ends the program if the kit has no such case or type."""
    path = arguments.kit / "manifest.json"
    if not path.is_file():
        parser.error(f"{arguments.kit} is no conformance kit: it has no manifest.json")
    manifest = json.loads(path.read_text(encoding="utf-8"))
    for name in arguments.cases:
        if name not in manifest["cases"]:
            near = difflib.get_close_matches(name, manifest["cases"])
            parser.error(
                f"there is no case {name}; {'the nearest: ' if near else 'the cases: '}{', '.join(near or manifest['cases'])}"
            )
    if arguments.dtype not in manifest["dtypes"]:
        parser.error(f"there are no bounds for {arguments.dtype}; the types are {', '.join(manifest['dtypes'])}")
    return manifest


def _is_answered(given):
    """Return whether an answer is kept. A case that failed or was not supported is asked again."""
    return given is not None and "prompts" in given


def _before(parser, out):
    """Return the file of answers that is gone on with."""
    try:
        before = json.loads(out.read_text(encoding="utf-8"))
    except ValueError:
        before = None
    if not isinstance(before, dict) or not isinstance(before.get("answers"), dict):
        parser.error(f"{out} is no file of answers; name another file")
    return before


def _same(parser, out, before, about):
    """Stop where earlier answers are of another kit, engine, release or format than those that would be added."""
    for key, value in about.items():
        if before.get(key) != value:
            parser.error(f"{out} has answers of {key} {before.get(key)}, and this is {value}; name another file")


def _job(kit, model_format, name):
    golden = json.loads((kit / "golden" / (name + ".json")).read_text(encoding="utf-8"))
    path = kit / "hf" / name if model_format == "hf" else kit / "gguf" / (name + ".gguf")
    prompts = [golden["ids"][: prompt["length"]] for prompt in golden["prompts"]]
    calls = {key: golden[key] for key in ("context", "share", "together", "quantised")}
    return {"path": str(path.resolve()), "prompts": prompts, **calls}


class Worker:
    """The process that holds the engine: this program again, with --worker."""

    def __init__(self):
        self.process, self.lines = None, None

    def start(self):
        """Return what the engine says of itself, or what stopped it."""
        command = [sys.executable, *sys.argv, "--worker"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines = queue.Queue()
        threading.Thread(target=_pass_on, args=(self.process.stdout, self.lines), daemon=True).start()
        about = self._line()
        about.pop("ended", None)
        if "error" in about:
            self.end()
        return about

    def ask(self, job):
        """Return the answer to a case, or what stopped it."""
        if self.process is None:
            about = self.start()
            if "error" in about:
                return about
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
        code = self.process.wait()
        name = f" ({signal.Signals(-code).name})" if code < 0 else ""
        return {"error": f"its process ended with {code}{name}", "ended": True}

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
        about = prepare(arguments)
        if not isinstance(about, dict) or not {"release", "versions"} <= set(about):
            raise TypeError("prepare must return a dictionary with release and versions")
        say(about)
    except BaseException as error:  # noqa: BLE001 - whatever stops the engine is the answer
        traceback.print_exc()
        say({"error": f"the engine does not start: {type(error).__name__}: {error}"})
        return
    for line in sys.stdin:
        job = json.loads(line)
        try:
            say({"prompts": answer(job, arguments)})
        except Unsupported as error:
            say({"unsupported": str(error)})
        except BaseException as error:  # noqa: BLE001 - as above
            traceback.print_exc()
            say({"error": f"{type(error).__name__}: {error}"})
