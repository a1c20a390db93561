"""A program that writes into the descriptor that its only word names."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.write(int(sys.argv[1]), b"here")
