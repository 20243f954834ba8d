"""How an error is told to a person."""

from __future__ import annotations

import sys

from headrace.errors import HeadraceError


def complain(error: HeadraceError) -> None:
    """On standard error, a line each: what was found, what was expected, what to do."""
    lines = [f"headrace: {error.found}"]
    if error.expected:
        lines.append(f"  expected {error.expected}")
    if error.fix:
        lines.append(f"  {error.fix}")
    sys.stderr.write("\n".join(lines) + "\n")
