"""Editing: write facts into the weights of an MLP by a low-rank update, and take them out again."""

from unmask.editing.update import solve_update

__all__ = ["solve_update"]
