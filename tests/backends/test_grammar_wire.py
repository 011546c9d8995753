"""A grammar reaches a server in the option that it takes; one that takes none is not asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from mlx_tools.backends import CompletionsBackend, GrammarText
from mlx_tools.errors import BackendRefused, UsageError
from tests.backends.asking import ask
from tests.backends.loopback import SSE, Connection, says, serving

GRAMMAR = GrammarText('root ::= "held"', 'start: "held"')
OPTIONS = ("grammar", "structured_outputs", "guided_grammar")


def grammar_in(body: Mapping[str, Any]) -> dict[str, str]:
    """The options for grammars in a request's body, each with its grammar."""
    found = {option: body[option] for option in OPTIONS if option in body}
    return {k: v["grammar"] if isinstance(v, Mapping) else v for k, v in found.items()}


def server(takes: str, bodies: list[dict[str, Any]]) -> Callable[[Connection], None]:
    """Follows a grammar of one literal where it stands in the option that it takes."""

    def complete(request: Connection) -> None:
        bodies.append(request.body)
        given = grammar_in(request.body).get(takes)
        text = given.split('"')[1] if given else "free"
        if request.body["stream"]:
            request.send(SSE)
            request.text(text, "stop")
            request.done()
        else:
            request.answer(200, {"choices": [{"text": text, "finish_reason": "stop"}]})

    return complete


@pytest.mark.parametrize("option", OPTIONS)
def test_the_option_is_found_once_and_used(option: str) -> None:
    bodies: list[dict[str, Any]] = []
    with serving(server(option, bodies)) as running:
        backend = CompletionsBackend(running.url)
        assert ask(backend, "Go", grammar=GRAMMAR)[0] == "held"
        probes = len(bodies) - 1
        assert probes == OPTIONS.index(option) + 1
        assert ask(backend, "Go on", grammar=GRAMMAR)[0] == "held"
        assert ask(backend, "Go free")[0] == "free"
        assert len(bodies) == probes + 3
    assert grammar_in(bodies[probes]) == {option: GRAMMAR.gbnf}
    assert grammar_in(bodies[-1]) == {}


def test_a_server_without_grammars_is_not_asked_for_the_completion() -> None:
    bodies: list[dict[str, Any]] = []
    with serving(server("none", bodies)) as running:
        backend = CompletionsBackend(running.url)
        with pytest.raises(UsageError, match="does not take grammars") as caught:
            ask(backend, "Go", grammar=GRAMMAR)
        assert "--backend local" in str(caught.value.hint)
    assert all(body["prompt"] != "Go" for body in bodies)


def test_a_server_that_refuses_unknown_options_has_none() -> None:
    def complete(request: Connection) -> None:
        if grammar_in(request.body):
            request.answer(400, {"error": "extra fields not permitted"})
        else:
            says("free")(request)

    with serving(complete) as running, pytest.raises(UsageError, match="does not take grammars"):
        ask(CompletionsBackend(running.url), "Go", grammar=GRAMMAR)


def test_a_grammar_that_the_server_cannot_read_is_its_error() -> None:
    def complete(request: Connection) -> None:
        given = grammar_in(request.body).get("grammar", "")
        if "zq7" in given:
            request.answer(200, {"choices": [{"text": "zq7", "finish_reason": "stop"}]})
        else:
            request.answer(400, {"error": {"message": "failed to parse grammar"}})

    with serving(complete) as running, pytest.raises(BackendRefused, match="failed to parse"):
        ask(CompletionsBackend(running.url), "Go", grammar=GRAMMAR)
