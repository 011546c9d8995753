"""A model in this process: what it writes, keeps, and lets go of."""

from __future__ import annotations

import asyncio
import functools
import json
import math
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.backends import Chunk, CompletionsBackend, GrammarText
from mlx_tools.decoding.constraints import build_grammar
from mlx_tools.errors import BackendTimeout, BackendUnreachable, ModelError, UsageError
from mlx_tools.messages import ToolSpec
from mlx_tools.plugins.local import LocalBackend, local_engine
from mlx_tools.plugins.local.local_engine import Engine, TokenTexts
from mlx_tools.protocol import ReadingRules, forcing_prefix, judge, read
from tests.backends.asking import ask, collect, request
from tests.backends.tiny import LLAMA, SLIDING, make_tiny_model
from tests.waiting import EXPIRES

pytestmark = [pytest.mark.real, pytest.mark.heavy]

PROMPT = "<|im_start|>user\nWhat is 17 * 23?<|im_end|>\n<|im_start|>assistant\n"
NESTED = {
    "plan": ToolSpec(
        "plan",
        parameters={
            "type": "object",
            "properties": {
                "stops": {
                    "type": "array",
                    "items": {"enum": ["Zürich", "東京", 'a "b"']},
                    "minItems": 2,
                    "maxItems": 3,
                },
                "days": {"type": "integer", "minimum": 3, "maximum": 21},
                "note": {"type": "string", "maxLength": 12},
            },
            "required": ["stops", "days"],
        },
    )
}


