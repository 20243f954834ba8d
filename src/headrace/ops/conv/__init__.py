"""Short causal depthwise convolution."""
