"""Which chat format is found, from what, and whether it is a mere guess."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlx_tools.errors import ChatFormatError
from mlx_tools.models.files import read_model_files
from mlx_tools.router import find_chat_format

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (None, "nothing says which model is served"),
        ("", "nothing says which model is served"),
        ("my-own-thing", "my-own-thing"),
    ],
)
def test_a_model_of_which_nothing_is_known_gets_plain_and_a_word_of_doubt(
    model: str | None, said: str
) -> None:
    found = find_chat_format(model=model)
    assert found.chat_format.name == "plain"
    assert said in found.doubt
    assert "--chat-format" in found.doubt and "--model" in found.doubt
    assert "\n" not in found.doubt


@pytest.mark.parametrize("model", ["Qwen2.5-7B-Instruct", "org/Llama-3.2-1B-Instruct"])
def test_a_name_that_is_known_leaves_no_doubt(model: str) -> None:
    found = find_chat_format(model=model)
    assert found.chat_format.name != "plain"
    assert found.doubt == ""


def test_a_format_that_was_named_leaves_no_doubt() -> None:
    assert find_chat_format("plain", model="my-own-thing").doubt == ""
    with pytest.raises(ChatFormatError, match="no chat format"):
        find_chat_format("chatlm")


def test_a_template_leaves_no_doubt_and_files_without_one_leave_some(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert find_chat_format(files=read_model_files(tmp_path), model="m").doubt
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    found = find_chat_format(files=read_model_files(tmp_path), model="m")
    assert (found.source, found.doubt) == ("the model's own template", "")
