"""Networks with hand-written weights, whose mechanism is known."""
