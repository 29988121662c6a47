"""Fair timing: contenders take turns, the median of many rounds counts, a record says how."""

import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


def time_interleaved(
    contenders: dict[str, Callable[[], object]],
    device: torch.device,
    seconds: float,
    rounds: int = 7,
    warm_up: int = 3,
) -> dict[str, float]:
    """Median seconds of a call of each contender; they alternate for about `seconds` in all.

    At least `rounds` of each count, after `warm_up` calls that do not. Alternating spreads whatever
    else the machine does over all of them alike.
    """
    for call in contenders.values():
        for _ in range(warm_up):
            call()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    end = time.perf_counter() + seconds
    names = list(contenders)
    while time.perf_counter() < end or len(times[names[0]]) < rounds:
        for name in names:
            times[name].append(_time_once(contenders[name], device))
        names.append(names.pop(0))  # nobody always follows the same neighbour
    return {name: statistics.median(values) for name, values in times.items()}


def _time_once(call: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def show_kernels(call: Callable[[], object], most: int = 15) -> None:
    """Print which kernels the device's time goes to; without a GPU, which operations the CPU's."""
    on_gpu = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as taken:
        start = time.perf_counter()
        call()
        if on_gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    spent = [
        (event.self_device_time_total if on_gpu else event.self_cpu_time_total, event)
        for event in taken.key_averages()
    ]
    total = sum(each for each, _ in spent)
    print(f"{1e3 * seconds:.1f} ms, kernels {total / 1e3:.1f} ms")
    for each, event in sorted(spent, key=lambda pair: -pair[0])[:most]:
        share = each / total
        print(f"  {share:6.1%} {each / 1e3:9.2f} ms {event.count:6d} {event.key[:110]}", flush=True)


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_record(text: str, out: Path | None) -> None:
    """Print a page of results, and keep it where asked."""
    print(text)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text)


def describe_run(device: torch.device) -> str:
    """The command and the machine, for the record."""
    chip = platform.processor() or platform.machine()
    if device.type == "cuda":
        chip = torch.cuda.get_device_name(device)
    words = " ".join(
        ["python", f"benchmarks/{Path(sys.argv[0]).name}", *_without_places(sys.argv[1:])]
    )
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    return f"`{words}` on {chip}{threads}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}"


def _without_places(words: list[str]) -> list[str]:
    """The command without the places of one machine: where files and the record went."""
    for name in ("--out", "--folder"):
        if name in words:
            at = words.index(name)
            words = words[:at] + words[at + 2 :]
    return words
