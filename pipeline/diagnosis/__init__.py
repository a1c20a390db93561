"""Reasons why a run does not learn, one a file. Each is looked for in the files that a run has written."""
