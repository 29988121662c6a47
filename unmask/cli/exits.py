"""Exit codes."""

INTERRUPTED = 130
"""After Ctrl-C, as shells have it."""
TERMINATED = 143
"""After SIGTERM, as shells have it."""
