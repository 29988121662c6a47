"""The small pair and a whole study of it."""

from tests.study.pair import finished, place

__all__ = ["finished", "place"]
