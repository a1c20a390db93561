"""Linear layers whose weights stay in the blocks of a GGUF file, which stand for the very numbers that a run reads.

A block has the codes of 32 or 256 numbers of a row, of 4 to 8 bits each, and their scales. The layouts are those of
llama.cpp (ggml/src/ggml-common.h); all products are in float32, in the order of the package `gguf`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.to_gguf import names_in_file, paired_heads

PLAIN = ("F32", "F16", "BF16")
"""Types of weights that are no blocks."""
INSTEAD = "take model.quantize: nf4, or drop it"


@dataclass(frozen=True, slots=True)
class Layout:
    """The order of the bytes of a layer in blocks of one type, and the numbers that they stand for.

    A number is (code - zero) * scale + minimum. First come the codes of all numbers of the layer, input by input, then
    the integers of scales and minima, then the float16 of each block for both: few steps of torch make many numbers.
    """

    parse: Callable[[Tensor], tuple[Tensor, ...]]
    """Makes of blocks uint8 [blocks, bytes] the parts in that order, as uint8 [blocks, ...]; none is packed."""
    widths: tuple[int, ...]
    """Bits of a code that are kept together, from the lowest: 8, or 4 and those above them."""
    zero: int = 0
    minimum: int = 0
    """1 or -1: the sign of the minima; 0: none."""
    integers: tuple[int, ...] = ()
    """Bits of the integer of a scale or a minimum, which is times the float16 of its block; (): that alone."""
    block: int = 32
    """Numbers of a block."""
    scaled: int = 32
    """Numbers that share a scale."""


def _bits(codes: Tensor, width: int) -> Tensor:
    """Return [..., 8 / width, bytes] with all first bits of the bytes, then all next ones; `width` bits each."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=codes.device)
    parts: Tensor = (codes[..., None, :] >> shifts[:, None]) & (2**width - 1)
    return parts


def _fours(codes: Tensor) -> Tensor:
    return _bits(codes, 4).flatten(1)


def _fives(codes: Tensor, fifth: Tensor) -> Tensor:
    """Return codes of 5 bits [blocks, 32] of 16 bytes with four bits of each and 4 bytes with the fifth ones."""
    return _fours(codes) | (_bits(fifth, 1).mT.flatten(1) << 4)


