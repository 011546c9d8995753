"""Chat templates are somebody else's programs: they end soon, and reach nothing."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_tools.errors import ChatFormatError
from mlx_tools.prompt.chat_format import TemplateRefused
from mlx_tools.prompt.template_sandbox import ChatTemplate
from tests.tables import table

MESSAGES = [{"role": "user", "content": " hi "}, {"role": "assistant", "content": "yo"}]


def compiled(template: str) -> ChatTemplate:
    return ChatTemplate(template, bos_token="<s>", eos_token="</s>")


def render(template: str, **options: Any) -> str:
    return compiled(template).render(MESSAGES, **options)


@table(
    ("template", "text"),
    [
        ("{% for m in messages %}{{ m.role ~ ':' ~ m['content'] | trim }};{% endfor %}", None),
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{% if add_generation_prompt %}A{% else %}B{% endif %}", "B"),
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
        ("{{ {'a': '<é>'} | tojson }}{{ [1] | tojson(indent=2) }}", '{"a": "<é>"}[\n  1\n]'),
        ("{% generation %}{{ messages[1].content }}{% endgeneration %}", "yo"),
        ("{% for m in messages %}{% break %}{% endfor %}", ""),
        ("{% for m in messages if m.role == 'user' %}{{ loop.index }}{% endfor %}", "1"),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
            "{% endfor %}{{ ns.n }}",
            "2",
        ),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f('a') }}{{ f(1) }}", "<a><1>"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x }}{% set y | upper %}b{% endset %}{{ y }}", "a1B"),
        ("{% set a, b = 1, 2 %}{{ a }}{{ b }}{{ 'a b'.split()[::-1] | join('-') }}", "12b-a"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ '%s!' % 'x' }}{{ 'a' * 3 }}{{ 7 % 4 }}{{ nothing is defined }}", "x!aaa3False"),
        ("{% filter upper %}a{{ 'b' }}{% endfilter %}", "AB"),
        ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),
    ],
)
def test_templates_are_rendered_as_transformers_renders_them(
    template: str, text: str | None
) -> None:
    assert render(template) == (text if text is not None else "user:hi;assistant:yo;")


@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
        "{{ 'a' * 999999999 }}",
        "{{ 10 ** 9 }}",
        "{{ [1] * 999999 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ 'x'.ljust(999999) }}",
        "{{ 'x' | center(999999) }}",
        "{{ 'x\ny' | indent(999999) }}",
        "{{ range(999999999) | list }}",
        "{{ lipsum(n=9999) }}",
        "{% set x = 'ab' %}" + "{% set x = x ~ x %}" * 60 + "{{ x }}",
        "{% set x = 'ab' %}" + "{% set x = x + x %}" * 60 + "{{ x }}",
        "{% set x = 'ab' %}" + "{% set x = x.replace('a', x) %}" * 60 + "{{ x }}",
        "{% set x = 'ab' %}" + "{% set x = x | replace('a', x) %}" * 60 + "{{ x }}",
        "{% set x = 'ab' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60 + "{{ x }}",
        "{% set x = ['ab'] %}" + "{% set x = [x, x] %}" * 60 + "{{ x }}",
        "{% set x = {'a': 1} %}" + "{% set x = dict(a=x, b=x) %}" * 60 + "{{ x }}",
        "{% set x = (1, 2) %}" + "{% set x = (x, x) %}" * 60 + "{{ x == x }}",
        "{% set x = range(9999) | list %}" + "{% set y = x | sort %}" * 999,
        "{% for i in range(9999) %}" + "x" * 9999 + "{% endfor %}",
        "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ self.__init__.__globals__ }}",
        "{% include 'x' %}",
        "{% import 'os' as os %}",
    ],
)
def test_a_hostile_template_is_an_error_and_soon(template: str) -> None:
    with pytest.raises(ChatFormatError, match="chat template"):
        render(template)


def test_a_namespace_is_not_written_out() -> None:
    doubled = "{% set x = namespace(a=1) %}" + "{% set x = namespace(a=x, b=x) %}" * 60
    assert render(doubled + "{{ x }}") == "<namespace>"


def test_what_the_template_itself_refuses_is_told_apart() -> None:
    with pytest.raises(TemplateRefused, match="no system"):
        render("{{ raise_exception('no system') }}")


def test_the_messages_are_not_the_templates_to_change() -> None:
    messages = [{"role": "user", "content": "a"}]
    assert compiled("{% set m = messages[0] %}{{ m.content }}").render(messages) == "a"
    assert messages == [{"role": "user", "content": "a"}]


def test_each_rendering_has_a_budget_of_its_own() -> None:
    busy = compiled("{% for i in range(9000) %}{{ i }}{% endfor %}")
    assert busy.render(MESSAGES) == busy.render(MESSAGES) == busy.render(MESSAGES)


def test_literals_are_what_a_template_can_write_by_itself() -> None:
    found = compiled("<a>{{ '<b>' ~ x }}{% if x == '<c>' %}<d>{% endif %}{# <e> #}").literals
    assert {"<a>", "<b>", "<c>", "<d>"} <= set(found)
    assert "<e>" not in "".join(found)
