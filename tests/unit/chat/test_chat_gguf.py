"""Tokenizers out of GGUF metadata give the ids of the tokenizer that the metadata was made of."""
# ruff: noqa: E501  patterns are quoted as they were published

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers

from headrace.chat.gguf import templates_of, tokenizer_json, tokenizer_of
from headrace.chat.renderer import Renderer
from headrace.chat.tokenizer import Tokenizer
from headrace.errors import CheckpointError

CORPUS = (
    "the cat sat on the mat, and the dog ran over 1234567 hills in 1984; they'll say it's fine",
    "def add(a, b):\n\treturn a + b  # naïve, WON'T overflow\n\n\n    Class HTTPServer(object)",
    "Ünïcödé and 你好世界 and 🙂 हिन्दी देवनागरी they're all bytes in the end /path/to//file\r\n",
)
# As published in the tokenizer.json of Qwen3, Qwen3.5, gpt-oss, Llama 3 and Mistral Nemo;
# GLM-4.5 has Llama's, MiniMax-M2 that of gpt-oss.
PATTERNS = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "gpt-4o": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "tekken": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
PATTERNS |= {"glm4": PATTERNS["llama-bpe"], "minimax-m2": PATTERNS["gpt-4o"]}
PATTERNS |= dict.fromkeys(("lfm2", "pixtral"), PATTERNS["llama-bpe"])
# As published in the tokenizer.json of DeepSeek-V3: one after another.
SEQUENCES = {
    "deepseek-v3": (
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    ),
}
KINDS = (*PATTERNS, *SEQUENCES, "gpt-2", "olmo", "smollm")
SPECIAL, USER = ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), ("<think>", "</think>")
TEXTS = st.one_of(
    st.sampled_from(CORPUS),
    st.text(max_size=60),
    st.lists(
        st.sampled_from([*CORPUS[0].split(), *CORPUS[2].split(), " ", "\n", "  ", "12", *USER]),
        max_size=12,
    ).map("".join),
).filter(lambda text: text.encode("utf-8", "ignore").decode() == text)


def trained(kind: str) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    patterns = SEQUENCES.get(kind, (PATTERNS[kind],) if kind in PATTERNS else ())
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not patterns)
    steps = [*(pre_tokenizers.Split(Regex(p), "isolated") for p in patterns), plain]
    if kind == "smollm":
        steps = [pre_tokenizers.Digits(individual_digits=True), plain]
    made.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if kind in ("qwen2", "qwen35", "olmo"):
        made.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS * 3, trainer)
    made.add_tokens(list(USER))
    return made


