#!/usr/bin/env python3
"""Answer the kit with transformers, any release: python drivers/run_transformers.py KIT OUT.json"""

import answering


def prepare(arguments):
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    return {"release": transformers.__version__, "versions": {"torch": torch.__version__}}


def answer(job, arguments):
    import torch

    model = _load(job["path"], getattr(torch, arguments.dtype), arguments.attention)
    given, mask, cache = {}, None, None
    for rows in answering.steps(job):
        width = max(len(row.new) for row in rows)
        padding = [width - len(row.new) for row in rows]
        ids = torch.tensor([[0] * count + row.new for count, row in zip(padding, rows, strict=True)])
        new = torch.tensor([[0] * count + [1] * len(row.new) for count, row in zip(padding, rows, strict=True)])
        mask = torch.cat([mask, new], 1) if job["share"] and mask is not None else new
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -width:]
        whole = {} if mask.all() else {"attention_mask": mask}
        with torch.no_grad():
            out = model(ids, position_ids=positions, past_key_values=cache, use_cache=job["share"], **whole)
        cache = out.past_key_values if job["share"] else None
        for logits, row, count in zip(out.logits, rows, padding, strict=True):
            log_probs = torch.log_softmax(logits[count:].double(), -1).tolist()
            given[row.prompt] = answering.answered(row, log_probs)
    return answering.in_order(given)


def _load(path, dtype, attention):
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(path, torch_dtype=dtype, attn_implementation=attention).eval()
    except ValueError as error:
        if "does not recognize this architecture" in str(error):
            raise answering.Unsupported("this release has no class for the model type") from error
        raise


ATTENTION = ("--attention", {"default": "eager", "help": "attn_implementation; default eager"})

if __name__ == "__main__":
    answering.main("transformers", "hf", prepare, answer, [ATTENTION])
