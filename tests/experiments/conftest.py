"""The documents that measures of whole texts are asked about."""

from tests.measures.conftest import texts

__all__ = ["texts"]
