"""Every call syntax as a tiny checkpoint: its marks as tokens or as text, and an answer in it.

The answers say the same in each: some text, then `edit` with ARGUMENTS, then `edit` without any.
"""

import json
from dataclasses import dataclass

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from headrace.chat.renderer import Renderer
from headrace.chat.template import ChatTemplate
from headrace.chat.tokenizer import Tokenizer, TokenizerFiles
from headrace.chat.types import Tool

EDIT = Tool(
    "edit",
    "Edits",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "size": {"type": "integer"},
            "all": {"type": "boolean"},
            "list": {"type": "array", "items": {"type": "string"}},
            "deep": {
                "type": "object",
                "properties": {"x": {"type": "string"}, "n": {"type": "number"}},
            },
        },
        "required": ["path"],
    },
)
ARGUMENTS = {
    "path": 'a "b" <c> é\n🙂',
    "size": -3,
    "all": True,
    "list": ["x", "y, z"],
    "deep": {"x": "{1}", "n": 1.5},
}
JSON = json.dumps(ARGUMENTS, ensure_ascii=False)
PARTS = {k: v if isinstance(v, str) else json.dumps(v) for k, v in ARGUMENTS.items()}
NS = "]<]minimax[>["
D = "｜DSML｜"


def _dsml(wrap):
    def parameter(key, value):
        flag = "true" if isinstance(ARGUMENTS[key], str) else "false"
        return f'<{D}parameter name="{key}" string="{flag}">{value}</{D}parameter>\n'

    tags = "".join(parameter(*item) for item in PARTS.items())
    return (
        f'\n\n<{D}{wrap}>\n<{D}invoke name="edit">\n{tags}</{D}invoke>\n'
        f'<{D}invoke name="edit">\n</{D}invoke>\n</{D}{wrap}>'
    )


def _glm(line):
    pairs = "".join(
        f"<arg_key>{k}</arg_key>{line}<arg_value>{v}</arg_value>{line}" for k, v in PARTS.items()
    )
    return f"<tool_call>edit{line}{pairs}</tool_call>{line}<tool_call>edit{line}</tool_call>"


def _minimax():
    tags = "".join(f'<parameter name="{k}">{v}</parameter>\n' for k, v in PARTS.items())
    return (
        f'\n<minimax:tool_call>\n<invoke name="edit">\n{tags}</invoke>\n<invoke name="edit">\n'
        "</invoke>\n</minimax:tool_call>"
    )


def _nested():
    def xml(value):
        if isinstance(value, dict):
            return "".join(f"{NS}<{k}>{xml(v)}{NS}</{k}>" for k, v in value.items())
        if isinstance(value, list):
            return "".join(f"{NS}<item>{xml(v)}{NS}</item>" for v in value)
        return value if isinstance(value, str) else json.dumps(value)

    return (
        f'{NS}<tool_call>\n{NS}<invoke name="edit">{xml(ARGUMENTS)}{NS}</invoke>\n'
        f'{NS}<invoke name="edit">{NS}</invoke>\n{NS}</tool_call>'
    )


def _gemma():
    def word(value):
        if isinstance(value, str):
            return f'<|"|>{value}<|"|>'
        if isinstance(value, dict):
            return "{" + ",".join(f"{k}:{word(v)}" for k, v in sorted(value.items())) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(word, value)) + "]"
        return json.dumps(value)

    return (
        f"<|tool_call>call:edit{word(ARGUMENTS)}<tool_call|><|tool_call>call:edit{{}}<tool_call|>"
    )


def _python():
    values = ", ".join(f"{k}={v!r}" for k, v in ARGUMENTS.items())
    return f"[edit({values}), edit()]"


HY = ":opensource"


def _hunyuan():
    pairs = "".join(
        f"<arg_key{HY}>{k}</arg_key{HY}>\n<arg_value{HY}>{v}</arg_value{HY}>\n"
        for k, v in PARTS.items()
    )
    first, second = (
        f"<tool_call{HY}>edit<tool_sep{HY}>\n{inside}</tool_call{HY}>\n" for inside in (pairs, "")
    )
    return f"<tool_calls{HY}>\n{first}{second}</tool_calls{HY}>"


SEP = "<｜tool▁sep｜>"
K = "<|tool_call"
FENCED = f"<｜tool▁call▁begin｜>function{SEP}edit\n```json\n%s\n```<｜tool▁call▁end｜>"
OBJECTS = f'{{"name": "edit", "arguments": {JSON}}}', '{"name": "edit", "arguments": {}}'
QWEN = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in PARTS.items())


@dataclass(frozen=True)
class Family:
    """`marks` are special tokens and `plain` others, of the vocabulary that has them."""

    syntax: str
    answer: str
    marks: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    signs: str = ""
    before: str = "I look."  # the text before the calls


_THINK = ("<think>", "</think>")
_TOOL = ("<tool_call>", "</tool_call>")
_DEEPSEEK = (
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", SEP, "<｜tool▁call▁end｜>"),
    "<｜tool▁calls▁end｜>",
)
_KIMI = tuple(
    f"{K}{end}|>"
    for end in ("s_section_begin", "s_section_end", "_begin", "_end", "_argument_begin")
)
_ARGS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

