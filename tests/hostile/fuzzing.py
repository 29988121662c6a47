"""The fuzz's tools: what counts as a failure, hostile values, and ways to spoil a file."""

import json
import math
import os
import signal
import struct
import sys
import tempfile
import types
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st
from typer.testing import CliRunner

from unmask import UserError
from unmask.base.config import LARGEST
from unmask.cli.main import app

SECONDS = 30
"""The longest that one case may take of the processor; a case is made to need less than five of an
idle machine."""
DANGEROUS = ("pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "socket.connect")
"""Audit events that no input may cause."""
_CHANGING = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class Attempt:
    """Something to try; what is bad must be refused."""

    call: Callable[[], Any]
    what: str
    is_bad: bool = False


class TooLongError(BaseException):
    """No `except Exception` between the alarm and the fuzz holds it back."""


class _Watch:
    """Writes and dangerous calls while a case runs, heard through Python's audit events."""

    def __init__(self) -> None:
        self.roots: tuple[Path, ...] | None = None
        self.wrong: list[str] = []
        self.is_hooked = False

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.roots is None:
            return
        if event in DANGEROUS:
            self.wrong.append(f"{event} {arguments[:2]}")
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING:
            self._check(event, arguments[0])
        elif event in _CHANGING:
            for path in arguments[: 2 if event in ("os.rename", "os.link", "os.symlink") else 1]:
                self._check(event, path)

    def _check(self, event: str, path: Any) -> None:
        assert self.roots is not None
        if isinstance(path, int) or path in ("/dev/null", os.devnull):
            return
        place = Path(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100 - links stay links
        if not any(place.is_relative_to(root) for root in self.roots):
            self.wrong.append(f"{event} {place}")


_WATCH = _Watch()
# The clock is for what waits for ever: a machine that is busy with other things is no hang.
_TIMERS = {signal.SIGPROF: (signal.ITIMER_PROF, 1), signal.SIGALRM: (signal.ITIMER_REAL, 20)}


@contextmanager
def guard(*roots: Path) -> Generator[None]:
    """Fail where the block takes too long, writes outside `roots`, or does something dangerous."""

    def stop(number: int, frame: Any) -> None:
        raise TooLongError(f"more than {SECONDS} s")

    if not _WATCH.is_hooked:
        sys.addaudithook(_WATCH.hear)
        _WATCH.is_hooked = True
    _WATCH.roots, _WATCH.wrong = roots, []
    before = {number: signal.signal(number, stop) for number in _TIMERS}
    for timer, times in _TIMERS.values():
        signal.setitimer(timer, times * SECONDS)
    try:
        yield
    finally:
        for number, (timer, _) in _TIMERS.items():
            signal.signal(number, signal.SIG_IGN)  # first: one may be on its way
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])
        _WATCH.roots = None
    assert not _WATCH.wrong, f"written or done outside the run folder: {_WATCH.wrong[:3]}"


@contextmanager
def limit_processor(seconds: float) -> Generator[None]:
    """Fail where the block, with the processes that ended in it, takes more of the processor."""
    before = sum(os.times()[:4])
    yield
    took = sum(os.times()[:4]) - before
    assert took < seconds, f"{took:.1f} s of the processor, expected less than {seconds}"


