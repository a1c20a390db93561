"""A program that opens files and then closes `sys.inherited`, which the process has opened that forked it."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    with open(os.devnull) as first, open(os.devnull) as second:
        if inherited := getattr(sys, "inherited", None):
            inherited.close()
        for file in (first, second):
            os.fstat(file.fileno())  # raises OSError for a file whose number was closed
