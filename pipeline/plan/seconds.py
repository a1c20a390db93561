"""Seconds of one RL step by phase: work divided by the device's rates and by the shares that programs reach.

Nothing is run or measured here; `shares.yaml` says which shares were.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import yaml

from verizero.pipeline.config.episodes import has_episodes
from verizero.pipeline.config.rl import parts_of
from verizero.pipeline.config.rollout import servers_of
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.models.quantized import NF4_BITS
from verizero.pipeline.plan.devices import Device, decode_seconds
from verizero.pipeline.plan.memory import base_of, divided_by, longest_of, prompt_tokens, shards_of, width_of
from verizero.pipeline.plan.shape import Shape, adapters_of, linear_weights

OWN_TOKEN_S = 0.05e-6
"""Seconds in Python for each token that a rank samples and trains on, measured on a core of a CPU."""
TOKEN_S, RESPONSE_S = 0.05e-6, 55e-6
"""Seconds in Python for each token and each response of a step, which every rank gets: more GPUs do not shorten it."""
NODE_REDUCE_S, NETWORK_REDUCE_S = 15e-6, 50e-6
"""Estimated seconds of a small all-reduce within a node and over nodes: a layer on several GPUs has two of them."""
FILE = Path(__file__).with_name("shares.yaml")
Phase = Literal["copy", "decode", "forward", "update", "link", "publish"]
Source = Literal["estimated", "published", "measured"]
TRUST: tuple[Source, ...] = ("estimated", "published", "measured")
ALIKE = 1.25
"""Sizes of models within this factor count as one."""


class Row(NamedTuple):
    """A row of shares.yaml, whose header says what each column is."""

    phase: Phase
    share: float
    source: Source
    runs: str | None = None
    kind: str | None = None
    billions: float | None = None
    gpu: str | None = None
    note: str = ""


class Share(NamedTuple):
    """A share, and the least trusted source among the rows that it comes from."""

    value: float
    source: Source


@cache
def table() -> tuple[Row, ...]:
    """Return the rows of the file."""
    return tuple(Row(**row) for row in yaml.safe_load(FILE.read_text(encoding="utf-8"))["rows"])


def share_of(
    phase: Phase, runs: str, kind: str, billions: float, gpu: str, rows: tuple[Row, ...] | None = None
) -> Share:
    """Return the share that the program `runs` reaches in a phase, on a model of so many billions of parameters.

    Rows that name the program replace those for any. A row replaces others of about its size that are of any GPU or
    less trusted. A share between two sizes is interpolated over the logarithm of the size. Raises: LookupError if no
    row applies.
    """
    fitting = [r for r in rows or table() if r.phase == phase and r.kind in (None, kind) and r.gpu in (None, gpu)]
    named = [r for r in fitting if r.runs == runs]
    fitting = named or [r for r in fitting if r.runs is None]
    fitting = [r for r in fitting if r.billions is not None] or fitting
    if not fitting:
        raise LookupError(f"{FILE.name} has no row for {phase} by {runs} of a {kind} model on {gpu}; add one")
    best: dict[float, Row] = {}
    for row in sorted(fitting, key=lambda r: (r.gpu is None, -TRUST.index(r.source))):
        size = row.billions or 1.0
        if all(max(size, other) > ALIKE * min(size, other) for other in best):
            best[size] = row
    low = max((s for s in best if s <= billions), default=min(best))
    high = min((s for s in best if s >= billions), default=max(best))
    weight = 0.0 if low == high else math.log(billions / low) / math.log(high / low)
    source = min(best[low].source, best[high].source, key=TRUST.index)
    return Share(best[low].share * (1 - weight) + best[high].share * weight, source)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean lengths in tokens, and the longest response. A response of several turns is an episode."""

    prompt: float
    response: float
    longest: float
    turns: int = 1

    @classmethod
    def of(cls, config: RunConfig, mean_share: float, mean_prompt: float | None) -> Lengths:
        """Return those of a recipe; without `mean_prompt` every prompt counts as the longest."""
        most = longest_of(config)
        turns = config.episodes.max_turns if has_episodes(config.data, config.episodes) else 1
        return cls(prompt_tokens(config) if mean_prompt is None else mean_prompt, mean_share * most, most, turns)


