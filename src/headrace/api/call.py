"""What one HTTP request asks for, whatever dialect it came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.chat.types import ChatRequest, OutputFormat
from headrace.engine.request import Sampling

# In a tool's result. An agent cannot know before that its model reads text only, and a refused
# result would end its conversation.
NO_IMAGE = "[an image stood here; this model reads text only]"


@dataclass(frozen=True, slots=True)
class RawPrompts:
    """Texts or token ids to go on from, without a chat template."""

    prompts: tuple[str | tuple[int, ...], ...]
    stop: tuple[str, ...] = ()
    echo: bool = False  # put the prompt's text before the answer
    format: OutputFormat = field(default_factory=OutputFormat)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    include_usage: bool = False  # one last chunk with the usage
    continuous_usage: bool = False  # the usage so far in every chunk


@dataclass(frozen=True, slots=True)
class Call:
    """`ask` answered `n` times per prompt; choice `p * n + i` is answer i of prompt p."""

    ask: ChatRequest | RawPrompts
    sampling: Sampling = field(default_factory=Sampling)
    n: int = 1
    model: str | None = None
    stream: StreamOptions | None = None  # None = one whole reply
    conversation: str = ""  # as the client names it; "" = told by its text


# In which agents say whose turn a request is; a subagent is another conversation.
CONVERSATION_HEADERS = (
    *("x-claude-code-session-id", "x-claude-code-agent-id", "session-id", "thread-id"),
    *("x-session-id", "x-session-affinity"),
)


def conversation_of(headers: Mapping[str, str]) -> str:
    """The client's own name of the conversation, "" where it gives none."""
    return "/".join(headers[name] for name in CONVERSATION_HEADERS if name in headers)