def _sixes(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the integers of scales and minima, of 6 bits, [blocks, 8] each, of 12 bytes."""
    scales, minima, rest = packed.reshape(-1, 3, 4).unbind(1)
    return (
        torch.cat([scales & 63, (rest & 15) | ((scales >> 2) & 48)], 1),
        torch.cat([minima & 63, (rest >> 4) | ((minima >> 2) & 48)], 1),
    )


def _q4_k(b: Tensor) -> tuple[Tensor, ...]:
    return _bits(b[:, 16:].reshape(-1, 4, 32), 4), *_sixes(b[:, 4:16]), b[:, :2], b[:, 2:4]


def _q5_k(b: Tensor) -> tuple[Tensor, ...]:
    low = _bits(b[:, 48:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    return low | (_bits(b[:, 16:48], 1) << 4), *_sixes(b[:, 4:16]), b[:, :2], b[:, 2:4]


def _q6_k(b: Tensor) -> tuple[Tensor, ...]:
    low = _bits(b[:, :128].reshape(-1, 2, 64), 4).reshape(-1, 8, 32)
    high = _bits(b[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 8, 32)
    return low | (high << 4), b[:, 192:208], b[:, 208:]


LAYOUTS: Mapping[str, Layout] = {
    "Q4_0": Layout(lambda b: (_fours(b[:, 2:]), b[:, :2]), (4,), zero=8),
    "Q4_1": Layout(lambda b: (_fours(b[:, 4:]), b[:, :2], b[:, 2:4]), (4,), minimum=1),
    "Q5_0": Layout(lambda b: (_fives(b[:, 6:], b[:, 2:6]), b[:, :2]), (4, 1), zero=16),
    "Q5_1": Layout(lambda b: (_fives(b[:, 8:], b[:, 4:8]), b[:, :2], b[:, 2:4]), (4, 1), minimum=1),
    "Q8_0": Layout(lambda b: (b[:, 2:], b[:, :2]), (8,)),
    "Q4_K": Layout(_q4_k, (4,), minimum=-1, integers=(4, 2), block=256),
    "Q5_K": Layout(_q5_k, (4, 1), minimum=-1, integers=(4, 2), block=256),
    "Q6_K": Layout(_q6_k, (4, 2), zero=32, integers=(8,), block=256, scaled=16),
}
"""Type of blocks -> how they are kept."""


def _packed(codes: Tensor, widths: Sequence[int]) -> list[Tensor]:
    """Return codes [N] as bytes [N * width / 8] for each width.

    A byte has the bits of one code of each half of all N, fourth or eighth, so that `_unpacked` writes long runs.
    """
    out, below = [], 0
    for width in widths:
        parts = ((codes >> below) & (2**width - 1)).reshape(8 // width, -1)
        out.append(reduce(torch.bitwise_or, [part << (k * width) for k, part in enumerate(parts)]))
        below += width
    return out


def _unpacked(parts: Sequence[Tensor], widths: Sequence[int]) -> Tensor:
    """Return the codes of `_packed` as int8 [N]; those of 8 bits are the part itself."""
    if widths[0] == 8:
        return parts[0].view(torch.int8)
    out = parts[0].new_empty(2 * len(parts[0]))
    low, high = out.view(2, -1)
    torch.bitwise_and(parts[0], 15, out=low)
    torch.bitwise_right_shift(parts[0], 4, out=high)
    for part, width in zip(parts[1:], widths[1:], strict=True):
        for k, codes in enumerate(out.view(8 // width, -1)):
            codes |= ((part >> (k * width)) & (2**width - 1)) << 4
    return out.view(torch.int8)


@dataclass(frozen=True, slots=True)
class Blocks:
    """The numbers behind a weight uint8 [bytes]."""

    kind: str
    shape: torch.Size
    """[O, I]"""
    dtype: torch.dtype


def blocks_of(weight: Any) -> Blocks | None:
    """Return the numbers behind a weight of a `BlockLinear`; None for any other."""
    return getattr(weight, "blocks", None)


def _laid_out(rows: Tensor, kind: str, block_bytes: int) -> Tensor:
    """Return the blocks of uint8 [O, bytes of a row] in the order of their layout, as many bytes."""
    layout, outputs = LAYOUTS[kind], len(rows)
    codes, *rest = (part.reshape(outputs, -1) for part in layout.parse(rows.reshape(-1, block_bytes)))
    num = 1 + abs(layout.minimum)
    integers, halves = rest[:-num], [half.view(torch.float16) for half in rest[-num:]]
    parts = _packed(codes.t().flatten(), layout.widths)
    if integers:
        parts += _packed(torch.stack([part.t() for part in integers]).flatten(), layout.integers)
    return torch.cat([*parts, torch.stack([half.t() for half in halves]).view(torch.uint8).flatten()])


def _part_sizes(layout: Layout, count: int) -> list[int]:
    """Return the bytes of the parts of `count` numbers: codes, integers, and the halves of all blocks together."""
    num = 1 + abs(layout.minimum)
    integers = [num * count // layout.scaled * width // 8 for width in layout.integers]
    return [*(count * width // 8 for width in layout.widths), *integers, num * count // layout.block * 2]


def num_bytes(kind: str, shape: torch.Size) -> int:
    """Return the bytes of a layer of this shape in blocks of this type."""
    return sum(_part_sizes(LAYOUTS[kind], shape.numel()))


def numbers(weight: Any) -> Tensor:
    """Return the numbers [O, I] that the blocks of a weight stand for, in the type of the layer."""
    return numbers_of(weight.data, weight.blocks)


def numbers_of(data: Tensor, blocks: Blocks) -> Tensor:
    """Return the numbers [O, I] behind uint8 [bytes], in the type that `blocks` names.

    In memory they are [I, O], which oneDNN multiplies by as fast as by weights in its own order.
    """
    layout, (outputs, inputs) = LAYOUTS[blocks.kind], blocks.shape
    num = 1 + abs(layout.minimum)
    *parts, halves = torch.split(data, _part_sizes(layout, outputs * inputs))
    at = len(layout.widths)
    codes = _unpacked(parts[:at], layout.widths)
    made = (codes.sub_(layout.zero) if layout.zero else codes).float()
    factors = halves.view(torch.float16).float().view(num, -1, 1, outputs)
    if layout.integers:
        integers = _unpacked(parts[at:], layout.integers).float()
        factors = integers.view(*factors.shape[:2], -1, outputs).mul_(factors).view(num, -1, 1, outputs)
    scaled = made.view(-1, layout.scaled, outputs).mul_(factors[0])
    if layout.minimum:
        scaled.add_(factors[1], alpha=layout.minimum)
    return made.view(inputs, outputs).t().to(blocks.dtype)


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
        self.weight = torch.nn.Parameter(_laid_out(rows, kind, block_bytes), requires_grad=False)
        self.weight.blocks = Blocks(kind, linear.weight.shape, linear.weight.dtype)  # type: ignore[attr-defined]
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

    def __init__(self, file: Path, config: Any, layers: Iterable[str]) -> None:
        """Read the directory of a file that `model_folder` has read, with the model's configuration.

        Raises: ConfigError if the file has plain numbers for all of these layers.
        """
        import gguf

        reader: Any = gguf.GGUFReader(file)
        self.file, self.config = file, config
        self.architecture = str(reader.get_field("general.architecture").contents())
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.sizes = {kind.name: size for kind, (_, size) in gguf.GGML_QUANT_SIZES.items()}
        self.names = names_in_file(self.architecture, config)
        self.kinds = {name: kind for name in layers if (kind := self._kind(name)) not in PLAIN}
        """Type of the blocks of each layer that has blocks."""
        if not self.kinds:
            raise ConfigError(f"model.quantize=gguf: {file} has no linear layer in blocks; {INSTEAD}")

    def _kind(self, name: str) -> str:
        """Return the type of a linear layer's weight in the file; "" if it is missing."""
        tensor = self._tensor(name)
        return "" if tensor is None else str(tensor.tensor_type.name)

    def _tensor(self, name: str) -> Any:
        return self.tensors.get(self.names.get_name(f"{name}.weight", try_suffixes=(".weight",)))

    def layer(self, name: str, linear: torch.nn.Linear, device: str) -> torch.nn.Linear:
        """Return the linear layer of this name with the file's blocks, or itself if the file has plain numbers.

        Raises: ConfigError for blocks that are not read here, and where they are not the layer's numbers.
        """
        tensor, kind = self._tensor(name), self._kind(name)
        if kind in PLAIN:
            return linear.to(device)
        if kind not in LAYOUTS:
            where = f"in blocks {kind}" if kind else "missing"
            raise ConfigError(
                f"model.quantize=gguf: the weight of {name} is {where} in {self.file.name}, and read here are "
                f"{', '.join(LAYOUTS)}; {INSTEAD}"
            )
        rows = torch.from_numpy(tensor.data.copy())
        num_heads = paired_heads(self.architecture, f"{name}.weight", self.config)
        if num_heads is not None:
            rows = rows.reshape(num_heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)
        made = BlockLinear(linear, rows, kind, self.sizes[kind])
        if not torch.equal(numbers(made.weight), linear.weight):
            raise ConfigError(
                f"model.quantize=gguf: the blocks of {name} in {self.file.name} are not what transformers reads from "
                f"it for the architecture {self.architecture!r}; {INSTEAD}"
            )
        return made.to(device)