@dataclass(frozen=True, slots=True)
class Work:
    """A recipe on some GPUs, whose programs reach the shares of the table."""

    config: RunConfig
    shape: Shape
    gpus: int
    device: Device
    lengths: Lengths

    def share(self, phase: Phase) -> Share:
        """Return the share that this recipe's program reaches in a phase."""
        train, rollout = self.config.train, self.config.rollout
        runs: str = train.backend if phase in ("forward", "update", "link") else rollout.engine
        if phase in ("decode", "publish") and rollout.servers is not None:
            # Decoding is vLLM's in another process. Servers of other kinds are taken for vLLM's.
            runs = "vllm" if phase == "decode" else "vllm_server"
        return share_of(phase, runs, self.shape.kind, self.shape.parameters / 1e9, self.device.name)

    @property
    def responses(self) -> int:
        """Responses of a step."""
        assert self.config.rl is not None
        return self.config.rl.prompts_per_step * self.config.rl.group_size

    @property
    def tokens(self) -> float:
        """Tokens of a step, prompts with each of their responses."""
        return self.responses * (self.lengths.prompt + self.lengths.response)


def seconds(work: Work) -> dict[str, float]:
    """Return the seconds of one RL step by phase."""
    config, shape, gpus = work.config, work.shape, work.gpus
    assert config.rl is not None
    parts = parts_of(config.rl)
    rate = gpus * work.device.rate(width_of(config))
    forward = shape.forward_flops(work.tokens, work.lengths.prompt + work.lengths.response)
    one_forward = forward / (rate * work.share("forward").value)
    phases = {"generate": decoding(work)}
    if parts.has_old_forward:
        phases["old log-probs"] = one_forward
    if parts.needs_score_norms:  # a forward at half the temperature, and one at the temperature if there is none yet
        phases["score norms"] = one_forward * (1 if parts.has_old_forward else 2)
    if has_reference(config):
        phases["reference"] = one_forward
    # A backward has two products for each of the forward's: for the inputs and, unless frozen, for the weights.
    # Checkpointing computes the forward a second time.
    cost = 1 + (1 if config.train.lora is not None else 2) + config.train.recomputes
    phases["update"] = parts.params.num_epochs * cost * forward / (rate * work.share("update").value)
    tokens_of_gpu = work.tokens / gpus
    phases["data"] = OWN_TOKEN_S * tokens_of_gpu + TOKEN_S * work.tokens + RESPONSE_S * work.responses
    phases["publish"] = publishing(work)
    if gpus > 1:
        phases["communication"] = communication(work)
    return phases


def has_reference(config: RunConfig) -> bool:
    """True if a step computes the log-probs of a reference."""
    assert config.rl is not None
    return config.rl.reference is None or config.rl.reference.schedule != "none"


