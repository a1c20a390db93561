"""Checks of a recipe before any training: `verizero diagnose --before RECIPE`."""
