"""The side of an engine: jobs from stdin, answers to stdout. Run by the engine's interpreter, so it needs only numpy.

A job is a line of JSON on stdin: {"dir": a checkpoint, "ids": token ids, "out": a file}. For each, the log probability
of every token but the first is written to `out` as .npy, and a line of JSON goes to stdout: {"dir"}, with "error" where
it stopped. The first line is {"versions"}.
"""

import json
import os
import sys
import traceback

import numpy

ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the engine prints is not an answer


def say(answer):
    """Write a line for the program that asked."""
    ANSWERS.write(json.dumps(answer) + "\n")
    ANSWERS.flush()


def serve(versions, log_probs, tidy):
    """Answer every job with log_probs(directory, ids); tidy: called after each."""
    say({"versions": versions})
    for line in sys.stdin:
        job = json.loads(line)
        answer = {"dir": job["dir"]}
        try:
            numpy.save(job["out"], numpy.array(log_probs(job["dir"], job["ids"])))
        except BaseException as error:  # noqa: BLE001 - whatever stops the engine is the answer
            traceback.print_exc()
            answer["error"] = f"{type(error).__name__}: {error}"
        say(answer)
        tidy()
