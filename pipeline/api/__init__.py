"""Verizero from Python: a recipe made of a model, data and a reward, and what a user gets back."""
