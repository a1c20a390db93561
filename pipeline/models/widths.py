"""Widths of rows on a GPU, where the libraries choose or build a kernel for each new shape."""

from __future__ import annotations

import torch

MULTIPLE = 64


def forward_width(width: int, device: torch.device | str) -> int:
    """Return `width` tokens rounded up to a multiple of 64, where kernels are fastest; on the CPU `width` itself."""
    return width if torch.device(device).type == "cpu" else -(-width // MULTIPLE) * MULTIPLE


def padded_width(width: int, device: torch.device | str) -> int:
    """Return the width that rows of `width` tokens are padded to on this device; on the CPU `width` itself.

    It is one more than a multiple of 64: the forward leaves the last token out, from which nothing is predicted.
    """
    return forward_width(width - 1, device) + 1


def packed_width(tokens: int, most: int, rounded: bool) -> int:
    """Return the number of tokens that a packed micro-batch of `tokens` is padded to, of which full ones have `most`.

    A quarter, a half or all of that, or for a row that is longer a multiple of it, so that there are few shapes
    whatever the rows. `rounded`: a multiple of 64.
    """
    multiple = MULTIPLE if rounded else 1
    for share in (4, 2, 1):
        width = -(-most // share // multiple) * multiple
        if tokens <= width:
            return width
    return -(-tokens // width) * width
