"""The explorer: a page in the browser over a model's layers, tokens and denoising steps."""
