"""The tiny checkpoints of this folder's tests."""

from __future__ import annotations

import pytest
from tiny_chat import HERMES_TEMPLATE, XML_TEMPLATE, byte_fallback_json, byte_level_json

from headrace.chat.renderer import Renderer
from headrace.chat.template import ChatTemplate
from headrace.chat.tokenizer import Tokenizer, TokenizerFiles

FILES = TokenizerFiles(config={"eos_token": "<|im_end|>"})


@pytest.fixture(scope="session")
def marked() -> Tokenizer:
    """Byte-level BPE with a token for each delimiter."""
    return Tokenizer.from_json(byte_level_json(marks=True), FILES)


@pytest.fixture(scope="session")
def plain() -> Tokenizer:
    """Byte-level BPE in which delimiters are ordinary text."""
    return Tokenizer.from_json(byte_level_json(marks=False), FILES)


@pytest.fixture(scope="session")
def fallback() -> Tokenizer:
    files = TokenizerFiles(
        config={"eos_token": "</s>", "bos_token": {"content": "<s>"}, "add_bos_token": True}
    )
    return Tokenizer.from_json(byte_fallback_json(), files)


@pytest.fixture(scope="session")
def hermes(marked: Tokenizer) -> Renderer:
    return Renderer.of(marked, ChatTemplate(HERMES_TEMPLATE))


@pytest.fixture(scope="session")
def xml(marked: Tokenizer) -> Renderer:
    return Renderer.of(marked, ChatTemplate(XML_TEMPLATE))


@pytest.fixture(scope="session")
def hermes_as_text(plain: Tokenizer) -> Renderer:
    return Renderer.of(plain, ChatTemplate(HERMES_TEMPLATE))


@pytest.fixture(scope="session")
def xml_as_text(plain: Tokenizer) -> Renderer:
    return Renderer.of(plain, ChatTemplate(XML_TEMPLATE))
