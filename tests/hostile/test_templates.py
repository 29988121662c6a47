"""Chat templates that loop, divide, include or fill the memory end in a sentence, in time."""

import os
import signal

import pytest

from unmask import UserError
from unmask.data import chat
from unmask.data.chat import ChatTemplate

WORDS = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% include 'x' %}", "TemplateNotFound: x"),
        ("{% extends '/etc/passwd' %}", "TemplateNotFound: /etc/passwd"),
        ("{{ 'a' * 10**11 }}", "MemoryError"),
        ("{{ 'a' * 2 * 10**9 }}", "MemoryError"),  # which there may be
        ("{{ messages[0].content.center(20000000) }}", "more than 10,000,000 characters"),
        ("{{ messages | sum }}", "TypeError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ range(10**30) | list }}", "OverflowError"),
        ("{{ 'a'.encode('zzz') }}", "unknown encoding"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ raise_exception('no system turn') }}", "refuses the conversation: no system turn"),
    ],
)
def test_templates_that_fail_are_sentences(template, said):
    with pytest.raises(UserError, match="^the chat template .*expected .*repair") as error:
        ChatTemplate(template).render(WORDS)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ lipsum(n=10**9) }}",
    ],
)
def test_templates_that_run_away_are_ended(template, monkeypatch):
    chat._start_renderer.cache_clear()
    monkeypatch.setattr(chat, "MOST_SECONDS", 1)
    renderer = chat._start_renderer(os.getpid())
    with pytest.raises(UserError, match="takes more than 1 seconds, or all memory"):
        ChatTemplate(template).render(WORDS)
    assert renderer.returncode == -signal.SIGXCPU  # by its own seconds, not by the clock
    assert ChatTemplate("{{ messages[0].content }}!").render(WORDS) == "Hi!"
    chat._start_renderer.cache_clear()


def test_an_answer_that_is_awaited_no_more_is_not_the_next_ones(monkeypatch):
    good = ChatTemplate("{{ messages[0].content }}")
    assert good.render(WORDS) == "Hi"
    process = chat._start_renderer(chat.os.getpid())

    def interrupt() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(process.stdout, "readline", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ChatTemplate("another").render(WORDS)
    assert good.render(WORDS) == "Hi"
