"""Causes for which a run does not learn, each in a file of its own, found in the files that the run has written."""