FAMILIES = {
    "hermes": Family(
        "hermes",
        "\n" + "\n".join(f"<tool_call>\n{o}\n</tool_call>" for o in OBJECTS),
        plain=_TOOL,
        signs="name arguments",
    ),
    "qwen": Family(
        "qwen_xml",
        f"\n<tool_call>\n<function=edit>\n{QWEN}</function>\n</tool_call>\n"
        "<tool_call>\n<function=edit>\n</function>\n</tool_call>",
        plain=_TOOL,
    ),
    "seed": Family(
        "seed",
        f"\n\n<seed:tool_call>\n<function=edit>\n{QWEN}</function>\n</seed:tool_call>\n"
        "<seed:tool_call>\n<function=edit>\n</function>\n</seed:tool_call>",
    ),
    "deepseek": Family(
        "deepseek",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>edit{SEP}{JSON}<｜tool▁call▁end｜>"
        f"<｜tool▁call▁begin｜>edit{SEP}{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        marks=_DEEPSEEK,
    ),
    "deepseek fenced": Family(
        "deepseek",
        f"<｜tool▁calls▁begin｜>{FENCED % JSON}\n{FENCED % '{}'}<｜tool▁calls▁end｜>",
        marks=_DEEPSEEK,
    ),
    "dsml": Family("dsml", _dsml("tool_calls"), marks=(D,)),
    "dsml as text": Family("dsml_functions", _dsml("function_calls"), plain=(D,)),
    "glm": Family("glm", _glm("\n"), plain=(*_TOOL, *_ARGS)),
    "glm tight": Family("glm_tight", _glm(""), marks=(*_TOOL, *_ARGS)),
    "minimax": Family("minimax", _minimax(), plain=("<minimax:tool_call>", "</minimax:tool_call>")),
    "nested": Family("minimax_nested", _nested(), marks=(NS,)),
    "kimi": Family(
        "kimi",
        f"{K}s_section_begin|>{K}_begin|>functions.edit:0{K}_argument_begin|>{JSON}{K}_end|>"
        f"{K}_begin|>functions.edit:1{K}_argument_begin|>{{}}{K}_end|>{K}s_section_end|>",
        marks=_KIMI,
    ),
    "gemma": Family("gemma", _gemma(), marks=("<|tool_call>", "<tool_call|>", '<|"|>')),
    "mistral": Family(
        "mistral",
        f"[TOOL_CALLS]edit[ARGS]{JSON}[TOOL_CALLS]edit[CALL_ID]abc[ARGS]{{}}",
        marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    ),
    "mistral list": Family(
        "mistral", f"[TOOL_CALLS][{', '.join(OBJECTS)}]", marks=("[TOOL_CALLS]",)
    ),
    "rows": Family(
        "json_rows", "\n<tool_calls>\n" + "\n".join(OBJECTS) + "\n</tool_calls>", signs="name"
    ),
    "hunyuan": Family(
        "hunyuan",
        _hunyuan(),
        marks=(
            *(f"<{m}{HY}>" for m in ("tool_calls", "/tool_calls", "tool_call", "/tool_call")),
            *(f"<{m}{HY}>" for m in ("tool_sep", "arg_key", "/arg_key")),
            *(f"<{m}{HY}>" for m in ("arg_value", "/arg_value")),
        ),
    ),
    "cohere": Family(
        "cohere",
        "<|START_ACTION|>[\n    "
        f'{{"tool_call_id": "0", "tool_name": "edit", "parameters": {JSON}}},\n    '
        '{"tool_call_id": "1", "tool_name": "edit", "parameters": {}}\n]<|END_ACTION|>',
        marks=("<|START_ACTION|>", "<|END_ACTION|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    "apertus": Family(
        "apertus",
        f'<|tools_prefix|>[{{"edit": {JSON}}}, {{"edit": {{}}}}]<|tools_suffix|>',
        marks=("<|tools_prefix|>", "<|tools_suffix|>"),
    ),
    "granite": Family(
        "granite",
        f"<|tool_call|>[{', '.join(OBJECTS)}]",
        marks=("<|tool_call|>",),
        signs="<|start_of_role|>",
    ),
    "gigachat": Family(
        "gigachat",
        "".join(f"<|function_call|>{o}" for o in OBJECTS),
        marks=("<|function_call|>",),
        signs="<|role_sep|>",
    ),
    "list": Family("json_list", f"\n<TOOLCALL>[{', '.join(OBJECTS)}]</TOOLCALL>"),
    "lfm": Family(
        "lfm",
        f"<|tool_call_start|>{_python()}<|tool_call_end|>",
        marks=("<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    "python": Family(
        "python",
        f"<|python_start|>{_python()}<|python_end|>",
        marks=("<|python_start|>", "<|python_end|>"),
    ),
    "python bare": Family("python", _python(), signs="<|python_start|>", before=""),
    "llama": Family(
        "llama_json",
        f'<|python_tag|>{{"name": "edit", "parameters": {JSON}}}'
        '<|python_tag|>{"name": "edit", "parameters": {}}',
        marks=("<|python_tag|>", "<|start_header_id|>"),
        signs='<|start_header_id|> "name" "parameters"',
    ),
}


def renderer_of(family, *, as_text=False):
    """`as_text`: a vocabulary without the family's marks."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    if not as_text:
        backend.add_special_tokens(list(family.marks))
        backend.add_tokens([*family.plain, *_THINK])
    files = TokenizerFiles(config={"eos_token": "<|im_end|>"})
    tokenizer = Tokenizer.from_json(backend.to_str(), files)
    source = (
        "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        "{# " + family.answer + family.signs + " #}"
    )
    return Renderer.of(tokenizer, ChatTemplate(source))