def metadata(made: tokenizers.Tokenizer, kind: str) -> dict[str, Any]:
    """As converters write it."""
    described = json.loads(made.to_str())
    size = made.get_vocab_size()
    types = [1] * size
    for token in described["added_tokens"]:
        types[token["id"]] = 3 if token["special"] else 4
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": kind,
        "tokenizer.ggml.tokens": [made.id_to_token(i) for i in range(size)] + ["[PAD]"],
        "tokenizer.ggml.token_type": [*types, 5],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in described["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest) -> tuple[tokenizers.Tokenizer, Tokenizer]:
    made = trained(request.param)
    config = {"vocab_size": 500, "eos_token_id": [2]}
    return made, tokenizer_of(metadata(made, request.param), config, "m.gguf")


@given(text=TEXTS)
def test_ids_are_those_of_the_original(
    pair: tuple[tokenizers.Tokenizer, Tokenizer], text: str
) -> None:
    made, found = pair
    ids = made.encode(text, add_special_tokens=False).ids
    assert found.encode(text, special=True) == ids
    wanted = made.normalizer.normalize_str(text) if made.normalizer else text
    assert found.decode(ids, skip_special=False) == wanted


def test_special_tokens_are_told_apart(pair: tuple[tokenizers.Tokenizer, Tokenizer]) -> None:
    made, found = pair
    text = f"{SPECIAL[1]}a{USER[0]}b{SPECIAL[2]}"
    ids = made.encode(text).ids
    assert ids[0] == 1
    assert found.encode(text, special=True) == ids
    assert found.encode(SPECIAL[2], special=False) != [2]
    assert found.decode(ids) == f"a{USER[0]}b"
    assert found.special_ids >= {0, 1, 2}
    assert found.eos_ids == {2}
    assert found.vocab_size == 500
    assert found.token_bytes(made.get_vocab_size()) == b""  # [PAD] is no text


@pytest.mark.parametrize(("kind", "expected"), [("llama-bpe", True), ("qwen2", False)])
@pytest.mark.parametrize("said", [None, True, False])
def test_the_first_token(kind: str, said: bool | None, *, expected: bool) -> None:
    told = metadata(trained(kind), kind) | {"tokenizer.ggml.bos_token_id": 1}
    if said is not None:
        told["tokenizer.ggml.add_bos_token"] = said
    found = tokenizer_of(told, {}, "m.gguf")
    assert found.bos_id == (1 if (expected if said is None else said) else None)


def test_templates() -> None:
    told = metadata(trained("gpt-2"), "gpt-2")
    told["tokenizer.chat_templates"] = ["tool_use"]
    told["tokenizer.chat_template.tool_use"] = "with tools"
    assert templates_of(told) == {
        "default": "{% for m in messages %}{{ m.content }}{% endfor %}",
        "tool_use": "with tools",
    }
    renderer = Renderer.from_gguf(told, {"eos_token_id": [2]}, "m.gguf")
    assert renderer.template is not None
    assert renderer.template.render([{"role": "user", "content": "hi"}]) == "hi"
    del told["tokenizer.chat_template"], told["tokenizer.chat_template.tool_use"]
    assert Renderer.from_gguf(told, {}, "m.gguf").template is not None  # ChatML by its marks


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "\u2581"]
WORDS = ["\u2581the", "\u2581cat", "cat", "at", "th", "he", "\u2581t", "\u2581c", "ca", "in", "ing"]
LETTERS = [*"abcdefghijklmnopqrstuvwxyz", "ä", "你"]


def spm() -> dict[str, Any]:
    pieces = [*PIECES, *WORDS, *LETTERS]
    scores = {word: -float(n) for n, word in enumerate(WORDS)}
    types = [2, 3, 3, *[6] * 256, *[1] * (len(pieces) - 259)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [scores.get(piece, -1000.0) for piece in pieces],
        "tokenizer.ggml.token_type": types,
    }


def merged(text: str, pieces: dict[str, int], scores: list[float]) -> list[int]:
    """SentencePiece's merging, as slow as it is plain: the best neighbours first, the left one
    where two are equal.
    """
    parts = list("\u2581" + text.replace(" ", "\u2581")) if text else []
    while True:
        joined = [
            (-scores[pieces[a + b]], i)
            for i, (a, b) in enumerate(itertools.pairwise(parts))
            if a + b in pieces
        ]
        if not joined:
            break
        at = min(joined)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    ids: list[int] = []
    for part in parts:
        known = pieces.get(part)
        ids += [known] if known is not None else [pieces[f"<0x{b:02X}>"] for b in part.encode()]
    return ids


@given(
    text=st.one_of(
        st.text(max_size=20).filter(lambda t: t.encode("utf-8", "ignore").decode() == t),
        st.lists(st.sampled_from([*WORDS, *LETTERS, " the", " cat", " "]), max_size=12).map(
            "".join
        ),
    ).filter(lambda t: not any(s in t for s in ("<unk>", "<s>", "</s>", "<0x")))
)
def test_scores_decide_what_is_merged(text: str) -> None:
    told = spm()
    found = tokenizer_of(told, {}, "m.gguf")
    text = text.replace("\u2581", " ")
    pieces = {piece: i for i, piece in enumerate(told["tokenizer.ggml.tokens"])}
    ids = merged(text, pieces, told["tokenizer.ggml.scores"])
    assert found.encode(text, special=False) == ids
    assert found.decode(ids) == text
    assert found.bos_id == 1


