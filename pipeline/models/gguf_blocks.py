"""Linear layers whose weights stay in the blocks of a GGUF file, which stand for the very numbers that a run reads.

A block has the codes of 32 or 256 numbers of a row, of 4 to 8 bits each, and their scales. The layouts are those of
llama.cpp (ggml/src/ggml-common.h); all products are in float32, in the order of the package `gguf`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.to_gguf import names_in_file, paired_heads

INSTEAD = "take model.quantize: nf4, or drop it"


def _half(blocks: Tensor, at: int) -> Tensor:
    """Return the float16 at a byte of each block, as float32 [blocks, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(codes: Tensor) -> Tensor:
    """Return, of blocks of 16 bytes, the lower half of each byte and then the upper ones: uint8 [blocks, 32]."""
    codes = codes.contiguous()
    # As numbers of 16 bytes, since torch copies one number at a time: a quarter of the time.
    return torch.cat([half.view(torch.complex128) for half in (codes & 15, codes >> 4)], 1).view(torch.uint8)


def _bits(codes: Tensor, width: int) -> Tensor:
    """Return [..., 8 / width, bytes] with all first bits of the bytes, then all next ones; `width` bits each."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=codes.device)
    parts: Tensor = (codes[..., None, :] >> shifts[:, None]) & (2**width - 1)
    return parts


def _with_fifth_bit(codes: Tensor, fifth: Tensor) -> Tensor:
    """Return codes of 5 bits [blocks, 32] of 16 bytes with four bits of each and 4 bytes with the fifth ones."""
    codes_of_5: Tensor = _nibbles(codes) | (_bits(fifth, 1).mT.flatten(1) << 4)
    return codes_of_5


def _q4_0(blocks: Tensor) -> Tensor:
    return (_nibbles(blocks[:, 2:]).float() - 8).mul_(_half(blocks, 0))


def _q4_1(blocks: Tensor) -> Tensor:
    return _nibbles(blocks[:, 4:]).float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q5_0(blocks: Tensor) -> Tensor:
    return (_with_fifth_bit(blocks[:, 6:], blocks[:, 2:6]).float() - 16).mul_(_half(blocks, 0))


def _q5_1(blocks: Tensor) -> Tensor:
    codes = _with_fifth_bit(blocks[:, 8:], blocks[:, 4:8])
    return codes.float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].view(torch.int8).float().mul_(_half(blocks, 0))


def _of_eight(blocks: Tensor, codes: Tensor) -> Tensor:
    """Return the numbers of codes [blocks, 8, 32], whose scales and minima are 6 bits each in bytes 4 to 16."""
    scales, minima, rest = blocks[:, 4:16].reshape(-1, 3, 4).unbind(1)
    scale = torch.cat([scales & 63, (rest & 15) | ((scales >> 2) & 48)], 1).float().mul_(_half(blocks, 0))
    least = torch.cat([minima & 63, (rest >> 4) | ((minima >> 2) & 48)], 1).float().mul_(_half(blocks, 2))
    return codes.float().mul_(scale[..., None]).sub_(least[..., None])


def _q4_k(blocks: Tensor) -> Tensor:
    return _of_eight(blocks, _bits(blocks[:, 16:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32))


def _q5_k(blocks: Tensor) -> Tensor:
    low = _bits(blocks[:, 48:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    return _of_eight(blocks, low | (_bits(blocks[:, 16:48], 1) << 4))


def _q6_k(blocks: Tensor) -> Tensor:
    low = _bits(blocks[:, :128].reshape(-1, 2, 64), 4).reshape(-1, 8, 32)
    high = _bits(blocks[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 8, 32)
    codes = (low | (high << 4)).to(torch.int8).sub_(32).reshape(-1, 16, 16)
    scale = blocks[:, 192:208].view(torch.int8).float().mul_(_half(blocks, 208))
    return codes.float().mul_(scale[..., None])


NUMBERS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
"""Type of blocks -> what returns the float32 numbers of blocks uint8 [blocks, bytes], [blocks, ...] in their order."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """The numbers behind a weight uint8 [O, bytes of a row]."""

    kind: str
    block_bytes: int
    shape: torch.Size
    """[O, I]"""
    dtype: torch.dtype


def blocks_of(weight: Any) -> Blocks | None:
    """Return the numbers behind a weight of a `BlockLinear`; None for any other."""
    return getattr(weight, "blocks", None)


def numbers(weight: Any) -> Tensor:
    """Return the numbers [O, I] that the blocks of a weight stand for, in the type of the layer."""
    blocks: Blocks = weight.blocks
    made = NUMBERS[blocks.kind](weight.data.reshape(-1, blocks.block_bytes))
    return made.reshape(blocks.shape).to(blocks.dtype)


class _Product(torch.autograd.Function):
    """A product with a frozen weight, whose numbers are made again for the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Any) -> Tensor:
        ctx.frozen = weight
        return F.linear(x, numbers(weight))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] @ numbers(ctx.frozen), None


