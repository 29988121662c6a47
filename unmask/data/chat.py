"""Chat templates: the words around a question that an instructed model was taught to answer in.

A template comes with a checkpoint and is a program: a process of its own runs it, with limits on
its time and memory, in a sandbox that lets it lay words out and nothing else.
"""

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from unmask.base.errors import UserError
from unmask.base.extras import require_extra
from unmask.base.reading import read_json_object, read_text

MOST_SECONDS = 2
"""Seconds of processor time that a conversation may take."""
MOST_BYTES = 1 << 30
"""Memory of the process."""
MOST_CHARACTERS = 10_000_000
"""The longest conversation."""

_RENDERER = """
import json, sys, time
from functools import lru_cache
from jinja2 import FunctionLoader
from jinja2.sandbox import ImmutableSandboxedEnvironment

seconds, most_bytes, characters = map(int, sys.argv[1:])
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
except (ImportError, ValueError):
    resource = None

class Refused(Exception):
    pass

def complain(message):
    raise Refused(f"refuses the conversation: {message}")

environment = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, loader=FunctionLoader(lambda name: None)
)
environment.globals["raise_exception"] = complain
read = lru_cache(environment.from_string)
for line in sys.stdin:
    source, names = json.loads(line)
    if resource is not None:
        until = int(time.process_time()) + 1 + seconds
        resource.setrlimit(resource.RLIMIT_CPU, (until, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    text = problem = None
    try:
        text = read(source).render(**names)
        if len(text) > characters:
            text, problem = None, f"makes more than {characters:,} characters"
    except Refused as error:
        problem = str(error)
    except Exception as error:
        problem = f"cannot be used ({type(error).__name__}: {error})"[:500]
    print(json.dumps([text, problem]), flush=True)
"""


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template, as `transformers` stores it, and the special tokens that it may name."""

    source: str
    tokens: Mapping[str, str] = field(default_factory=dict)

    def render(self, messages: Sequence[Mapping[str, str]], is_answered: bool = False) -> str:
        """The conversation as one text that ends where the model's answer begins.

        With `is_answered` the last message is that answer, and the text ends with it.
        """
        require_extra("study", "a chat template", "jinja2")
        names = {"messages": list(messages), "add_generation_prompt": not is_answered}
        text, problem = _render(self.source, names | dict(self.tokens))
        if text is None:
            raise UserError(
                f"the chat template {problem}: expected one that lays out any conversation; repair "
                "the template beside the tokenizer, or prompt the model without it."
            )
        return text

    def to_settings(self) -> dict[str, Any]:
        """What `tokenizer_config.json` says of it."""
        return {"chat_template": self.source, **self.tokens}


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """The template beside a tokenizer, from its own file or from the tokenizer's settings."""
    settings_file, own_file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    settings = (
        read_json_object(settings_file, wide_integers=True) if settings_file.is_file() else {}
    )
    source = read_text(own_file) if own_file.is_file() else settings.get("chat_template")
    if not isinstance(source, str):
        return None
    tokens = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = settings.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            tokens[name] = value
    return ChatTemplate(source, tokens)


_LOCK = threading.Lock()


def _render(source: str, names: Mapping[str, Any]) -> tuple[str | None, str]:
    """The text that a template makes of these names; None with the reason why there is none."""
    with _LOCK:
        process, answer = _start_renderer(os.getpid()), ""
        assert process.stdin is not None and process.stdout is not None
        # Processor time is limited by the system; this is for those that cannot.
        alarm = threading.Timer(12 * MOST_SECONDS, process.kill)
        alarm.start()
        try:
            process.stdin.write(json.dumps([source, names]) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            pass
        finally:
            alarm.cancel()
            if not answer:  # it was ended, or its answer is awaited no more
                _end(process)
                _start_renderer.cache_clear()
    if not answer:
        return None, f"takes more than {MOST_SECONDS} seconds, or all memory"
    text, problem = json.loads(answer)
    return text, problem


@cache
def _start_renderer(owner: int) -> subprocess.Popen:
    """The process that runs templates for the process `owner`."""
    limits = map(str, (MOST_SECONDS, MOST_BYTES, MOST_CHARACTERS))
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _RENDERER, *limits],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        start_new_session=True,  # Ctrl-C is for the command
    )
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.communicate()
