"""Logs of other trainers: what each tool writes, turned into the facts that the causes look at."""
