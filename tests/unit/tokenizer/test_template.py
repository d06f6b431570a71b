"""Chat templates see what they expect to see, and nothing of ours."""

from datetime import datetime

import pytest

from runtime.tokenizer import ChatTemplate, TemplateRefusal

MESSAGES = [{"role": "system", "content": "Be <brief>."}, {"role": "user", "content": "Hi"}]
CONVERSATION = "<s>system:Be <brief>. user:Hi "
NOW = datetime(2026, 3, 14, 15, 9)  # noqa: DTZ001 - local time, as templates expect


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }} {% endfor %}", CONVERSATION),
        ("{% if add_generation_prompt %}go{% endif %}", "go"),
        ("{{ strftime_now('%d %b %Y') }}", "14 Mar 2026"),
        ("{{ messages[1] | tojson }}", '{"role": "user", "content": "Hi"}'),
        ("{{ {'b': 1, 'a': 'é<'} | tojson }}", '{"b": 1, "a": "é<"}'),
        ("{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}x{% endfor %}", "x"),
        ("{% generation %}a{{ 1 + 1 }}{% endgeneration %}b", "a2b"),
        ("{% if tools is none and documents is none %}none{% endif %}", "none"),
        ("  {% if true %}\nline\n  {% endif %}\n", "line\n"),
    ],
)  # fmt: skip
def test_templates_find_what_they_expect(source: str, text: str) -> None:
    template = ChatTemplate(source, {"bos_token": "<s>"}, now=lambda: NOW)
    assert template.render(MESSAGES) == text


def test_a_template_may_refuse_a_conversation_in_its_own_words() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(TemplateRefusal, match=r"^roles must alternate$"):
        template.render(MESSAGES)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ missing.field }}",
        "{{ 1 + 'a' }}",
    ],
)
def test_a_template_cannot_reach_out_or_change_anything(source: str) -> None:
    with pytest.raises(TemplateRefusal):
        ChatTemplate(source, {}).render(MESSAGES)


def test_broken_jinja_is_told_when_it_is_loaded() -> None:
    with pytest.raises(ValueError, match="not valid Jinja"):
        ChatTemplate("{% for %}", {})
