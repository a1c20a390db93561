"""Checks of a machine, of a recipe before a run, and of what a run has written: each ends in findings."""
