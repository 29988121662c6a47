"""Models of this package under lm-evaluation-harness: likelihoods, rolling likelihoods, texts."""
