"""Text that may become a call is held back while it is written."""

from __future__ import annotations

from mlx_tools.controller.call_beginning import call_beginning
from mlx_tools.messages import loose_name
from tests.tables import table

NAMES = frozenset({loose_name("get_weather")})


@table(
    "text",
    [
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>',
        '{"name": "get_weather", "arguments": {"city": "Paris"}}',
        '{"tool_calls": [{"id": "c", "function": {"name": "get_weather"}}]}',
        "get_weather(city='Paris')",
        'get_weather\n{"city": "Paris"}',
        "<get_weather>\n<city>Paris</city>\n</get_weather>",
    ],
)
def test_what_may_become_a_call_is_held_back_from_its_first_byte(text: str) -> None:
    said = "I will look.\n"
    for size in range(1, len(text) + 1):
        found = call_beginning(said + text[:size], NAMES)
        assert found is not None and found.offset <= len(said), text[:size]
    assert not call_beginning("I will look at the weather (it rains).", NAMES)
