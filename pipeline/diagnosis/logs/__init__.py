"""Logs of other trainers: what each tool writes, one file a tool, turned into the rows that the rules read."""
