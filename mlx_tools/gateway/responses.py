"""OpenAI's ``/v1/responses`` as Open Responses specifies it: a body in, events out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mlx_tools.gateway.body import JsonObject, check_plain, read
from mlx_tools.gateway.request import (
    DONE,
    ApiError,
    ArgumentsMore,
    CallBegun,
    ClientCall,
    ClientMessage,
    Reply,
    TextPiece,
    TurnDone,
    TurnEvent,
    TurnRequest,
    server_sent,
)
from mlx_tools.gateway.responses_body import (
    ResponsesBody,
    check_supported,
    choice_of,
    messages_of,
    schema_of,
    told_format,
    tools_of,
)
from mlx_tools.messages import Usage


def responses_error(error: ApiError) -> JsonObject:
    """The body that tells of an error. The conversation is called ``messages`` elsewhere."""
    param = "input" if error.param == "messages" else error.param
    told = {"message": str(error), "type": error.type, "param": param, "code": error.code}
    return {"error": told}


# --- reading --------------------------------------------------------------------------------------


def read_responses(
    body: Mapping[str, Any],
    *,
    new_id: Callable[[], str],
    now: Callable[[], float],
    temperature: float = 1.0,
) -> tuple[TurnRequest, Reply]:
    """What a body asks for, and how it is answered. Raises `ApiError`.

    ``new_id`` gives letters and digits that nobody else has, ``now`` is in seconds since 1970.
    ``temperature`` is what the model is sampled with where the body does not say.
    """
    check_plain(body)
    asked = read(ResponsesBody, body)
    check_supported(asked)
    offered = tools_of(asked.tools or ())
    choice = choice_of(asked.tool_choice, offered)
    instructions = [ClientMessage("system", asked.instructions)] if asked.instructions else []
    request = TurnRequest(
        messages=(*instructions, *messages_of(asked.input)),
        model=asked.model or "",
        tools=offered.specs,
        tool_choice=choice.tool,
        allowed=choice.allowed,
        parallel=asked.parallel_tool_calls is not False,
        schema=schema_of(asked.text),
        sampling=asked.sampling(),
        max_tokens=asked.max_output_tokens,
        left_out=(*asked.left_out(), *offered.left_out),
    )
    mark, created = new_id(), now()
    about = {
        **_about(asked, temperature),
        "id": f"resp_{mark}",
        "created_at": int(created),
        "tools": list(offered.told),
        "tool_choice": choice.told,
    }
    return request, ResponsesReply(about, offered.names, now, streamed=bool(asked.stream))


def _about(asked: ResponsesBody, temperature: float) -> JsonObject:
    """What of a request its response says again, and what was made of the rest."""
    return {
        "object": "response",
        "model": asked.model or "",
        "previous_response_id": None,
        "instructions": asked.instructions,
        "truncation": "disabled",
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "text": {"format": told_format(asked.text)},
        "top_p": 1.0 if asked.top_p is None else asked.top_p,
        "presence_penalty": asked.presence_penalty or 0.0,
        "frequency_penalty": asked.frequency_penalty or 0.0,
        "top_logprobs": 0,
        "temperature": temperature if asked.temperature is None else asked.temperature,
        "reasoning": None,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": asked.max_tool_calls,
        "store": False,
        "background": False,
        "service_tier": "default",
        "metadata": asked.metadata or {},
        "safety_identifier": asked.safety_identifier,
        "prompt_cache_key": asked.prompt_cache_key,
    }


_PREFIX: Final = {"message": "msg", "function_call": "fc"}


# --- writing --------------------------------------------------------------------------------------


@dataclass
class ResponsesReply:
    """A response that is made of a turn, in one piece or as events.

    ``about`` is what it says of its request, ``names`` are namespace and name of each tool by the
    name that the turn knows.
    """

    about: JsonObject
    names: Mapping[str, tuple[str, str]]
    now: Callable[[], float]
    streamed: bool
    _output: list[JsonObject] = field(default_factory=list, init=False)
    _calls: list[int] = field(default_factory=list, init=False)
    _message: int | None = field(default=None, init=False)
    _text: list[str] = field(default_factory=list, init=False)
    _number: int = field(default=-1, init=False)
    _whole: JsonObject = field(default_factory=dict, init=False)

    def begin(self) -> Iterator[str]:
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._response("in_progress"))

    def take(self, event: TurnEvent) -> Iterator[str]:
        match event:
            case TextPiece(text):
                yield from self._say(text)
            case CallBegun(_, id, name):
                yield from self._close_message()
                self._calls.append(len(self._output))
                yield from self._add("function_call", **self._named(name), call_id=id, arguments="")
            case ArgumentsMore(index, text):
                kind = "response.function_call_arguments.delta"
                yield self._event(kind, **self._at(self._calls[index]), delta=text)
            case TurnDone():
                yield from self._end(event)

    def fail(self, error: ApiError) -> Iterable[str]:
        told = responses_error(error)
        # The specification has the error in a field of its own, OpenAI's client at the top.
        beside = {name: told["error"][name] for name in ("message", "param", "code")}
        yield self._event("error", **beside, **told)
        why = {"code": error.code, "message": str(error)}
        response = self._response("failed", output=self._ended(), error=why)
        yield self._event("response.failed", response=response)
        yield DONE

    def whole(self, done: TurnDone) -> JsonObject:
        for event in (*done.pieces(), done):
            for _ in self.take(event):
                pass
        return self._whole

    # --- pieces -----------------------------------------------------------------------------------

    def _named(self, name: str) -> JsonObject:
        namespace, own = self.names.get(name, ("", name))
        return {"name": own, "namespace": namespace} if namespace else {"name": own}

    def _say(self, text: str) -> Iterator[str]:
        if self._message is None:
            self._message = len(self._output)
            yield from self._add("message", role="assistant", content=[])
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield self._event("response.content_part.added", **self._in_message(), part=part)
            self._output[self._message]["content"].append(part)
        if text:
            self._text.append(text)
            more = {"delta": text, "logprobs": []}
            yield self._event("response.output_text.delta", **self._in_message(), **more)

    def _add(self, kind: str, **fields: Any) -> Iterator[str]:
        at = len(self._output)
        mark = self.about["id"].removeprefix("resp_")
        item = {"id": f"{_PREFIX[kind]}_{mark}o{at}", "type": kind, "status": "in_progress"}
        self._output.append({**item, **fields})
        yield self._event("response.output_item.added", output_index=at, item=self._output[at])

    def _close_message(self, status: str = "completed") -> Iterator[str]:
        if self._message is None:
            return
        part = self._output[self._message]["content"][0]
        part["text"] = "".join(self._text)
        whole = {"text": part["text"], "logprobs": []}
        yield self._event("response.output_text.done", **self._in_message(), **whole)
        yield self._event("response.content_part.done", **self._in_message(), part=part)
        yield self._done(self._message, status)
        self._message = None
        self._text.clear()

    def _close_calls(self, calls: Sequence[ClientCall]) -> Iterator[str]:
        """The events that end the calls. None is ended before the turn is, since a client runs
        what it is told is done; one that was cut off never is."""
        for at, call in zip(self._calls, calls, strict=False):
            item = self._output[at]
            item["arguments"] = call.arguments
            whole = {"name": item["name"], "arguments": call.arguments}
            kind = "response.function_call_arguments.done"
            yield self._event(kind, **self._at(at), **whole)
            yield self._done(at, "completed")

    def _done(self, at: int, status: str) -> str:
        self._output[at]["status"] = status
        return self._event("response.output_item.done", output_index=at, item=self._output[at])

    def _in_message(self) -> JsonObject:
        return {**self._at(self._message or 0), "content_index": 0}

    def _at(self, index: int) -> JsonObject:
        return {"item_id": self._output[index]["id"], "output_index": index}

    # --- ends -------------------------------------------------------------------------------------

    def _end(self, done: TurnDone) -> Iterator[str]:
        status = "incomplete" if done.finish == "length" else "completed"
        cut = status == "incomplete"
        if not self._output and not cut:
            yield from self._say("")
        yield from self._close_message(status)
        yield from self._close_calls(done.calls)
        self.about["model"] = done.model or self.about["model"]
        self._whole = self._response(
            status,
            output=self._ended(),
            usage=_usage(done.usage),
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            completed_at=None if cut else int(self.now()),
        )
        yield self._event(f"response.{status}", response=self._whole)
        yield DONE

    def _ended(self) -> list[JsonObject]:
        return [item for item in self._output if item["status"] != "in_progress"]

    def _response(self, status: str, **ends: Any) -> JsonObject:
        nothing: JsonObject = {
            "status": status,
            "completed_at": None,
            "incomplete_details": None,
            "error": None,
            "output": [],
            "usage": None,
        }
        return {**self.about, **nothing, **ends}

    def _event(self, kind: str, **fields: Any) -> str:
        self._number += 1
        return server_sent({"type": kind, "sequence_number": self._number, **fields}, kind)


def _usage(usage: Usage) -> JsonObject | None:
    """The tokens of a response, None where the server did not report them."""
    read, written = usage.prompt_tokens, usage.completion_tokens
    if read is None or written is None:
        return None
    return {
        "input_tokens": read,
        "output_tokens": written,
        "total_tokens": read + written,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
