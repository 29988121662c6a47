"""Importing the tests turns shape checks on, before anything of unmask is imported."""

from tests import shapes

shapes.install()
