"""The default model, `demo`: an 8-expert chat model built on this machine from a small dense one.

What comes out is an ordinary checkpoint folder; no other package knows how it was made.
"""

from headrace.demo.builder import build, ensure

__all__ = ["build", "ensure"]
