"""Methods scored on networks whose mechanism is known."""