@pytest.fixture(scope="module", autouse=True)
def loaded_once() -> Iterator[None]:
    """Each model is loaded once, whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_engine, "load_model", functools.cache(local_engine.load_model))
        yield


@pytest.fixture(scope="module")
def tiny(real_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "llama", real_model, LLAMA)


@pytest.fixture(scope="module")
def sliding(real_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "sliding", real_model, SLIDING)


@pytest.fixture(scope="module")
def quick(tiny: Path) -> Engine:
    return Engine(tiny)


@pytest.fixture(scope="module")
def slow(tiny: Path) -> Engine:
    return Engine(tiny, fast_forward=False)


@pytest.fixture(scope="module")
def local(tiny: Path) -> Iterator[LocalBackend]:
    backend = LocalBackend(tiny)
    yield backend
    asyncio.run(backend.aclose())


def whole(engine: Engine, prompt: str, **options: Any) -> tuple[str, Chunk]:
    chunks = list(engine.complete(request(prompt, **options), lambda: None))
    return "".join(chunk.text for chunk in chunks), chunks[-1]


# --- what it writes ---------------------------------------------------------------------------


@pytest.mark.slow
def test_it_writes_what_a_stock_server_writes(real_model: Path, real_server: str) -> None:
    backend = LocalBackend(real_model)
    for prompt in (PROMPT, "Größe: 3,5 m. 東京は"):
        here, last = ask(backend, prompt, max_tokens=8)
        there, other = ask(CompletionsBackend(real_server), prompt, max_tokens=8)
        assert here.strip() == there.strip()  # the server strips a leading space
        assert last.finish_reason == other.finish_reason
        assert last.usage is not None
        assert other.usage is not None
        assert last.usage.prompt_tokens == other.usage.prompt_tokens
    asyncio.run(backend.aclose())


@pytest.mark.slow
def test_chance_follows_the_seed(local: LocalBackend) -> None:
    hot = {"temperature": 30.0, "max_tokens": 12}
    texts = {ask(local, "1 2 3", seed=seed, **hot)[0] for seed in range(6)}
    assert len(texts) > 1
    assert ask(local, "1 2 3", seed=5, **hot)[0] == ask(local, "1 2 3", seed=5, **hot)[0]
    assert (
        ask(local, "1 2 3", temperature=1e-30, max_tokens=8)[0]
        == ask(local, "1 2 3", max_tokens=8)[0]
    )


def test_scores_are_the_likeliest_tokens_best_first(local: LocalBackend) -> None:
    chunks = asyncio.run(collect(local, "5 6", max_tokens=5, top_logprobs=4))
    scores = [score for chunk in chunks for score in chunk.scores]
    text = "".join(chunk.text for chunk in chunks)
    assert len(scores) == len(text)
    for character, alternatives in zip(text, scores, strict=True):
        assert len(alternatives) == 4
        assert alternatives[0].text == character  # the likeliest was chosen
        values = [alternative.logprob for alternative in alternatives]
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) <= 1.001
    assert all(not chunk.scores for chunk in asyncio.run(collect(local, "5 6", max_tokens=5)))


def test_a_token_is_written_as_it_is_biased(local: LocalBackend) -> None:
    def written(**bias: Any) -> bytes:
        chunks = asyncio.run(collect(local, "5 6", max_tokens=1, **bias))
        return "".join(chunk.text for chunk in chunks).encode()

    (scores,) = asyncio.run(collect(local, "5 6", max_tokens=1, top_logprobs=4))[0].scores
    first, wished = scores[0], next(s for s in scores[1:] if s.data != b"9")  # 9 ends a completion
    assert written() == first.data
    assert written(logit_bias={first.id: -100, 10**6: 5}) != first.data
    assert written(logit_bias={wished.id: 100}) == wished.data


# --- what it keeps ----------------------------------------------------------------------------


def test_a_prompt_is_read_from_where_it_differs(local: LocalBackend) -> None:
    ask(local, "11 22 33 44 55", max_tokens=3)
    for prompt, cached in (("11 22 33 44 55", 13), ("11 22 33 44 66", 12), ("77", 0)):
        last = ask(local, prompt, max_tokens=1)[1]
        assert last.usage is not None
        assert last.usage.cached_tokens == cached


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tiny", "sliding"])
def test_what_it_keeps_changes_nothing(kind: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(kind)
    chance = random.Random(7)
    kept, fresh = Engine(folder), Engine(folder)
    prompt = "1 2 3 4 5"
    reused = 0
    for _ in range(16):
        match chance.randrange(6):
            case 0:
                prompt = "".join(chance.choice("12345 ") for _ in range(chance.randrange(20, 90)))
            case 1:
                prompt = prompt[: max(1, len(prompt) - chance.randrange(8))]
        size = chance.randrange(1, 6)
        text, last = whole(kept, prompt, max_tokens=size)
        fresh.forget()
        assert text == whole(fresh, prompt, max_tokens=size)[0]
        assert last.usage is not None
        reused += last.usage.cached_tokens or 0
        prompt += text
    assert reused > 50


def test_a_closed_completion_stops_and_what_was_read_is_kept(tiny: Path) -> None:
    async def main() -> tuple[int, Chunk]:
        async with LocalBackend(tiny) as backend:
            async with aclosing(backend.complete(request("1 2 3 4", max_tokens=5000))) as chunks:
                async for _ in chunks:
                    break
            last = (await collect(backend, "1 2 3 4", max_tokens=1))[-1]
            return backend.forward_passes, last

    passes, last = asyncio.run(main())
    assert passes < 100
    assert last.usage is not None
    assert last.usage.cached_tokens == 6


# --- grammars ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["quick", "slow"])
@pytest.mark.parametrize("style", ["jsonl", "markdown-json", "xml"])
def test_whatever_the_model_likes_the_call_is_valid(
    kind: str, style: Any, request: pytest.FixtureRequest
) -> None:
    engine = request.getfixturevalue(kind)
    for choice in ("required", "plan", "auto", "none"):
        prefix = forcing_prefix(style, choice)
        grammar = build_grammar(NESTED, style=style, tool_choice=choice, prefix=prefix)
        options = {"grammar": grammar, "temperature": 1.5, "seed": 3, "max_tokens": 400}
        text, last = whole(
            engine, (PROMPT + prefix).removesuffix(grammar.repeated_prefix), **options
        )
        text = text.removeprefix(grammar.repeated_prefix)
        if choice in ("auto", "none") and last.finish_reason == "length":
            continue  # an answer may be as long as it likes
        assert last.finish_reason == "stop"
        rules = ReadingRules(style=style, prefix=prefix, tool_choice=choice)
        reading = read(text, rules=rules)
        assert reading.error is None
        assert reading.clean
        assert all(call.error is None for call in judge(reading, NESTED, tool_choice=choice))


@pytest.mark.slow
def test_fast_forward_takes_what_must_follow_in_one_pass(quick: Engine, slow: Engine) -> None:
    grammar = build_grammar(NESTED, tool_choice="required")
    passes = []
    for engine in (quick, slow):
        before = engine.passes
        text, _ = whole(engine, PROMPT, grammar=grammar, max_tokens=300)
        assert json.loads(text)["name"] == "plan"
        passes.append(engine.passes - before)
    assert passes[0] < passes[1] * 2 / 3


@pytest.mark.parametrize("most", [1, 2, 5, 9, 14])
def test_a_limit_cuts_what_must_follow_too(local: LocalBackend, most: int) -> None:
    options = {"grammar": build_grammar(NESTED, tool_choice="plan"), "top_logprobs": 2}
    chunks = asyncio.run(collect(local, PROMPT, max_tokens=most, **options))
    assert chunks[-1].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == most
    assert sum(len(chunk.scores) for chunk in chunks) == most
    assert '{"type":"tool_call","name":"plan","arguments":{"stops":["'.startswith(
        "".join(chunk.text for chunk in chunks)
    )


def test_a_grammar_that_is_none_is_refused(local: LocalBackend) -> None:
    with pytest.raises(UsageError, match="the grammar cannot be used"):
        ask(local, "1", grammar=GrammarText("", "start: nothing"))
    assert ask(local, "1", max_tokens=1)[1].finish_reason


# --- bounds and faults ------------------------------------------------------------------------


def test_one_completion_is_made_at_a_time(tiny: Path) -> None:
    async def main() -> list[str]:
        async with LocalBackend(tiny) as backend:
            order: list[str] = []

            async def one(name: str) -> None:
                async with aclosing(backend.complete(request(f"{name} 1", max_tokens=8))) as chunks:
                    async for _ in chunks:
                        order.append(name)

            await asyncio.gather(*map(one, "abc"))
            return order

    order = asyncio.run(main())
    assert [name for name, before in zip(order, ["", *order], strict=False) if name != before] == [
        *dict.fromkeys(order)
    ]


def test_a_completion_that_takes_too_long_is_given_up(local: LocalBackend) -> None:
    with pytest.raises(BackendTimeout, match="did not complete within"):
        ask(local, "1 2 3", max_tokens=100_000, timeout=EXPIRES, temperature=1.0)
    assert ask(local, "1 2 3", max_tokens=2)[1].finish_reason


def test_a_closed_backend_says_so(tiny: Path) -> None:
    backend = LocalBackend(tiny)
    ask(backend, "1", max_tokens=1)
    asyncio.run(backend.aclose())
    with pytest.raises(BackendUnreachable, match="was closed"):
        ask(backend, "1")


def test_a_model_that_is_not_there_or_broken_is_told(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no model"):
        ask(LocalBackend(tmp_path), "1")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text((tiny / "config.json").read_text())
    with pytest.raises(ModelError, match="cannot be loaded"):
        ask(LocalBackend(broken), "1")


def test_what_cannot_be_completed_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the prompt is empty"):
        ask(LocalBackend(tmp_path), "")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux needs OpenBLAS")
def test_openblas_is_loaded_or_missed() -> None:
    code = (
        "from mlx_tools.backends.openblas import load_openblas as load\n"
        "print(load(lambda: None), load(lambda: 'libnothing.so'), sep='\\n')\n"
        "import mlx.core\n"
        "print(load(lambda: 'libopenblas.so.0'))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    missing, broken, late = run.stdout.splitlines()
    assert "OpenBLAS is not installed" in missing
    assert "OpenBLAS cannot be loaded" in broken
    assert "MLX was imported before" in late


# --- tokens as text: every tokenizer's tokens give back the text, piece by piece and exactly -----

TEXTS = st.text(st.characters(codec="utf-8"), max_size=30) | st.text(
    "aé😀 <|im_end>\n", max_size=20
)


class SPMStreamingDetokenizer:
    """As mlx-lm's: the bytes of each token, white space spelled as U+2581."""

    def __init__(self) -> None:
        self.tokenmap = [bytes([number]) for number in range(256)]
        self.tokenmap += ["\u2581a".encode(), "é\u2581".encode(), "\u2581".encode()]


