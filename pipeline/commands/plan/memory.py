"""Count the bytes that training a decoder takes on each GPU, by part, from the model's sizes and the recipe.

The tests compare most parts to measured peaks; the shares of ZeRO and of sequence parallelism are arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.config.run import RunConfig, parts_of
from pipeline.errors import ConfigError
from pipeline.rl.logprobs import CHUNK_ELEMENTS


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    experts: int = 0
    experts_per_token: int = 0
    qk_norm: bool = False
    qkv_bias: bool = False

    def _layer(self, experts: int) -> int:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * self.hidden * queries + 2 * self.hidden * keys + (queries + 2 * keys) * self.qkv_bias
        router = self.hidden * self.experts
        norms = 2 * self.hidden + 2 * self.head_dim * self.qk_norm
        return attention + router + norms + 3 * self.hidden * self.intermediate * max(1, experts)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.layers * self._layer(self.experts) + self.hidden + self.vocab * self.hidden * (2 - self.tied)

    @property
    def active(self) -> int:
        """Parameters used for one token: its own experts, and of the embeddings only the output matrix."""
        return self.layers * self._layer(self.experts_per_token) + self.hidden * (1 + self.vocab)

    @property
    def largest_layer(self) -> int:
        """Parameters that ZeRO 3 gathers at once: those of a block or of the embeddings."""
        return max(self._layer(self.experts), self.vocab * self.hidden)


SHAPES = {
    "Qwen/Qwen2.5-0.5B": Shape(896, 4864, 24, 14, 2, 64, 151936, True, qkv_bias=True),
    "Qwen/Qwen2.5-1.5B": Shape(1536, 8960, 28, 12, 2, 128, 151936, True, qkv_bias=True),
    "Qwen/Qwen2.5-7B": Shape(3584, 18944, 28, 28, 4, 128, 152064, False, qkv_bias=True),
    "Qwen/Qwen3-0.6B": Shape(1024, 3072, 28, 16, 8, 128, 151936, True, qk_norm=True),
    "Qwen/Qwen3-8B": Shape(4096, 12288, 36, 32, 8, 128, 151936, False, qk_norm=True),
    "Qwen/Qwen3-30B-A3B": Shape(2048, 768, 48, 32, 4, 128, 151936, False, 128, 8, qk_norm=True),
}
"""Models that recipes name, so that a plan needs no download. Their -Base and -Instruct forms have the same sizes."""


def shape_of(config: RunConfig) -> Shape:
    """Return the sizes of the recipe's policy. Raises: ConfigError for a hub id that is not in SHAPES."""
    import transformers

    if config.model.create is not None:
        create = config.model.create
        settings: Any = transformers.AutoConfig.for_model(
            create.model_type, **{"vocab_size": len(create.characters) + 2, **create.config}
        )
        return from_settings(settings)
    name = str(config.model.path)
    known = name.removesuffix("-Base").removesuffix("-Instruct")
    if known in SHAPES:
        return SHAPES[known]
    try:
        return from_settings(transformers.AutoConfig.from_pretrained(name, local_files_only=True))
    except OSError as exc:
        raise ConfigError(
            f"model.path={name!r} is no folder here, and its sizes are not known; give a folder that holds its "
            f"config.json, or one of {', '.join(SHAPES)}"
        ) from exc


def from_settings(settings: Any) -> Shape:
    """Return the sizes in a configuration of transformers."""
    heads = settings.num_attention_heads
    experts = next((n for a in ("num_experts", "num_local_experts") if (n := getattr(settings, a, None))), 0)
    return Shape(
        settings.hidden_size,
        (getattr(settings, "moe_intermediate_size", None) if experts else None) or settings.intermediate_size,
        settings.num_hidden_layers,
        heads,
        getattr(settings, "num_key_value_heads", None) or heads,
        getattr(settings, "head_dim", None) or settings.hidden_size // heads,
        settings.vocab_size,
        bool(getattr(settings, "tie_word_embeddings", False)),
        experts,
        getattr(settings, "num_experts_per_tok", 0) if experts else 0,
        qk_norm="qwen3" in settings.model_type,
        qkv_bias="qwen2" in settings.model_type,
    )


