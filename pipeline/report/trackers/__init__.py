"""The same metrics and samples sent to other programs during a run, one tracker a file; `base.py` has the rules."""
