"""Gaps in real texts, and how models of each kind fill them."""
