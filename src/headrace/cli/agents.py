"""What each agent must be told to work with a server of ours: files, environment, arguments. Pure.

An agent's own configuration is left alone: ours lies in a folder apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEY_NAME = "LOCAL_MODEL_KEY"  # the child's environment variable that files refer to
NO_KEY = "none"  # agents insist on a key
MOST_OUTPUT = 32_000
IDLE_MS = 600_000  # prompts of a hundred thousand tokens take minutes on a CPU

# Keys and addresses of hosted models: with one of them an agent might ask there instead.
_VENDORS = (
    *("ANTHROPIC", "OPENAI", "AZURE_OPENAI", "GEMINI", "GOOGLE", "GOOGLE_GENERATIVE_AI"),
    *("OPENROUTER", "MISTRAL", "GROQ", "DEEPSEEK", "XAI", "TOGETHER", "FIREWORKS", "CEREBRAS"),
    *("COHERE", "PERPLEXITY", "MOONSHOT", "ZAI", "ZHIPU", "MINIMAX", "DASHSCOPE", "NVIDIA"),
    *("CODEX", "OPENCODE", "AI_GATEWAY"),
)
_CLOUD = re.compile(
    rf"({'|'.join(_VENDORS)})_(API_KEY|AUTH_TOKEN|OAUTH_TOKEN|BASE_URL|API_BASE|ENDPOINT|MODEL)"
    r"|ANTHROPIC_.*|CLAUDE_CODE_(USE_.*|OAUTH_TOKEN)|AWS_BEARER_TOKEN_BEDROCK|OPENAI_(ORG|PROJECT).*"
)


def cloud_names(names: Iterable[str]) -> list[str]:
    """Those of these environment variables that lead to hosted models, sorted."""
    return sorted(name for name in names if _CLOUD.fullmatch(name))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running server: `url` without a path, a model's name there, its context in tokens."""

    url: str
    model: str
    context: int
    api_key: str | None = None

    @property
    def output(self) -> int:
        """Longest answer to ask for. Agents leave this much of the context free."""
        return max(1, min(MOST_OUTPUT, self.context // 4))


@dataclass(frozen=True, slots=True)
class Setup:
    """`files` by name, in the agent's own folder of ours."""

    environment: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Agent:
    """`setup` gets the server and the folder where files will lie."""

    command: str
    install: str
    setup: Callable[[Endpoint, Path], Setup]


def _claude(server: Endpoint, _folder: Path) -> Setup:
    model = server.model
    return Setup(
        {
            "ANTHROPIC_BASE_URL": server.url,
            "ANTHROPIC_AUTH_TOKEN": server.api_key or NO_KEY,
            "ANTHROPIC_MODEL": model,
            "ANTHROPIC_DEFAULT_OPUS_MODEL": model,
            "ANTHROPIC_DEFAULT_SONNET_MODEL": model,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
            # Of a name it does not know it believes that a million tokens fit.
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(server.context),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(server.output),
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_STREAM_IDLE_TIMEOUT_MS": str(IDLE_MS),
            "API_TIMEOUT_MS": str(IDLE_MS),
        }
    )


def _codex(server: Endpoint, folder: Path) -> Setup:
    config = f"""\
model = {_toml(server.model)}
model_provider = "headrace"
model_context_window = {server.context}
check_for_update_on_startup = false

[model_providers.headrace]
name = "Headrace"
base_url = {_toml(server.url + "/v1")}
wire_api = "responses"
env_key = "{KEY_NAME}"
stream_idle_timeout_ms = {IDLE_MS}

[analytics]
enabled = false
"""
    return Setup({"CODEX_HOME": str(folder), **_key(server)}, {"config.toml": config})


def _opencode(server: Endpoint, folder: Path) -> Setup:
    model = {
        "name": server.model,
        "reasoning": True,
        "tool_call": True,
        "limit": {"context": server.context, "output": server.output},
    }
    config = {
        "provider": {
            "headrace": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Headrace",
                "options": {"baseURL": f"{server.url}/v1", "apiKey": f"{{env:{KEY_NAME}}}"},
                "models": {server.model: model},
            }
        },
        "model": f"headrace/{server.model}",
        "small_model": f"headrace/{server.model}",
        "autoupdate": False,
        "share": "disabled",
    }
    name = "opencode.json"
    environment = {
        "OPENCODE_CONFIG": str(folder / name),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        **_key(server),
    }
    return Setup(environment, {name: _json(config)})


def _openclaw(server: Endpoint, folder: Path) -> Setup:
    model = {
        "id": server.model,
        "name": server.model,
        # Else it drops what the model thought, and every turn is read anew from there.
        "reasoning": True,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": server.context,
        "maxTokens": server.output,
    }
    config = {
        "models": {
            "providers": {
                "headrace": {
                    "baseUrl": server.url,
                    "apiKey": f"${{{KEY_NAME}}}",
                    "api": "anthropic-messages",
                    "timeoutSeconds": IDLE_MS // 1000,
                    "models": [model],
                }
            }
        },
        "agents": {"defaults": {"model": {"primary": f"headrace/{server.model}"}}},
    }
    name = "openclaw.json"
    environment = {"OPENCLAW_CONFIG_PATH": str(folder / name), **_key(server)}
    return Setup(environment, {name: _json(config)})


def _key(server: Endpoint) -> dict[str, str]:
    return {KEY_NAME: server.api_key or NO_KEY}


def _toml(text: str) -> str:
    """A basic string: TOML escapes as JSON does."""
    return json.dumps(text, ensure_ascii=False)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


AGENTS = {
    "claude": Agent("claude", "npm install -g @anthropic-ai/claude-code", _claude),
    "codex": Agent("codex", "npm install -g @openai/codex", _codex),
    "opencode": Agent("opencode", "npm install -g opencode-ai", _opencode),
    "openclaw": Agent("openclaw", "npm install -g openclaw", _openclaw),
}
