#!/usr/bin/env python3
"""A driver to copy: python drivers/run_template.py KIT OUT.json

Replace `my_engine`, its calls, and the name in the last line.
"""

import answering


def prepare(arguments):
    import my_engine

    return {
        "release": my_engine.__version__,
        "versions": {},
    }  # versions: of what it computes with, such as {"torch": "2.13"}


def answer(job, arguments):
    """Return the answers to the prompts of one case.

    job["path"]: the folder of the checkpoint. job["context"]: tokens for which the engine needs room.
    arguments.dtype: float32 or bfloat16.
    """
    import my_engine

    # If the engine has no class for the model_type of config.json: raise answering.Unsupported("no class for MODEL_TYPE").
    engine = my_engine.load(job["path"], dtype=arguments.dtype, context=job["context"])
    given, caches = {}, {}
    for rows in answering.steps(job):
        # Compute the new tokens of all rows in one batch. Each row follows the tokens in its cache, which is None at first.
        # log_probs[i][t] is the log probability of token t after the new token i of a row.
        before = [caches.get(row.number) for row in rows]
        for row, (log_probs, cache) in zip(rows, engine.compute([row.new for row in rows], before), strict=True):
            given[row.prompt] = answering.answered(row, log_probs)
            # If the engine cannot keep a cache: raise answering.Unsupported("keeps no cache") when job["share"] is true.
            caches[row.number] = cache if job["share"] else None
    return answering.in_order(given)


if __name__ == "__main__":
    answering.main("my engine", "hf", prepare, answer)
