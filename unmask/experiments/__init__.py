"""Experiments: measures that bring a corpus of their own, one folder each."""
