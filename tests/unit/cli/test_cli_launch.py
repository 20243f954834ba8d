"""`headrace launch`: what agents are told and started with. The agents are scripts of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from headrace.cli.agents import AGENTS, KEY_NAME, Endpoint, cloud_names

MODEL = 'odd "name" ü'
SERVER = Endpoint("http://127.0.0.1:1", MODEL, 40_000, "secret")
COMMAND = [sys.executable, "-c", "from headrace.cli.main import main; main()", "launch"]
# Tells what it was started with.
FAKE = """#!{python}
import json, os, sys
json.dump({{"argv": sys.argv[1:], "env": dict(os.environ)}}, open({out!r}, "w"))
sys.exit(7)
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    class Models(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = {"data": [{"id": "tiny", "max_model_len": 5000}]}
            known = self.path == "/v1/models" and self.headers["authorization"] == "Bearer k"
            data = json.dumps(body if known else {"error": {"message": "no"}}).encode()
            self.send_response(200 if known else 401)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Models)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(tmp_path, url):
    """`run(*arguments, agent="claude")` -> the finished process; `run.saw()` what the agent saw."""
    binaries, out = tmp_path / "bin", tmp_path / "saw.json"
    binaries.mkdir()

    class Runs:
        def install(self, agent: str) -> None:
            fake = binaries / agent
            fake.write_text(FAKE.format(python=sys.executable, out=str(out)))
            fake.chmod(0o755)

        def saw(self):
            return json.loads(out.read_text()) if out.exists() else None

        def __call__(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
            environment = {
                **os.environ,
                "PATH": str(binaries),
                "HEADRACE_HOME": str(tmp_path / "home"),
                **more,
            }
            return subprocess.run(
                [*COMMAND, "--server", url, "--api-key", "k", *arguments],
                capture_output=True, text=True, check=False, env=environment,
            )  # fmt: skip

    return Runs()


def setup_of(name: str):
    return AGENTS[name].setup(SERVER, Path("/folder"))


def test_claude_knows_the_server_its_models_and_the_context():
    environment = setup_of("claude").environment
    assert environment["ANTHROPIC_BASE_URL"] == SERVER.url
    assert environment["ANTHROPIC_AUTH_TOKEN"] == "secret"
    names = [v for k, v in environment.items() if k.endswith("_MODEL")]
    assert names == [MODEL] * 4
    assert environment["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "40000"
    assert environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "10000"


def test_codex_gets_a_valid_config():
    setup = setup_of("codex")
    config = tomllib.loads(setup.files["config.toml"])
    provider = config["model_providers"][config["model_provider"]]
    assert provider["base_url"] == SERVER.url + "/v1"
    assert provider["wire_api"] == "responses"
    assert (config["model"], config["model_context_window"]) == (MODEL, 40_000)
    assert setup.environment[provider["env_key"]] == "secret"
    assert setup.environment["CODEX_HOME"] == "/folder"


@pytest.mark.parametrize("name", ["opencode", "openclaw"])
def test_the_json_agents_get_the_model_and_its_limits(name):
    setup = setup_of(name)
    [(file, text)] = setup.files.items()
    assert f"/folder/{file}" in setup.environment.values()
    assert setup.environment[KEY_NAME] == "secret"
    assert "secret" not in text
    config = json.loads(text)
    if name == "opencode":
        provider = config["provider"]["headrace"]
        assert provider["options"]["baseURL"] == SERVER.url + "/v1"
        assert provider["models"][MODEL]["limit"] == {"context": 40_000, "output": 10_000}
        assert config["model"] == config["small_model"] == f"headrace/{MODEL}"
    else:
        provider = config["models"]["providers"]["headrace"]
        assert (provider["baseUrl"], provider["api"]) == (SERVER.url, "anthropic-messages")
        [model] = provider["models"]
        assert (model["contextWindow"], model["maxTokens"]) == (40_000, 10_000)
        assert model["reasoning"] is True
        assert config["agents"]["defaults"]["model"]["primary"] == f"headrace/{MODEL}"


def test_names_that_lead_to_hosted_models_are_known():
    cloud = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "CLAUDE_CODE_USE_BEDROCK"]
    cloud += ["ANTHROPIC_MODEL", "GEMINI_API_KEY", "AWS_BEARER_TOKEN_BEDROCK", "OPENROUTER_API_KEY"]
    others = ["PATH", "AWS_ACCESS_KEY_ID", "GITHUB_TOKEN", "MY_API_KEY", "OPENAPI_KEY", "EDITOR"]
    assert cloud_names([*cloud, *others]) == sorted(cloud)


def test_an_agent_is_shown_its_setup_and_started_with_it(run, url):
    run.install("claude")
    done = run("claude", "--", "-p", "hi", ANTHROPIC_API_KEY="cloud", OPENAI_API_KEY="cloud")
    assert done.returncode == 7, done.stderr
    assert f"ANTHROPIC_BASE_URL={url}" in done.stderr
    assert "OPENAI_API_KEY cleared" in done.stderr
    assert "cloud" not in done.stderr
    seen = run.saw()
    assert seen["argv"] == ["-p", "hi"]
    assert seen["env"]["ANTHROPIC_AUTH_TOKEN"] == "k"
    assert seen["env"]["ANTHROPIC_MODEL"] == "tiny"
    assert seen["env"]["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "5000"
    assert not {"ANTHROPIC_API_KEY", "OPENAI_API_KEY"} & set(seen["env"])


def test_a_config_file_is_there_when_the_agent_starts(run, tmp_path):
    run.install("codex")
    assert run("codex").returncode == 7
    folder = Path(run.saw()["env"]["CODEX_HOME"])
    assert folder == tmp_path / "home" / "launch" / "codex"
    assert tomllib.loads((folder / "config.toml").read_text())["model"] == "tiny"
    assert [p.name for p in folder.iterdir()] == ["config.toml"]


@pytest.mark.parametrize("agent", AGENTS)
def test_a_dry_run_shows_all_and_does_nothing(run, tmp_path, agent):
    run.install(agent)
    done = run(agent, "--dry-run", "--json", "--", "-x")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["command"] == [agent, "-x"]
    assert "***" in told["environment"].values()
    assert run.saw() is None
    assert not (tmp_path / "home").exists()
    assert agent in run(agent, "--dry-run").stdout


def test_what_is_not_installed_is_not_installed_but_told(run):
    done = run("opencode")
    assert done.returncode == 2
    assert "npm install -g opencode-ai" in done.stderr


def test_faults_are_told(run):
    assert run("emacs").returncode == 2
    environment = {**os.environ, "HEADRACE_HOME": "/nowhere"}
    done = subprocess.run(
        [*COMMAND, "claude", "--dry-run", "--server", "http://127.0.0.1:1"],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 1
    assert "headrace serve" in done.stderr
    given = [*COMMAND, "claude", "--dry-run", "--server", "127.0.0.1:1", "--model", "m"]
    done = subprocess.run([*given, "--context", "9"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ANTHROPIC_BASE_URL=http://127.0.0.1:1" in done.stdout
