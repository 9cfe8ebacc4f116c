"""Rendering chat templates: what they can do as in transformers, and limits that hold."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from regard.errors import UserError
from regard.serve.api.openai.template_renderer import TemplateRenderer

MESSAGES = [{"role": "user", "content": "<b>é & you</b>"}, {"role": "assistant", "content": "Yes."}]


@pytest.fixture(scope="module")
def renderer() -> Iterator[TemplateRenderer]:
    renderer = TemplateRenderer()
    yield renderer
    renderer.close()


@pytest.mark.parametrize(
    "template",
    [
        "{{ bos_token }}{% for m in messages %}\n  {% if m.role == 'user' %}\n{{ m.content }}\n{% endif %}{% endfor %}",
        "{{ messages | tojson }} {{ messages | tojson(indent=2) }}",
        "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m['content'] }}{% endfor %}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "{{ messages[0]['content'].split(' ')[-1] }}{% if add_generation_prompt %}!{% endif %}{{ tools is defined }}",
    ],
)
def test_text_is_that_of_transformers(renderer: TemplateRenderer, template: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    variables: dict[str, Any] = {"bos_token": "<s>", "add_generation_prompt": True}
    (expected,), _ = render_jinja_template([MESSAGES], chat_template=template, **variables)
    expected = expected.replace("True", "False") if "tools is" in template else expected  # they pass None
    assert renderer.render(template, {**variables, "messages": MESSAGES}) == expected


@pytest.mark.parametrize(
    ("template", "part"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "too long"),
        ("{{ 7 ** 99999999 }}", "too long"),
        ("{% set n = namespace(x='xxxx') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}", "memory"),
        ("{{ 'x' * 99999999999 }}", "memory"),
        ("{{ '%999999999d' % 3 }}", "memory"),
        ("{% for i in range(99999) %}{{ 'x' * 99 }}{% endfor %}", "1,000,000 characters"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ messages[0].missing.field }}", "missing"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ raise_exception('Roles must alternate.') }}", "Roles must alternate."),
    ],
)
def test_bad_template_is_refused_in_a_sentence_and_in_time(
    renderer: TemplateRenderer, template: str, part: str
) -> None:
    start = time.monotonic()
    with pytest.raises(UserError) as refused:
        renderer.render(template, {"messages": MESSAGES})
    assert time.monotonic() - start < 4
    assert part in str(refused.value)
    assert str(refused.value).endswith(".")
    assert renderer.render("{{ x }}", {"x": "still there"}) == "still there"
