"""Subspaces that carry a variable, looked for by distributed alignment search."""
