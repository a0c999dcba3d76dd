"""What ropetool's vLLM in process finds of rows, as JSON; run by the interpreter of vLLM's environment.

Argument: a file with {"path", "reach", "rows", "candidates", "scored", "score_prompts"}.
"""

import json
import sys
from pathlib import Path

from ropetool.verification.runners.vllm_engine import Engine, VllmRunner

if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text())
    found = {}
    for score_prompts in (False, True):
        runner = VllmRunner(
            Path(asked["path"]), Engine(score_prompts=score_prompts), dtype="float32", reach=asked["reach"]
        )
        scores = runner.score(asked["rows"], asked["scored"])
        predictions = runner.predict(asked["rows"], asked["candidates"])
        found[str(score_prompts)] = {
            "losses": scores.losses.tolist(), "hits": scores.hits.tolist(),
            "log_probs": predictions.log_probs.tolist(), "top": predictions.top.tolist(), "said": runner.description,
        }  # fmt: skip
        runner.close()
    print("\n" + json.dumps(found))