def decoding(work: Work) -> float:
    """Return the seconds of generation.

    All rows are busy until no response waits; from then on there are as many steps as the longest response has tokens.
    Where transformers decodes, rows begin together, and the next ones when all have ended. Each step reads the weights
    that its rows use; the cache is read for the rows that have not ended. Lengths count as spread evenly around their
    mean.
    """
    config, shape, device, lengths = work.config, work.shape, work.device, work.lengths
    width = width_of(config)
    over = 1 if config.rollout.engine == "torch" else config.rollout.vllm.tensor_parallel
    servers, nodes = servers_of(config.launch, config.rollout), max(1, config.launch.nodes.generate)
    engines = max(1.0, work.gpus / over) if servers is None else len(servers.urls) or servers.servers * nodes
    rows = max(1.0, work.responses / engines)
    together = min(rows, config.rollout.max_rows)
    expanded = config.rollout.engine == "torch"  # transformers caches what latent attention makes of its vector
    # Fewer heads than devices are held by several of them; a latent vector by all.
    split = 1 if shape.latent is not None and not expanded else min(over, shape.kv_heads)
    cached = lengths.prompt + lengths.response / 2
    bandwidth = device.memory_gb_s * 1e9 * work.share("copy").value
    # Two all-reduces a layer where several devices share it.
    reduce_s = NODE_REDUCE_S if over <= device.per_node else NETWORK_REDUCE_S
    meeting = 2 * shape.layers * reduce_s if over > 1 else 0.0

    # In each step the numbers of quantised layers are made again, written and read.
    in_bits = config.model.quantize is not None and config.rollout.engine == "torch"
    made = linear_weights(shape) * (NF4_BITS / 8 + width) if in_bits else 0.0

    def step(running: float) -> float:
        weights = shape.touched(running) * width / over + made
        computing = shape.forward_flops(running, cached) / (over * device.rate(width))
        bound = decode_seconds(weights, running, cached, shape.cache(width, expanded) / split, bandwidth, computing)
        return bound / work.share("decode").value + meeting

    share = lengths.response / lengths.longest  # of rows that have not ended, in the mean over the longest one's steps
    if expanded and not shape.is_fast:
        waves, rest = divmod(rows, together)
        steps = lengths.longest * (waves * step(together * share) + (step(rest * share) if rest else 0.0))
    else:
        full = (rows - together) * lengths.response / together  # steps with all rows busy
        steps = full * step(together) + lengths.longest * step(together * share)
    # Each prompt is computed once, whatever the number of its responses; the k-th later turn of an episode computes
    # its prompt and k turns again.
    assert config.rl is not None
    prefill = shape.forward_flops(config.rl.prompts_per_step * lengths.prompt, lengths.prompt)
    for played in (k / lengths.turns for k in range(1, lengths.turns)):
        history = lengths.prompt + played * lengths.response
        prefill += shape.forward_flops(work.responses * history, history)
    prefill /= engines * over * device.rate(width) * work.share("forward").value
    return steps + prefill


def publishing(work: Work) -> float:
    """Return the seconds in which new weights reach the engine: within a GPU nothing is counted."""
    train, rollout = work.config.train, work.config.rollout
    zero, served = divided_by(train), rollout.servers is not None
    adapters, size = adapters_of(work.config, work.shape), work.shape.parameters * width_of(work.config)
    takes_adapters = rollout.takes_adapters or work.config.model.quantize is not None
    if adapters is not None and not adapters.summed and takes_adapters and train.backend != "deepspeed":
        size = 4 * adapters.parameters  # their base has come before the first step
    if not served and zero < 3:
        return 0.0
    link = (
        1e9 * work.device.network_gb_s
        if served
        else work.device.link(shards_of(work.config, work.shape, work.gpus, work.device))
    )
    return size / (link * work.share("publish").value)


def communication(work: Work) -> float:
    """Return the seconds of all communication in a step, but for publishing.

    Counted are the gradients, once an optimiser step; with ZeRO 3 the weights, twice for each micro-batch, within a
    replica.
    """
    config, shape, gpus, tokens = work.config, work.shape, work.gpus, work.tokens
    assert config.rl is not None
    params, width = parts_of(config.rl).params, width_of(config)
    adapters, train = adapters_of(config, shape), config.train
    learns = shape.parameters if adapters is None else adapters.parameters
    shards = shards_of(config, shape, gpus, work.device) if divided_by(train) == 3 else 1
    replicas = gpus // shards
    # An all-reduce is a reduce-scatter and an all-gather. FSDP's sums are float32.
    between = 2 * learns * (width if shards == 1 else 4) / shards * (replicas - 1) / replicas * params.num_updates
    micros = max(1.0, tokens * params.num_epochs / gpus / train.most_tokens)
    # Gathered for forward and backward, gradients scattered.
    within = micros * (2 * base_of(config, shape) + learns * width) * (shards - 1) / shards
    links = between / work.device.link(gpus) + within / work.device.link(shards)
    return links / work.share("link").value
