"""Adding a block's output to the residual stream."""
