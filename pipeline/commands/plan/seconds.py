"""Seconds of one RL step by phase: work divided by the device's rates and by the shares that programs reach.

Nothing is run or measured here; `shares.yaml` says which shares were.
"""

from __future__ import annotations

from dataclasses import dataclass

from verizero.pipeline.commands.plan.adapters import adapters_of, linear_weights
from verizero.pipeline.commands.plan.devices import Device, decode_seconds
from verizero.pipeline.commands.plan.memory import base_of, bits_of, divided_by, longest_of, prompt_tokens, width_of
from verizero.pipeline.commands.plan.shape import Shape
from verizero.pipeline.commands.plan.shares import Phase, Share, share_of
from verizero.pipeline.config.episodes import has_episodes
from verizero.pipeline.config.rl import parts_of
from verizero.pipeline.config.run import RunConfig

OWN_TOKEN_S = 0.05e-6
"""Seconds in Python for each token that a rank samples and trains on, measured on a CPU by benchmarks/data_plane.py."""
TOKEN_S, RESPONSE_S = 0.05e-6, 55e-6
"""Seconds in Python for each token and each response of a step, which every rank gets: more GPUs do not shorten it."""
NODE_REDUCE_S, NETWORK_REDUCE_S = 15e-6, 50e-6
"""Estimated seconds of a small all-reduce within a node and over nodes: a layer on several GPUs has two of them."""


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
    peers: bool = False
    """True: the update as by `peers` of the table, for comparison with published steps."""

    def share(self, phase: Phase) -> Share:
        """Return the share that this recipe's program reaches in a phase."""
        train, rollout = self.config.train, self.config.rollout
        runs: str = train.backend if phase in ("forward", "update", "link") else rollout.engine
        if phase in ("decode", "publish") and rollout.servers is not None:
            # Decoding is vLLM's in another process. Servers of other kinds are taken for vLLM's.
            runs = "vllm" if phase == "decode" else "vllm_server"
        if self.peers and phase != "decode":
            runs = "peers"
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
    parts, updates = parts_of(config.rl), parts_of(config.rl).updates
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
    cost = 1 + (1 if config.train.lora is not None else 2) + config.train.gradient_checkpointing
    phases["update"] = updates.num_epochs * cost * forward / (rate * work.share("update").value)
    tokens_of_gpu = work.tokens * config.train.sequence_parallel / gpus
    phases["data"] = OWN_TOKEN_S * tokens_of_gpu + TOKEN_S * work.tokens + RESPONSE_S * work.responses
    phases["publish"] = publishing(work)
    if gpus > 1:
        phases["communication"] = communication(work)
    return phases


def has_reference(config: RunConfig) -> bool:
    """True if a step computes the log-probs of a reference."""
    assert config.rl is not None
    return config.rl.reference is None or config.rl.reference.schedule != "none"


def engine_gpus(work: Work) -> tuple[float, int]:
    """Return the number of engines, and of GPUs that each is divided over."""
    how = work.config.rollout
    over = 1 if how.engine == "torch" else how.vllm.tensor_parallel
    if (servers := how.servers) is not None:
        return len(servers.urls) or servers.servers, over
    return max(1.0, work.gpus / over), over


def decoding(work: Work) -> float:
    """Return the seconds of generation.

    All rows are busy until no response waits; from then on there are as many steps as the longest response has tokens.
    Where transformers decodes, rows begin together, and the next ones when all have ended. Each step reads the weights
    that its rows use; the cache is read for the rows that have not ended. Lengths count as spread evenly around their
    mean.
    """
    config, shape, device, lengths = work.config, work.shape, work.device, work.lengths
    width = width_of(config)
    engines, over = engine_gpus(work)
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
    in_bits = config.model.quantize is not None and (config.rollout.engine == "torch" or config.rollout.takes_bits)
    made = linear_weights(shape) * (bits_of(config) / 8 + width) if in_bits else 0.0

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
    if not served and zero < 3 and not work.peers:
        return 0.0
    link = 1e9 * work.device.network_gb_s if served else work.device.link(work.gpus)
    return size / (link * work.share("publish").value)


def communication(work: Work) -> float:
    """Return the seconds of all communication in a step, but for publishing.

    Counted are the gradients, once an optimiser step; with ZeRO 3 the weights, twice for each micro-batch; with
    sequence parallelism queries, keys, values and attention's outputs, there and back.
    """
    config, shape, gpus, tokens = work.config, work.shape, work.gpus, work.tokens
    assert config.rl is not None
    updates, width = parts_of(config.rl).updates, width_of(config)
    steps = updates.num_epochs * updates.num_minibatches
    adapters, train = adapters_of(config, shape), config.train
    one_pass = shape.parameters * width * (gpus - 1) / gpus
    gradients = one_pass if adapters is None else one_pass * adapters.parameters / shape.parameters
    moved = 2 * gradients * steps  # an all-reduce is a reduce-scatter and an all-gather
    if divided_by(train) == 3:
        micros = max(1.0, tokens * updates.num_epochs * train.sequence_parallel / gpus / train.micro_batch_tokens)
        # Gathered for forward and backward, gradients scattered.
        moved = micros * (2 * base_of(config, shape) * (gpus - 1) / gpus + gradients)
    if train.sequence_parallel > 1:
        heads = (shape.heads + shape.kv_heads) * (shape.head_dim + shape.value_dim)
        passes = (2 + train.gradient_checkpointing) * updates.num_epochs
        sent = (train.sequence_parallel - 1) / train.sequence_parallel  # the rest stays on its rank
        moved += passes * sent * heads * width * shape.layers * tokens / gpus
    return moved / (work.device.link(gpus) * work.share("link").value)
