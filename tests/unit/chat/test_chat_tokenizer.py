"""Tokenizer files in every published shape, and broken ones."""

import json

import pytest
from tiny_chat import byte_fallback_json, byte_level_json, write_checkpoint

from headrace.chat.tokenizer import Tokenizer, TokenizerFiles
from headrace.errors import CheckpointError

SENTENCES = [
    "the wheel turns",
    "Über café 日本 🙂",
    "",
    "  two  blanks\n\n",
    "\x00\x7f",
    "👩‍👩‍👧 🇯🇵",
]


@pytest.mark.parametrize("text", SENTENCES)
def test_byte_level_agrees_with_the_library(marked, text):
    ids = marked.encode(text, special=True)
    assert ids == marked.backend.encode(text, add_special_tokens=False).ids
    assert marked.decode(ids) == text == marked.backend.decode(ids)


@pytest.mark.parametrize("text", [s for s in SENTENCES if s])
def test_byte_fallback_agrees_with_the_library(fallback, text):
    ids = fallback.encode(text, special=True)
    assert fallback.decode(ids) == text == fallback.backend.decode(ids)
    assert fallback.decode(ids, after_text=True) == " " + text


def test_bytes_of_every_token_are_those_of_the_table(marked, plain, fallback):
    for tokenizer in (marked, plain, fallback):
        table = tokenizer.byte_table
        assert len(table) == tokenizer.vocab_size
        assert [tokenizer.token_bytes(i) for i in range(len(table))] == list(table)
        assert tokenizer.token_bytes(-1) == tokenizer.token_bytes(len(table)) == b""
        assert all(table)


def test_control_tokens_are_read_only_where_asked(marked):
    end = marked.id_of("<|im_end|>")
    assert marked.encode("a<|im_end|>", special=True)[-1] == end
    ids = marked.encode("a<|im_end|>", special=False)
    assert end not in ids
    assert marked.decode(ids) == "a<|im_end|>"
    assert marked.decode([end]) == ""
    assert marked.decode([end], skip_special=False) == "<|im_end|>"


def test_bos_goes_in_front_once(fallback, marked):
    ids = fallback.encode("the", special=True)
    assert fallback.encode("the", special=True, bos=True) == [fallback.bos_id, *ids]
    assert fallback.encode("<s>the", special=True, bos=True).count(fallback.bos_id) == 1
    assert marked.bos_id is None
    assert marked.encode("the", special=True, bos=True) == marked.encode("the", special=True)


def test_bos_is_left_out_where_the_config_says_so():
    files = TokenizerFiles(config={"bos_token": "<s>", "add_bos_token": False})
    assert Tokenizer.from_json(byte_fallback_json(), files).bos_id is None


def test_bos_by_the_post_processor_where_the_config_is_silent():
    description = json.loads(byte_fallback_json())
    description["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    files = TokenizerFiles(config={"bos_token": "<s>"})
    assert Tokenizer.from_json(json.dumps(description), files).bos_id == 1


@pytest.mark.parametrize(
    ("generation", "model", "ends"),
    [
        ({"eos_token_id": [2, 5]}, {"eos_token_id": 7}, {2, 5}),
        ({"eos_token_id": 5}, {}, {5}),
        ({}, {"eos_token_id": 7}, {7}),
        ({}, {"text_config": {"eos_token_id": [8]}}, {8}),
        ({}, {}, set()),
        ({"eos_token_id": "x"}, {"eos_token_id": None}, set()),
    ],
)
def test_end_tokens_come_from_all_files(tmp_path, generation, model, ends):
    folder = write_checkpoint(tmp_path, byte_level_json(marks=True), None)
    (folder / "generation_config.json").write_text(json.dumps(generation))
    (folder / "config.json").write_text(json.dumps(model))
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.eos_ids == ends | {tokenizer.id_of("<|im_end|>")}


def test_vocabulary_is_as_large_as_the_models(tmp_path):
    folder = write_checkpoint(tmp_path, byte_level_json(marks=True), None)
    (folder / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 1000}}))
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.vocab_size == len(tokenizer.byte_table) == 1000
    assert tokenizer.token_bytes(999) == b""
    assert tokenizer.decode([999]) == ""


def test_end_token_from_the_special_tokens_map(tmp_path):
    folder = write_checkpoint(tmp_path, byte_level_json(marks=True), None, eos_token=None)
    (folder / "special_tokens_map.json").write_text('{"eos_token": {"content": "<|endoftext|>"}}')
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.eos_ids == {tokenizer.id_of("<|endoftext|>")}


def test_tokens_that_only_the_config_lists(tmp_path):
    size = Tokenizer.from_json(byte_level_json(marks=False)).vocab_size
    listed = {str(size): {"content": "<extra>", "special": True}, "x": 3, "9999": {"content": "y"}}
    folder = write_checkpoint(
        tmp_path, byte_level_json(marks=False), None, added_tokens_decoder=listed
    )
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode("<extra>", special=True) == [size]
    assert size in tokenizer.special_ids
    assert tokenizer.id_of("y") is None


def test_no_tokenizer_is_a_clear_error(tmp_path):
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json.*fetch tokenizer"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model": 3}', "\x00", "nul"])
def test_a_broken_tokenizer_names_the_file(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


def test_a_truncated_tokenizer_is_refused(tmp_path):
    whole = byte_level_json(marks=True)
    (tmp_path / "tokenizer.json").write_text(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(CheckpointError, match="UTF-8"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json", "config.json"])
@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000])
def test_a_broken_companion_names_the_file(tmp_path, name, text):
    write_checkpoint(tmp_path, byte_level_json(marks=True), None)
    (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        Tokenizer.from_folder(tmp_path)


def test_an_unknown_decoder_is_named():
    description = json.loads(byte_level_json(marks=True))
    description["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    tokenizer = Tokenizer.from_json(json.dumps(description))
    with pytest.raises(CheckpointError, match="WordPiece"):
        tokenizer.decode([5])
