"""Surrogates of the policy gradient, against the exact one of languages that can be enumerated."""
