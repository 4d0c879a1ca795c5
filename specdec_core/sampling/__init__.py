"""From logits to draws: the target's law, the noise, and the evidence that crosses the wire."""