@dataclass(frozen=True, slots=True)
class Adapters:
    """Counts of low-rank adapters: `parameters` and `adapted` over all layers, the others per block and token."""

    parameters: int
    adapted: int
    """Weights of the base that have an adapter; a merged copy of them is kept for generating."""
    inputs: int
    """Inputs of adapters; an input of several adapters counts several times."""
    ranks: int
    """Products of the first factors, which the second ones read."""
    read: int
    """Inputs of linear layers, each counted once: without adapters, a backward keeps them for weight gradients."""
    unread: int
    """Inputs of linear layers that no adapter reads."""


def adapters_of(config: RunConfig, shape: Shape) -> Adapters | None:
    """Return the numbers of `train.lora`'s adapters; None without adapters."""
    how = config.train.lora
    if how is None:
        return None
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    hidden, wide = shape.hidden, shape.intermediate
    groups = [
        {"q_proj": (hidden, queries), "k_proj": (hidden, keys), "v_proj": (hidden, keys)},
        {"o_proj": (queries, hidden)},
    ]
    if not shape.experts:  # the experts of a mixture are no linear layers, and get no adapters
        groups += [{"gate_proj": (hidden, wide), "up_proj": (hidden, wide)}, {"down_proj": (wide, hidden)}]
    chosen = [[ends for name, ends in group.items() if not how.targets or name in how.targets] for group in groups]
    pairs = [ends for group in chosen for ends in group]
    sources = [next(iter(group.values()))[0] for group in groups]
    return Adapters(
        parameters=shape.layers * how.rank * sum(a + b for a, b in pairs),
        adapted=shape.layers * sum(a * b for a, b in pairs),
        inputs=sum(a for a, _ in pairs),
        ranks=how.rank * len(pairs),
        read=sum(sources),
        unread=sum(source for source, own in zip(sources, chosen, strict=True) if not own),
    )


def width_of(config: RunConfig) -> int:
    """Return the bytes of a weight."""
    return 2 if config.model.dtype == "bfloat16" else 4


def memory(config: RunConfig, shape: Shape, gpus: int) -> dict[str, float]:
    """Return bytes on each GPU by part, at the peak of a step: in a backward, with gradients accumulated."""
    width = width_of(config)
    zero = config.train.zero if config.train.backend == "deepspeed" else 0
    num, adapters = shape.parameters, adapters_of(config, shape)
    parts = trained(config, num if adapters is None else adapters.parameters, gpus, adapters is not None)
    if adapters is not None:
        parts["weights"] += num * width * (1 / gpus if zero == 3 else 1.0) * (config.train.offload != "all")
        parts["merged copy"] = (num if zero == 3 else adapters.adapted) * width
    if zero == 3:
        parts["gathered layers"] = 2 * shape.largest_layer * width
        if adapters is None:
            parts["whole copy"] = num * width  # for generating
    if config.rl is not None:
        parts["reference"] = _reference(config, num * width, adapters is not None)
        critic = parts_of(config.rl).critic
        if critic is not None and not critic.shared:
            backbone = num - (0 if shape.tied else shape.vocab * shape.hidden)
            parts["critic"] = sum(trained(config, backbone, gpus, False).values())
    parts |= activations(config, shape, width)
    parts |= engine_memory(config, shape, width, gpus)
    return {name: size for name, size in parts.items() if size or name != "reference"}


def trained(config: RunConfig, num: int, gpus: int, adapters: bool) -> dict[str, float]:
    """Return bytes on each GPU of `num` trained parameters, their gradients and AdamW's state."""
    train, width, share = config.train, width_of(config), 1 / gpus
    sharded = train.backend == "deepspeed"
    zero = train.zero if sharded else 0
    if adapters and not sharded:
        width = 4  # torch's backend keeps adapters in float32, whatever the policy's type
    # DeepSpeed updates float32 copies of 16-bit weights.
    masters = 4 if sharded and width == 2 else 0
    moments = 8 if sharded else 2 * width  # torch's AdamW keeps them in the weights' type
    return {
        "weights": 0.0 if train.offload == "all" else num * width * (share if zero == 3 else 1.0),
        "gradients": num * width * (share if zero >= 2 else 1.0),
        "optimizer": 0.0 if train.offload != "none" else num * (moments + masters) * (share if zero >= 1 else 1.0),
    }