def test_gemma_4_has_merges_and_blanks_with_a_sign() -> None:
    """Against a tokenizer that was trained so, with pairs whose order differs from their scores'."""
    model = tokenizers.models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    original = tokenizers.Tokenizer(model)
    original.normalizer = tokenizers.normalizers.Replace(" ", "\u2581")
    original.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("\u2581", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
        ]
    )
    known = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{b:02X}>" for b in range(256))]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=420, special_tokens=known)
    original.train_from_iterator(
        ["the cat sat on the mat\n\n  and sang", "then the rat"] * 9, trainer
    )
    held = json.loads(original.to_str())["model"]
    tokens = sorted(held["vocab"], key=held["vocab"].get)
    told = {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": [3, 3, 3, 2, *[6] * 256, *[1] * (len(tokens) - 260)],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in held["merges"]],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
    }
    found = tokenizer_of(told, {}, "m.gguf")
    for text in ("the cat", "  a\n\n rat sang", "äx", "then the mat", "你 好 the"):
        ids = original.encode(text, add_special_tokens=False).ids
        assert found.encode(text, special=False) == ids
        assert found.decode(ids) == text
    assert found.bos_id == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokenizer.ggml.model": "t5"}, "tokenizer.ggml.model = 't5'"),
        ({"tokenizer.ggml.model": None}, "tokenizer.ggml.model = None"),
        ({"tokenizer.ggml.pre": "cuneiform"}, "tokenizer.ggml.pre = 'cuneiform'"),
        ({"tokenizer.ggml.tokens": []}, "tokens is missing"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "tokens is missing"),
        ({"tokenizer.ggml.token_type": [1]}, "token_type does not fit"),
        ({"tokenizer.ggml.merges": None}, "merges is missing"),
        ({"tokenizer.ggml.merges": ["ab"]}, "the merge 'ab'"),
        ({"tokenizer.ggml.merges": ["no such"]}, "tokenizer"),
        ({"tokenizer.ggml.model": "llama"}, "scores is missing"),
    ],
)
def test_what_is_wrong_is_told(change: dict[str, Any], said: str) -> None:
    told = metadata(trained("gpt-2"), "gpt-2") | change
    with pytest.raises(CheckpointError, match=r"m\.gguf") as caught:
        tokenizer_of(told, {}, "m.gguf")
    assert said in str(caught.value)


def test_tokens_that_occur_twice_keep_the_first_id() -> None:
    told = metadata(trained("gpt-2"), "gpt-2")
    told["tokenizer.ggml.tokens"].append("the")
    told["tokenizer.ggml.token_type"].append(1)
    assert (
        tokenizer_json(told, "m")["model"]["vocab"]["the"] < len(told["tokenizer.ggml.tokens"]) - 1
    )


TOLD = metadata(trained("gpt-2"), "gpt-2")
STRANGE = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 1 << 40), st.floats(), st.text(max_size=4),
    st.sampled_from(["llama", "gpt2", "qwen2", "{{", "{% for %}"]),
    st.lists(st.one_of(st.text(max_size=3), st.integers(-1, 9), st.none()), max_size=4),
)  # fmt: skip


@given(data=st.data())
def test_any_metadata_gives_a_tokenizer_or_an_error_of_ours(data: st.DataObject) -> None:
    told = dict(TOLD) | {"tokenizer.ggml.scores": [0.0] * len(TOLD["tokenizer.ggml.tokens"])}
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(sorted(told)))
        value = told[key]
        if isinstance(value, list) and value and data.draw(st.booleans()):
            value = list(value)
            at = data.draw(st.integers(0, len(value) - 1))
            value[at] = data.draw(STRANGE)
            told[key] = value
        else:
            told[key] = data.draw(STRANGE)
    try:
        renderer = Renderer.from_gguf(told, {"eos_token_id": [2]}, "m.gguf")
    except CheckpointError:
        return
    renderer.tokenizer.encode("hello", special=True)
