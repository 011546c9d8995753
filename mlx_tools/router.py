"""Which chat format a model is spoken to in, and where that was learnt."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mlx_tools.backends.base import Backend
from mlx_tools.errors import ChatFormatError
from mlx_tools.models.files import ModelFiles, read_model_files
from mlx_tools.prompt import (
    NAMED_FORMATS,
    ChatFormat,
    format_for_name,
    format_from_template,
)


@dataclass(frozen=True, slots=True)
class FoundFormat:
    """A chat format and, in a few words, where it comes from.

    ``doubt`` is one line for a person where it is a mere guess, empty elsewhere.
    """

    chat_format: ChatFormat
    source: str
    doubt: str = ""


def find_chat_format(
    wanted: str = "auto", *, files: ModelFiles | None = None, model: str | None = None
) -> FoundFormat:
    """The chat format to use.

    ``wanted`` names one, or is ``auto``: then the model's own template decides, where its files are
    on this machine, and else its name. Control tokens that the files name are neutralised with any
    format. Raises `ChatFormatError` for a name that is unknown and a template that is of no use.
    """
    if wanted != "auto":
        if wanted not in NAMED_FORMATS:
            raise ChatFormatError(
                f"{wanted!r} is no chat format", hint=f"use auto, {', '.join(NAMED_FORMATS)}"
            )
        return FoundFormat(_guarded(NAMED_FORMATS[wanted], files), "named")
    if files is not None and files.chat_template is not None:
        found = format_from_template(
            files.chat_template,
            name=files.name,
            bos_token=files.bos_token or "",
            eos_token=files.eos_token or "",
            special_tokens=(*files.special_tokens, *files.end_tokens),
            adds_bos=files.adds_bos,
        )
        return FoundFormat(_guarded(found, files), "the model's own template")
    found = format_for_name(model or "")
    doubt = _doubt(model) if found is NAMED_FORMATS["plain"] else ""
    return FoundFormat(_guarded(found, files), f"the model's name ({found.name})", doubt)


async def find_served_format(
    backend: Backend, wanted: str = "auto", *, files: ModelFiles | None, model: str | None
) -> FoundFormat:
    """Like `find_chat_format`, for the model behind ``backend``.

    Where nothing names the model, mlx-lm's server is asked in a few short requests which format
    its own chat endpoint writes.
    """
    from mlx_tools.backends.completions import CompletionsBackend
    from mlx_tools.backends.template_probe import hides_its_model, probe_chat_format

    found = find_chat_format(wanted, files=files, model=model)
    nameless = wanted == "auto" and files is None and model is None
    if nameless and isinstance(backend, CompletionsBackend) and await hides_its_model(backend):
        probed = await probe_chat_format(backend)
        if probed is not None:
            return FoundFormat(probed, f"the server's own chat endpoint ({probed.name})")
    return found


async def format_of(backend: Backend) -> ChatFormat:
    """The chat format of the model behind ``backend``.

    Raises `BackendUnreachable` where a server does not answer.
    """
    from mlx_tools.backends.choose import look_at
    from mlx_tools.backends.completions import CompletionsBackend
    from mlx_tools.backends.local import LocalBackend
    from mlx_tools.backends.server import ServerBackend

    model = model_of(backend)
    files: ModelFiles | None = None
    if isinstance(backend, ServerBackend | LocalBackend):
        model, files = str(backend.model), read_model_files(backend.model)
    elif isinstance(backend, CompletionsBackend):
        chosen = await look_at(backend)
        model, files = chosen.model, chosen.files
    return (await find_served_format(backend, files=files, model=model)).chat_format


def model_of(backend: Backend) -> str | None:
    """The name of the model behind ``backend``, where the backend says one."""
    model = getattr(backend, "model", None)
    return model if isinstance(model, str) else None


def _doubt(model: str | None) -> str:
    known = f"that of {model} is not known" if model else "nothing says which model is served"
    return (
        f"the chat format plain is a guess, since {known}: "
        "set it with --chat-format, or name the model with --model"
    )


def _guarded(chat_format: ChatFormat, files: ModelFiles | None) -> ChatFormat:
    """The format with the control tokens that the model's files name."""
    if files is None:
        return chat_format
    tokens = (*chat_format.control_tokens, *files.special_tokens, *files.end_tokens)
    known = tuple(dict.fromkeys(token for token in tokens if token))
    bos = "" if files.adds_bos else chat_format.bos
    return replace(chat_format, control_tokens=known, bos=bos)
