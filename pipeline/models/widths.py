"""Widths of rows on a GPU, where the libraries choose or build a kernel for each new shape."""

from __future__ import annotations

import torch

MULTIPLE = 64
ALIKE = 0.8
"""Rows shorter than this share of the longest one next to them would be padded much."""


def forward_width(width: int, device: torch.device | str) -> int:
    """Return `width` tokens rounded up to a multiple of 64, where kernels are fastest; on the CPU `width` itself."""
    return width if torch.device(device).type == "cpu" else -(-width // MULTIPLE) * MULTIPLE


def padded_width(width: int, device: torch.device | str) -> int:
    """Return the width that rows of `width` tokens are padded to on this device; on the CPU `width` itself.

    It is one more than a multiple of 64: the forward leaves the last token out, from which nothing is predicted.
    """
    return forward_width(width - 1, device) + 1


def packed_width(tokens: int, most: int, device: torch.device | str) -> int:
    """Return the number of tokens that a packed micro-batch of `tokens` is padded to, of which full ones have `most`.

    On the CPU it is `tokens`. Elsewhere a quarter, a half or all of `most`, rounded up to a multiple of 64, or for a
    row that is longer a multiple of that, so that there are few shapes whatever the rows.
    """
    if torch.device(device).type == "cpu":
        return tokens
    for share in (4, 2, 1):
        width = -(-most // share // MULTIPLE) * MULTIPLE
        if tokens <= width:
            return width
    return -(-tokens // width) * width