class BlockLinear(torch.nn.Linear):
    """A frozen linear layer whose weight is blocks."""

    def __init__(self, linear: torch.nn.Linear, rows: Tensor, kind: str, block_bytes: int) -> None:
        """Take the place of `linear`, with the blocks of its rows, uint8 [O, bytes of a row]."""
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight = torch.nn.Parameter(rows, requires_grad=False)
        self.weight.blocks = Blocks(kind, block_bytes, linear.weight.shape, linear.weight.dtype)  # type: ignore[attr-defined]
        self.bias = linear.bias

    def forward(self, input: Tensor) -> Tensor:
        """Return the product with the numbers that the blocks stand for, and the bias."""
        out: Tensor = _Product.apply(input, self.weight)  # type: ignore[no-untyped-call]
        return out if self.bias is None else out + self.bias


@cache
def mean_bits(file: Path) -> float:
    """Return the bits of a weight of the matrices in a GGUF file, the embedding and the output layer left out."""
    import gguf

    reader: Any = gguf.GGUFReader(file)
    inner = [t for t in reader.tensors if len(t.shape) == 2 and t.name.startswith("blk.")]
    return 8 * sum(int(t.n_bytes) for t in inner) / max(1, sum(int(t.n_elements) for t in inner))


class FileBlocks:
    """The weights of a GGUF file, by the names of transformers."""

    def __init__(self, file: Path, config: Any) -> None:
        """Read the directory of a file that `model_folder` has read, with the model's configuration."""
        import gguf

        reader: Any = gguf.GGUFReader(file)
        self.file, self.config = file, config
        self.architecture = str(reader.get_field("general.architecture").contents())
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.sizes = {kind.name: size for kind, (_, size) in gguf.GGML_QUANT_SIZES.items()}
        self.names = names_in_file(self.architecture, config)

    def layer(self, name: str, linear: torch.nn.Linear, device: str) -> torch.nn.Linear:
        """Return the linear layer of this name with the file's blocks, or itself if the file has plain numbers.

        Raises: ConfigError for blocks that are not read here, and where they are not the layer's numbers.
        """
        written = self.names.get_name(f"{name}.weight", try_suffixes=(".weight",))
        tensor = self.tensors.get(written)
        if tensor is not None and tensor.tensor_type.name in ("F32", "F16", "BF16"):
            return linear.to(device)
        if tensor is None or tensor.tensor_type.name not in NUMBERS:
            kind = "missing" if tensor is None else f"in blocks {tensor.tensor_type.name}"
            raise ConfigError(
                f"model.quantize=gguf: the weight of {name} is {kind} in {self.file.name}, and read here are "
                f"{', '.join(NUMBERS)}; {INSTEAD}"
            )
        rows = torch.from_numpy(tensor.data.copy())
        num_heads = paired_heads(self.architecture, f"{name}.weight", self.config)
        if num_heads is not None:
            rows = rows.reshape(num_heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)
        kind = tensor.tensor_type.name
        made = BlockLinear(linear, rows, kind, self.sizes[kind])
        if not torch.equal(numbers(made.weight), linear.weight):
            raise ConfigError(
                f"model.quantize=gguf: the blocks of {name} in {self.file.name} are not what transformers reads from "
                f"it for the architecture {self.architecture!r}; {INSTEAD}"
            )
        return made.to(device)
