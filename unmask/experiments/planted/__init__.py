"""Does a trained refusal survive tokens that are planted into the answer?"""
