"""Templates and conversations that the tests of the chat formats share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mlx_tools.prompt import NAMED_FORMATS, ChatFormat, Neutraliser, Prompt, format_from_template
from mlx_tools.store import load_words
from mlx_tools.transcript.records import AnswerRecord, CompletionRecord, Record, UserRecord

TEMPLATES = Path(__file__).parent / "templates"
WORDS = load_words()


@dataclass(frozen=True)
class Model:
    """The configuration of a tokenizer beside the template."""

    bos: str = ""
    eos: str = "</s>"
    rewrites: bool = False  # the template changes earlier turns, or the place of the system text


MODELS = {
    "always-asks": Model(),
    "command-r": Model("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    "deepseek-r1": Model("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", rewrites=True),
    "deepseek-v3.1": Model("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "gemma2": Model("<bos>", "<eos>"),
    "gemma3": Model("<bos>", "<eos>"),
    "gemma4": Model("<bos>", "<eos>", rewrites=True),
    "glm4.6": Model("", "<|endoftext|>"),
    "gpt-oss": Model("<|startoftext|>", "<|return|>"),
    "llama2": Model("<s>", "</s>"),
    "llama3.1": Model("<|begin_of_text|>", "<|eot_id|>"),
    "llama3.2": Model("<|begin_of_text|>", "<|eot_id|>"),
    "magistral": Model("<s>", "</s>"),
    "mistral-nemo": Model("<s>", "</s>", rewrites=True),
    "mistral-small": Model("<s>", "</s>"),
    "mistral-v0.3": Model("<s>", "</s>", rewrites=True),
    "needs-system": Model(),
    "nemotron-nano": Model("<s>", "<SPECIAL_12>", rewrites=True),
    "parts-only": Model("<|im_start|>", "<end_of_utterance>"),
    "phi3": Model("<s>", "<|endoftext|>"),
    "phi4": Model("", "<|im_end|>"),
    "phi4-mini": Model("", "<|endoftext|>"),
    "qwen2.5": Model("", "<|im_end|>"),
    "qwen3": Model("", "<|im_end|>"),
    "qwen3-thinking": Model("", "<|im_end|>", rewrites=True),
    "qwen3.5": Model("", "<|im_end|>", rewrites=True),
    "smollm2": Model("<|im_start|>", "<|im_end|>"),
    "vicuna": Model("<s>", "</s>"),
}


def load_template(name: str) -> str:
    """Return the text of a template by its file name."""
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


@cache
def load_format(name: str, *, adds_bos: bool = False) -> ChatFormat:
    """Return the chat format of a template of `MODELS`."""
    model = MODELS[name]
    return format_from_template(
        load_template(name),
        name=name,
        bos_token=model.bos,
        eos_token=model.eos,
        special_tokens=[token for token in (model.bos, model.eos) if token],
        adds_bos=adds_bos,
    )


@cache
def list_formats() -> dict[str, ChatFormat]:
    """Return all formats to test: the named ones, and one for each template."""
    return {**NAMED_FORMATS, **{f"from {name}": load_format(name) for name in MODELS}}


@cache
def _compile_template(template: str) -> jinja2.Template:
    """Compile a template in the same way as transformers."""

    def refuse(message: str) -> NoReturn:
        raise jinja2.exceptions.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **given: json.dumps(
        value, **{"ensure_ascii": False, **given}
    )
    now = date(2024, 7, 26).strftime
    environment.globals |= {"raise_exception": refuse, "strftime_now": now}
    return environment.from_string(load_template(template))


def render_as_transformers(template: str, **options: Any) -> str:
    """Render a template in the same way as transformers."""
    return _compile_template(template).render(add_generation_prompt=True, **options)


def render_conversation(name: str, messages: Sequence[tuple[str, str]], **options: Any) -> str:
    """Render a conversation of roles and texts with a template of `MODELS`."""
    parts = name == "parts-only"
    sent = [
        {"role": role, "content": [{"type": "text", "text": text}] if parts else text}
        for role, text in messages
    ]
    tokens = {"bos_token": MODELS[name].bos, "eos_token": MODELS[name].eos}
    return render_as_transformers(name, messages=sent, **tokens, **options)


def make_records(messages: Sequence[tuple[str, str]]) -> list[Record]:
    """Return the records of a conversation."""
    records: list[Record] = []
    for turn, (role, text) in enumerate(messages):
        if role == "user":
            records.append(UserRecord(content=text))
        elif role == "assistant":
            records.append(CompletionRecord(turn=turn, text=text, retained_text=text))
            records.append(AnswerRecord(turn=turn, content=text))
    return records


def make_prompt(
    chat_format: ChatFormat, *, system: str = "", style: str = "jsonl", **more: Any
) -> Prompt:
    """Return a prompt without examples."""
    return Prompt(
        chat_format=chat_format,
        style=style,
        system=system,
        neutraliser=Neutraliser(chat_format.control_tokens),
        words=WORDS,
        **more,
    )


def fold_records(*records: Record, chat_format: ChatFormat | None = None, **more: Any) -> Prompt:
    """Return a prompt with these records, by default in ChatML."""
    prompt = make_prompt(chat_format or NAMED_FORMATS["chatml"], **more)
    for record in records:
        prompt.add(record)
    return prompt


def join_conversation(
    chat_format: ChatFormat, messages: Sequence[tuple[str, str]], **more: Any
) -> str:
    """Return the text of a conversation that a `Prompt` put together."""
    system = messages[0][1] if messages[0][0] == "system" else ""
    return fold_records(
        *make_records(messages), chat_format=chat_format, system=system, **more
    ).render()
