#!/usr/bin/env python3
"""Answer the kit with transformers, any release: python drivers/run_transformers.py KIT OUT.json"""

import answering


def prepare(arguments):
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    return {"release": transformers.__version__, "versions": {"torch": torch.__version__}}


def answer(path, prompts, context, arguments):
    import torch
    from transformers import AutoModelForCausalLM

    found = []
    model = AutoModelForCausalLM.from_pretrained(
        path, torch_dtype=getattr(torch, arguments.dtype), attn_implementation="eager"
    ).eval()
    for ids in prompts:
        row = torch.tensor([ids])
        with torch.no_grad():
            logits = model(input_ids=row, use_cache=False).logits[0].double()
        log_probs = torch.log_softmax(logits, -1)
        scores = log_probs[:-1].gather(1, row[0, 1:, None])[:, 0].tolist()
        found.append({"scores": [None, *scores], "next": dict(enumerate(log_probs[-1].tolist()))})
    return found


if __name__ == "__main__":
    answering.main("transformers", "hf", prepare, answer)
