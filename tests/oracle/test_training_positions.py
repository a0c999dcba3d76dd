"""What transformers makes of positions that skip, as PoSE trains with them: docs/choosing.md warns of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

DEMO = Path(__file__).resolve().parents[2] / "ropetool" / "demo" / "model"


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_skip_is_a_border_unless_a_mask_is_handed_over(attention: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(DEMO, attn_implementation=attention, dtype=torch.float32).eval()
    ids = torch.randint(5, 2000, (1, 200), generator=torch.Generator().manual_seed(0))
    skipping = torch.cat([torch.arange(100), torch.arange(140, 240)])[None]
    causal = torch.zeros(1, 1, 200, 200).masked_fill(torch.ones(200, 200).triu(1).bool(), -torch.inf)
    with torch.inference_mode():
        without = model(ids, position_ids=skipping, use_cache=False).logits
        with_ones = model(ids, position_ids=skipping, use_cache=False, attention_mask=torch.ones_like(ids)).logits
        whole = model(ids, position_ids=skipping, use_cache=False, attention_mask=causal).logits
        second_alone = model(ids[:, 100:], use_cache=False).logits
    assert (with_ones - whole).abs().max() < 1e-4
    assert (without[:, 100:] - second_alone).abs().max() < 1e-3
    assert (without - whole).abs().max() > 1
