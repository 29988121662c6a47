"""The network: tokens in, logits out, named sites inside."""
