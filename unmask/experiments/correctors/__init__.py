"""Samplers beside a law that is known exactly, at equal numbers of network calls."""
