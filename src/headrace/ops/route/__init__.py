"""From router logits to experts and their weights."""