def list_files(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file with its size and time; native writers raise no audit event."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def run_attempt(attempt: Attempt, inputs: Path, *roots: Path) -> str:
    """`refused` or `worked`; everything else is an `AssertionError` that names the attempt."""
    before = list_files(inputs)
    outcome = "worked"
    try:
        with guard(*roots, Path(tempfile.gettempdir())):
            attempt.call()
    except UserError as error:
        outcome = "refused"
        assert str(error).strip(), f"{attempt.what}: an empty message"
    except (Exception, TooLongError) as error:
        if isinstance(error, AssertionError) and "outside the run folder" in str(error):
            raise AssertionError(f"{attempt.what}: {error}") from error
        raise AssertionError(f"{attempt.what}: {type(error).__name__}: {error}") from error
    assert list_files(inputs) == before, f"{attempt.what}: its inputs were changed"
    assert outcome == "refused" or not attempt.is_bad, f"{attempt.what}: accepted silently"
    return outcome


def run_verb(words: list[str]) -> None:
    """The command line in this process; a mistake is raised as the `UserError` that was shown."""
    done = CliRunner().invoke(app, words)
    if isinstance(done.exception, SystemExit) or done.exception is None:
        if done.exit_code == 2:
            raise UserError(done.output.strip())
        assert done.exit_code in (0, 1), f"exit code {done.exit_code}"
        assert "Traceback" not in done.output
        return
    raise done.exception


class Odd:
    """A value of no type that anything takes."""

    def __repr__(self) -> str:
        return "Odd()"


NOT_FINITE = [math.nan, math.inf, -math.inf]
HUGE = [10**30, 10**400, -(10**30)]


def list_bad(hint: Any, metadata: Any = types.MappingProxyType({})) -> Iterator[Any]:
    """Values that a setting of this type, with these limits, must not take."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if Any in options or any(option in (Callable, dict) for option in options):
        return
    yield from (b"x", Odd())
    if type(None) not in options:
        yield None
    kinds = [option for option in options if option is not type(None)]
    if any(get_origin(kind) is tuple for kind in kinds):
        (item,) = (get_args(kind)[0] for kind in kinds if get_origin(kind) is tuple)
        yield from ([bad] for bad in list_bad(item, metadata) if bad != "")
        if str not in kinds:
            yield "text"
        return
    if str not in kinds:
        yield from ("", "x", "nan", "\ud800")
    if not any(kind in (int, float) for kind in kinds):
        yield from (1.5, math.nan)
        if bool not in kinds:
            yield True
        if any(get_origin(kind) is Literal for kind in kinds) or metadata.get("choices"):
            yield from ("no such name", "x" * 1000)
        return
    yield True
    yield from NOT_FINITE
    yield from HUGE if float not in kinds else HUGE[1:2]
    if float not in kinds:
        yield 1.5
    for name, step in (("least", -1), ("above", 0), ("most", 1), ("below", 0)):
        if metadata.get(name) is not None:
            yield metadata[name] + step
            yield metadata[name] + 1000 * step


def draw_good(draw: Callable, hint: Any, field: Field, is_filled: bool = False) -> Any:
    """A small value that a setting takes, a tuple that is filled or one that may be empty.

    Which ones go together is for the call to say."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    kind = draw(st.sampled_from(options))
    limits = field.metadata
    if kind is type(None):
        return None
    if get_origin(kind) is tuple:
        (item, *_) = get_args(kind)
        if item is str and limits.get("choices") is None:
            usual = field.default if isinstance(field.default, tuple) else ()
            few = st.lists(st.sampled_from(usual), min_size=is_filled, max_size=2)
            return tuple(draw(few)) if usual else None
        return tuple(draw_good(draw, item, field) for _ in range(draw(st.integers(is_filled, 2))))
    if get_origin(kind) is Literal:
        return draw(st.sampled_from(get_args(kind)))
    if limits.get("choices") is not None:
        return draw(st.sampled_from(sorted(limits["choices"]())))
    least = limits.get("least", limits.get("above"))
    low = 0 if least is None else least
    high = min(
        *(low + 6, *(limits[n] for n in ("most", "below") if limits.get(n) is not None)), LARGEST
    )
    if kind is int:
        return draw(st.integers(int(low), int(high)))
    if kind is float:
        open_low, open_high = limits.get("above") is not None, limits.get("below") is not None
        return draw(st.floats(low, high, exclude_min=open_low, exclude_max=open_high))
    if kind is bool:
        return draw(st.booleans())
    return None if field.default is MISSING else field.default


HOSTILE: list[Any] = [
    None, True, -1, 0, 1, 2**63, 10**30, 1e308, -0.5, math.nan, math.inf, "", "x", "x" * 5000,
    "../../elsewhere", "/etc/passwd", "a\0b", "\ud800", "=1+1", "<script>", [], {}, [[]], [None],
    {"a": None}, [0, -1], ["x"], {"": {"": {}}},
]  # fmt: skip
"""What stands in a file where something else is expected."""


def spoil_json(draw: Callable, value: Any) -> tuple[bytes, str, bool]:
    """A JSON text made from a sound value, what was done to it, and whether it is surely bad."""
    text = json.dumps(value)
    way = draw(st.sampled_from(["value", "value", "value", "leave out", "add", "twice", "deep",
                                "cut", "bytes", "surrogate", "wide", "other"]))  # fmt: skip
    if way in ("value", "leave out", "add"):
        changed = json.loads(text)
        where, what = _change(draw, changed, way)
        return json.dumps(changed).encode(), f"{way} {where} {what!r:.60}", False
    if way == "twice":
        key = draw(st.sampled_from(sorted(value)))
        again = json.dumps({key: value[key]})[1:-1]
        return f"{{{again}, {text[1:]}".encode(), f"{key} twice", True
    if way == "deep":
        return f'{{"a": {"[" * 5000}{"]" * 5000}, {text[1:]}'.encode(), "deep nesting", True
    if way == "surrogate":
        return f'{{"a": "\\ud800", {text[1:]}'.encode(), "half a surrogate pair", True
    if way == "wide":
        return f'{{"a": {10**30}, {text[1:]}'.encode(), "an integer of 100 bits", True
    if way == "other":
        other = draw(st.sampled_from([None, 1, "x", [], [value]]))
        return json.dumps(other).encode(), f"{other!r:.40} instead", True
    return spoil_bytes(draw, text.encode(), way)


def spoil_bytes(draw: Callable, content: bytes, way: str = "") -> tuple[bytes, str, bool]:
    """Bytes that were cut or changed; cut ones are surely bad."""
    if (way or draw(st.sampled_from(["cut", "bytes"]))) == "cut":
        end = draw(st.integers(0, len(content) - 1))
        return content[:end], f"cut after {end} of {len(content)} bytes", True
    changed = bytearray(content)
    at = draw(st.integers(0, len(content) - 1))
    changed[at : at + 1] = draw(st.binary(min_size=0, max_size=4))
    return bytes(changed), f"byte {at} changed", False


def _change(draw: Callable, value: Any, way: str) -> tuple[str, Any]:
    """Change one value somewhere inside lists and objects; where, and what stands there now."""
    inner, names = value, []
    while True:
        keys = sorted(inner) if isinstance(inner, dict) else list(range(len(inner)))
        if way == "add" and isinstance(inner, dict) and (not keys or draw(st.booleans())):
            hostile = draw(st.sampled_from(HOSTILE))
            inner[draw(st.text(max_size=5))] = hostile
            return ".".join(names), hostile
        if not keys:
            return ".".join(names), "nothing"
        key = draw(st.sampled_from(keys[:50]))
        names.append(str(key))
        below = inner[key]
        if not isinstance(below, dict | list) or not below or draw(st.integers(0, 3)) == 0:
            break
        inner = below
    if way == "leave out":
        del inner[key]
        return ".".join(names), "left out"
    hostile = draw(st.sampled_from(HOSTILE))
    inner[key] = hostile
    return ".".join(names), hostile


def spoil_header(draw: Callable, content: bytes) -> tuple[bytes, str, bool]:
    """A safetensors file whose header is not what it was."""
    (size,) = struct.unpack("<Q", content[:8])
    header, rest = json.loads(content[8 : 8 + size]), content[8 + size :]
    name = draw(st.sampled_from(sorted(set(header) - {"__metadata__"})))
    entry = header[name]
    way = draw(st.sampled_from(["shape", "dtype", "offsets", "rename", "size", "json", "cut"]))
    if way == "shape":
        shape = draw(
            st.sampled_from([[], [0], [-1], [2**62, 4], [10**30], ["x"], None, [1.5], [7]])
        )
        entry["shape"] = shape
    elif way == "dtype":
        entry["dtype"] = draw(st.sampled_from(["BOOL", "X", "", None, 3, "F16", "U8"]))
    elif way == "offsets":
        begin, end = entry["data_offsets"]
        others = [[end, begin], [-1, end], [begin, 2**63], [begin + 1, end + 1], [], None, [0, 0]]
        entry["data_offsets"] = draw(st.sampled_from(others))
    elif way == "rename":
        header[draw(st.sampled_from(["x", "", "../x", "layers.99.mlp.up.weight"]))] = header.pop(
            name
        )
    if way == "json":
        text, what, is_bad = spoil_json(draw, header)
        # Without a key that says more, a header may hold anything that is not a tensor's.
        return (
            struct.pack("<Q", len(text)) + text + rest,
            f"header: {what}",
            is_bad and "cut" in what,
        )
    if way == "cut":
        return spoil_bytes(draw, content, "cut")
    text = json.dumps(header).encode()
    number = (
        draw(st.sampled_from([0, 1, 2**40, 2**63, len(text) - 1])) if way == "size" else len(text)
    )
    return struct.pack("<Q", number) + text + rest, f"{way} of {name}", True
