"""GPUs by their data sheets, and the least time that a step of decoding can take on one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from verizero.pipeline.models.flops import PEAKS


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU's data sheet: dense rates, memory, and bandwidths in one direction."""

    name: str
    tflops: float
    float32_tflops: float
    """Without TF32, which torch does not use by default."""
    memory_gib: float
    memory_gb_s: float
    node_gb_s: float
    """To the other GPUs of its node, which has `per_node`."""
    network_gb_s: float
    """To other nodes, per GPU."""
    per_node: int = 8

    def rate(self, width: int) -> float:
        """Return operations per second on numbers of `width` bytes."""
        return 1e12 * (self.tflops if width == 2 else self.float32_tflops)

    def link(self, gpus: int) -> float:
        """Return bytes per second between so many GPUs: beyond one node the slowest link decides."""
        return 1e9 * (self.node_gb_s if gpus <= self.per_node else self.network_gb_s)


DEVICES = {
    d.name: d
    for d in (
        Device("l4", *PEAKS["L4"], 24, 300, 32, 3),
        Device("l40s", *PEAKS["L40S"], 48, 864, 32, 3),
        Device("rtx4090", *PEAKS["RTX 4090"], 24, 1008, 32, 3),
        Device("a100", *PEAKS["A100"], 80, 2039, 300, 25),
        Device("h100", *PEAKS["H100"], 80, 3350, 450, 50),
        Device("h200", *PEAKS["H200"], 141, 4800, 450, 50),
        Device("b200", *PEAKS["B200"], 180, 8000, 900, 50),
    )
}


def device_named(name: str, memory_gib: float, per_node: int) -> Device:
    """Return the GPU that torch calls `name`, with its own memory; of an unknown one the rates are those of an H100."""
    known = [d for d in DEVICES.values() if d.name.upper() in name.upper().replace(" ", "")]
    device = max(known, key=lambda d: len(d.name), default=DEVICES["h100"])  # an L40S is no L4
    return replace(device, memory_gib=memory_gib, per_node=per_node)


CPU = Device("cpu", 0, 0, 0, 0, 0, 0)
"""This machine, of which nothing is known: plans count its memory alone."""


def decode_seconds(
    weight_bytes: float, rows: float, tokens: float, cache_bytes: float, bytes_per_s: float, computing_s: float = 0.0
) -> float:
    """Return the least seconds of a step of decoding: it reads the weights once, and the cache of every row.

    tokens: mean number of tokens in a row's cache; cache_bytes: of one token, as `Shape.cache` counts them;
    bytes_per_s: what the device's memory reaches in a copy; computing_s: seconds of the step's products at the device's
    rate, which bound it with many rows. Rows over the result are the most tokens per second. Writes and the sampler are
    left out, so no engine reaches the bound.
    """
    return max((weight_bytes + rows * tokens * cache_bytes) / bytes_per_s, computing_s)