class Plain:
    """A tokenizer of bytes that can only decode, and needs its neighbours for that."""

    detokenizer = object()

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode("utf-8", "replace")


class Spaced:
    detokenizer = SPMStreamingDetokenizer()


def streamed(texts: TokenTexts, tokens: Sequence[int], before: Sequence[int] = ()) -> str:
    stream = texts.start_stream(before)
    return "".join([stream.add(token) for token in tokens] + [stream.finish()])


@given(text=TEXTS)
def test_a_byte_level_tokenizer_is_read_as_it_reads_itself(quick: Engine, text: str) -> None:
    tokens = quick.tokenizer.encode(text, add_special_tokens=False)
    # it has no token for some bytes
    assert streamed(quick.texts, tokens) == quick.tokenizer.decode(tokens)


def test_no_piece_ends_within_a_character(quick: Engine) -> None:
    stream = quick.texts.start_stream(())
    pieces = [stream.add(token) for token in quick.tokenizer.encode("a😀é東")]
    assert "" in pieces  # held back
    assert "".join(pieces) == "a😀é東"


@given(st.binary(max_size=20))
def test_spaces_spelled_otherwise_are_spaces(data: bytes) -> None:
    texts = TokenTexts(Spaced())
    assert streamed(texts, list(data)) == data.decode("utf-8", "replace")
    assert streamed(texts, [256, 257, 258, 97]) == " aé  a"


@given(TEXTS, TEXTS)
def test_a_tokenizer_that_only_decodes_is_read_by_what_each_token_adds(
    before: str, text: str
) -> None:
    tokens = list(text.encode())
    assert streamed(TokenTexts(Plain()), tokens, list(before.encode())) == text
