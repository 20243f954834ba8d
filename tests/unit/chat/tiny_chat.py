"""Tiny tokenizers and templates of our own: byte-level BPE and a byte-fallback vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

TEXT = """The water runs down the channel to the wheel, and the wheel turns the stone. A name, the
arguments, {"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}; so the miller reads
<function=get_weather>, <parameter=city> and says: true, false, null, 0.5, 12.
Über café 日本 🙂."""

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")

HEAD = """{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}Functions:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}SHOW<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}"""

TURNS = """{%- for message in messages %}
{%- if message.role == 'system' and not loop.first %}
{{- raise_exception('system comes first') }}
{%- elif message.role == 'user' %}<|im_start|>user
{{ message.content }}<|im_end|>
{% elif message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role == 'assistant' %}<|im_start|>assistant
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}{% for call in message.tool_calls or [] %}
<tool_call>
CALL
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}"""

HERMES_CALL = (
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
)
XML_CALL = """<function={{ call.function.name }}>
{% for key, value in call.function.arguments | items %}<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>"""

OPEN_THINK = """{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% else %}<think>
{% endif %}{% endif %}"""
FREE_THINK = """{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""

HERMES_TEMPLATE = (
    HEAD.replace("SHOW", '<tool_call>{"name": "", "arguments": {}}</tool_call>')
    + TURNS.replace("CALL", HERMES_CALL)
    + FREE_THINK
)
XML_TEMPLATE = (
    HEAD.replace("SHOW", "<tool_call><function=f><parameter=p></parameter></function></tool_call>")
    + TURNS.replace("CALL", XML_CALL)
    + OPEN_THINK
)


def byte_level_json(*, marks: bool) -> str:
    """tokenizer.json of a byte-level BPE; `marks` makes the delimiters tokens of their own."""
    tok = tokenizers.Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tok.train_from_iterator([TEXT], trainer)
    if marks:
        tok.add_tokens([tokenizers.AddedToken(m, normalized=False) for m in MARKS])
    return tok.to_str()


def byte_fallback_json() -> str:
    """A vocabulary as sentencepiece makes them: blanks as `▁`, `<0xNN>` for other bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁"]
    pieces += sorted(set('abcdefghijklmnopqrstuvwxyzTé,.{}":') | {"th", "▁t", "▁th", "he"})
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = [("t", "h"), ("▁", "t"), ("▁t", "h"), ("h", "e")]
    tok = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True)
    )
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tok.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tok.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tok.to_str()


def write_checkpoint(folder: Path, text: str, template: str | None, **config: object) -> Path:
    """A folder with tokenizer files as published checkpoints have them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    stated = {"eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated), encoding="utf-8")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder
