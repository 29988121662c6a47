"""Errors planted into real texts, and how models of each kind correct them."""
