"""Tokenizers, facts, the reversal corpus, and text as packed token shards."""