def _reference(config: RunConfig, size: float, adapters: bool) -> float:
    """Return bytes of the reference: 0 if there is none, if it is offloaded, or if it is the adapters' frozen base."""
    assert config.rl is not None
    how = config.rl.reference
    if (how is not None and how.schedule == "none") or config.train.offload != "none":
        return 0.0
    stays = (how is not None and how.schedule == "frozen") or config.rl.rounds == 1
    return 0.0 if adapters and stays else size


def activations(config: RunConfig, shape: Shape, width: int) -> dict[str, float]:
    """Return bytes kept for the backward of one micro-batch, and bytes of its logits with their gradient."""
    adapters = adapters_of(config, shape)
    # a row with more than micro_batch_tokens is a micro-batch alone
    longest = config.rollout.max_response_tokens + prompt_tokens(config)
    tokens = -(-max(config.train.micro_batch_tokens, longest) // config.train.sequence_parallel)
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    scaled = 0 if adapters is not None else width  # kept for the gradient of a norm's weight
    norms: float = 2 * shape.hidden * (4 + scaled + width)  # two norms a block: float32 input, scaled, output
    if shape.qk_norm:
        norms += (queries + keys) * (4 + scaled)
    attention = width * (3 * queries + 2 * keys) + 4 * shape.heads
    mlp = 4 * shape.intermediate * width * max(1, shape.experts_per_token)
    block = norms + attention + mlp
    if adapters is not None:
        own = 4 if config.train.backend == "torch" else width
        block += own * adapters.ranks
        if own == width:
            block -= width * adapters.unread
        else:  # each adapter keeps its own copy of its input, in float32
            block += own * adapters.inputs - width * adapters.read
    ends = shape.hidden * (4 + 3 * width)
    logits = _logits(config, shape, tokens, width, adapters is None)
    kept = tokens * (shape.layers * block + ends)
    if config.train.gradient_checkpointing:
        # only blocks' inputs are kept; a block is computed again after the logits are freed, and takes their place
        kept = tokens * (shape.layers * shape.hidden * width + ends) + max(0, tokens * block - logits)
    return {"activations": kept, "logits": logits}


def _logits(config: RunConfig, shape: Shape, tokens: int, width: int, head_learns: bool) -> float:
    """Return bytes of the logits, their gradient and their float32 copies."""
    at_once = config.train.logits_chunk_tokens
    if at_once is not None:
        # three float32 copies of a chunk, and the output embeddings' gradient, to which each chunk adds
        gradient = shape.vocab * shape.hidden * width if head_learns else 0
        return 12 * min(at_once, tokens) * shape.vocab + gradient
    rows = min(CHUNK_ELEMENTS, tokens * shape.vocab)
    # of a chunk: two float32 copies, and the gradient in its own type where that is not float32
    return 2 * tokens * shape.vocab * width + rows * (8 if width == 4 else 8 + width)


def prompt_tokens(config: RunConfig) -> int:
    """Return the tokens of the longest prompt: the recipe's limit, or a quarter of the longest response."""
    return config.data.max_prompt_tokens or config.rollout.max_response_tokens // 4


def engine_memory(config: RunConfig, shape: Shape, width: int, gpus: int) -> dict[str, float]:
    """Return bytes of the rollout engine in the training process; a server has a device of its own."""
    how = config.rollout
    if how.engine == "vllm_server":
        return {}
    length = how.max_response_tokens + prompt_tokens(config)
    cache = 2 * shape.layers * shape.kv_heads * shape.head_dim * width * length
    rows = how.max_rows
    if config.rl is not None:
        # Whole prompts are dealt to ranks, and the fullest rank decides.
        rows = min(rows, -(-config.rl.prompts_per_step // gpus) * config.rl.group_size)
    if how.engine == "vllm" and how.vllm.sleep:
        return {}
    return {"engine weights": shape.parameters * width, "KV cache": rows * cache}
