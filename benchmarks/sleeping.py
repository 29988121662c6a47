"""Jobs that sleep, to time an engine by; workers import them from here, without torch."""

import time
from collections.abc import Mapping


def sleep(seconds: Mapping[str, float], key: str) -> str:
    """Sleep for the job's seconds."""
    time.sleep(seconds[key])
    return f"the part of {key}"
