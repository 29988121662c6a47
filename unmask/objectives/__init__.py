"""What is minimised in training, and how likely a text is under a trained model."""
