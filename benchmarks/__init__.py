"""Speed against the peers' way of doing the same work, in one run: one table each."""
