"""Sweeps: a grid of recipes, trained and measured cell by cell, and the comparison drawn."""
