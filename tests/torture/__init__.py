"""scripts/torture: proofs that nothing is lost and that hostile input costs nothing but a refusal."""
