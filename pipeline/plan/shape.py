"""The sizes of a decoder: its parameters, those that a token uses, the cache that a token takes, and its adapters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.gguf_file import model_folder
from verizero.pipeline.models.named import is_path
from verizero.pipeline.near import near_path


@dataclass(frozen=True, slots=True)
class Latent:
    """Attention whose keys and values come from one latent vector a token (MLA, arXiv:2405.04434, section 2.1)."""

    query_rank: int
    """Size of the queries' latent vector; 0: queries are made from the hidden state at once."""
    rank: int
    """Size of the latent vector of keys and values."""
    rotary: int
    """Part of a head's queries and keys that is rotated; all heads share the keys' part."""
    value_dim: int
    """Size of a head's values; `Shape.head_dim` is that of its queries and keys."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder."""

    hidden: int
    intermediate: int
    """Width of the feed-forward part; with experts, of one expert."""
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
    shared: int = 0
    """Width of the experts that every token uses, together with its own."""
    dense_layers: int = 0
    """Layers without experts, among `layers`."""
    dense_intermediate: int = 0
    """Width of the feed-forward part of these."""
    latent: Latent | None = None

    @property
    def kind(self) -> str:
        """Return "mixture" for a mixture of experts, else "dense"."""
        return "mixture" if self.experts else "dense"

    @property
    def is_fast(self) -> bool:
        """True if the embedded engine decodes it by itself: neither experts nor latent attention, as the sizes show."""
        return not self.experts and self.latent is None

    @property
    def value_dim(self) -> int:
        """Size of a head's values."""
        return self.head_dim if self.latent is None else self.latent.value_dim

    @property
    def attention(self) -> int:
        """Parameters of a layer's attention, with the norms of the layer."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        norms = 2 * self.hidden + 2 * self.head_dim * self.qk_norm
        if self.latent is None:
            return 2 * self.hidden * queries + 2 * self.hidden * keys + (queries + 2 * keys) * self.qkv_bias + norms
        latent = self.latent
        to_queries = latent.query_rank * (self.hidden + queries + 1) if latent.query_rank else self.hidden * queries
        to_latent = self.hidden * (latent.rank + latent.rotary) + latent.rank
        from_latent = latent.rank * self.heads * (self.head_dim - latent.rotary + latent.value_dim)
        return to_queries + to_latent + from_latent + self.heads * latent.value_dim * self.hidden + norms

    def feed_forward(self, experts: int) -> int:
        """Return the parameters of all layers' feed-forward parts, with so many experts of each mixture."""
        if not self.experts:
            return self.layers * 3 * self.hidden * self.intermediate
        router = self.hidden * self.experts
        mixture = router + 3 * self.hidden * (experts * self.intermediate + self.shared)
        dense = 3 * self.hidden * self.dense_intermediate
        return (self.layers - self.dense_layers) * mixture + self.dense_layers * dense

    def used(self, experts: int) -> int:
        """Return the parameters read by a forward in which so many experts of each layer have tokens."""
        return self.layers * self.attention + self.feed_forward(experts) + self.hidden * (1 + self.vocab)

    def touched(self, rows: float) -> float:
        """Return the parameters read by a forward of `rows` tokens, of which each chooses its experts evenly."""
        if not self.experts:
            return self.active
        share: float = 1 - (1 - self.experts_per_token / self.experts) ** rows
        return self.used(0) + share * (self.used(self.experts) - self.used(0))

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.used(self.experts) + (0 if self.tied else self.vocab * self.hidden)

    @property
    def active(self) -> int:
        """Parameters used for one token: its own experts, and of the embeddings only the output matrix."""
        return self.used(self.experts_per_token)

    @property
    def largest_layer(self) -> int:
        """Parameters that ZeRO 3 gathers at once: those of a block or of the embeddings."""
        return max(self.block, self.vocab * self.hidden)

    @property
    def block(self) -> int:
        """Parameters of the widest block, without those of its norms."""
        mixture = self.hidden * self.experts + 3 * self.hidden * (self.experts * self.intermediate + self.shared)
        widest = max(mixture, 3 * self.hidden * (self.dense_intermediate if self.experts else self.intermediate))
        return self.attention + widest

    @property
    def mlp_width(self) -> float:
        """Mean width, over layers, of the feed-forward part that a token uses."""
        if not self.experts:
            return self.intermediate
        mixture = self.experts_per_token * self.intermediate + self.shared
        return ((self.layers - self.dense_layers) * mixture + self.dense_layers * self.dense_intermediate) / self.layers

    def cache(self, width: int, expanded: bool = False) -> int:
        """Return the bytes that a token takes in the cache, its numbers of `width` bytes.

        With latent attention an engine keeps the latent vector, or `expanded` all heads' keys and values.
        """
        if self.latent is not None and not expanded:
            return self.layers * (self.latent.rank + self.latent.rotary) * width
        return self.layers * self.kv_heads * (self.head_dim + self.value_dim) * width

    def forward_flops(self, tokens: float, length: float) -> float:
        """Return the operations of a forward over `tokens` tokens in rows of `length`, causal attention included."""
        # A token attends to half of its row in the mean: a product and an addition each for queries times keys, and
        # for weights times values.
        attending = self.layers * self.heads * (self.head_dim + self.value_dim) * length
        return tokens * (2 * self.active + attending)


V3 = Latent(query_rank=1536, rank=512, rotary=64, value_dim=128)
SHAPES = {
    "Qwen/Qwen2.5-0.5B": Shape(896, 4864, 24, 14, 2, 64, 151936, True, qkv_bias=True),
    "Qwen/Qwen2.5-1.5B": Shape(1536, 8960, 28, 12, 2, 128, 151936, True, qkv_bias=True),
    "Qwen/Qwen2.5-7B": Shape(3584, 18944, 28, 28, 4, 128, 152064, False, qkv_bias=True),
    "Qwen/Qwen3-0.6B": Shape(1024, 3072, 28, 16, 8, 128, 151936, True, qk_norm=True),
    "Qwen/Qwen3-1.7B": Shape(2048, 6144, 28, 16, 8, 128, 151936, True, qk_norm=True),
    "Qwen/Qwen3-4B": Shape(2560, 9728, 36, 32, 8, 128, 151936, True, qk_norm=True),
    "Qwen/Qwen3-8B": Shape(4096, 12288, 36, 32, 8, 128, 151936, False, qk_norm=True),
    "Qwen/Qwen3-14B": Shape(5120, 17408, 40, 40, 8, 128, 151936, False, qk_norm=True),
    "Qwen/Qwen3-32B": Shape(5120, 25600, 64, 64, 8, 128, 151936, False, qk_norm=True),
    "Qwen/Qwen3-30B-A3B": Shape(2048, 768, 48, 32, 4, 128, 151936, False, 128, 8, qk_norm=True),
    "Qwen/Qwen3-235B-A22B": Shape(4096, 1536, 94, 64, 4, 128, 151936, False, 128, 8, qk_norm=True),
    "meta-llama/Llama-3.1-8B": Shape(4096, 14336, 32, 32, 8, 128, 128256, False),
    "deepseek-ai/DeepSeek-V3": Shape(
        7168, 2048, 61, 128, 128, 192, 129280, False, 256, 8,
        shared=2048, dense_layers=3, dense_intermediate=18432, latent=V3,
    ),
}  # fmt: skip
"""Models that recipes name, and dense ones next to them, so that a plan needs no download. Their -Base and -Instruct
forms, and Qwen2.5's -Math and -Coder, have the same sizes.

DeepSeek-V3 is counted without the layer that predicts a second token, which RL does not train.
"""


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
    known = re.sub(r"(?<=Qwen2\.5)-(Coder|Math)|-(Base|Instruct)$", "", name)
    if known in SHAPES:
        return SHAPES[known]
    if is_path(name):
        name = model_folder(name, Path(config.output))
    try:
        return from_settings(transformers.AutoConfig.from_pretrained(name, local_files_only=True))
    except OSError as exc:
        remedy = f"give a folder that holds its config.json, or one of {', '.join(SHAPES)}"
        raise ConfigError(
            f"model.path={name!r} is no folder here, and its sizes are not known; "
            + (remedy if is_path(name) else near_path(name, remedy))
        ) from exc


def from_settings(settings: Any) -> Shape:
    """Return the sizes in a configuration of transformers."""
    heads, layers = settings.num_attention_heads, settings.num_hidden_layers
    experts = next((n for a in ("num_experts", "num_local_experts") if (n := getattr(settings, a, None))), 0)
    own_width = getattr(settings, "moe_intermediate_size", None) or settings.intermediate_size
    shared = getattr(settings, "shared_expert_intermediate_size", 0) or 0
    shared = shared or own_width * (getattr(settings, "n_shared_experts", 0) or 0)
    dense = getattr(settings, "first_k_dense_replace", 0) or len(getattr(settings, "mlp_only_layers", None) or ())
    head_dim, latent = getattr(settings, "head_dim", None) or settings.hidden_size // heads, None
    if getattr(settings, "kv_lora_rank", None):
        head_dim = settings.qk_nope_head_dim + settings.qk_rope_head_dim
        latent = Latent(
            settings.q_lora_rank or 0, settings.kv_lora_rank, settings.qk_rope_head_dim, settings.v_head_dim
        )
    return Shape(
        settings.hidden_size,
        own_width if experts else settings.intermediate_size,
        layers,
        heads,
        getattr(settings, "num_key_value_heads", None) or heads,
        head_dim,
        settings.vocab_size,
        bool(getattr(settings, "tie_word_embeddings", False)),
        experts,
        getattr(settings, "num_experts_per_tok", 0) if experts else 0,
        qk_norm="qwen3" in settings.model_type,
        qkv_bias="qwen2" in settings.model_type,
        shared=shared if experts else 0,
        dense_layers=dense if experts else 0,
        dense_intermediate=settings.intermediate_size if experts and dense else 0,
        latent=latent,
    )


@dataclass(frozen=True, slots=True)
class Adapters:
    """Counts of low-rank adapters: `parameters` over all layers, the others per block, in the mean."""

    parameters: int
    inputs: float
    """A token's inputs of adapters; an input of several adapters counts several times."""
    ranks: float
    """A token's products of the first factors, which the second ones read."""
    read: float
    """A token's inputs of linear layers, once each: without adapters, a backward keeps them for weight gradients."""
    unread: float
    """A token's inputs of linear layers that no adapter reads."""
    summed: float
    """Weights of experts with adapters: their sum with the adapters is kept from the forward to the backward."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Weights with the same input, in so many layers; with `experts` one for each expert."""

    layers: int
    ends: dict[str, tuple[int, int]]
    """Name -> inputs and outputs."""
    experts: int = 0

    def chosen(self, targets: tuple[str, ...]) -> list[tuple[int, int]]:
        """Return inputs and outputs of those that get adapters."""
        ends = tuple(f".{target}" for target in targets)
        return [sizes for name, sizes in self.ends.items() if not targets or f".{name}".endswith(ends)]


def adapters_of(config: RunConfig, shape: Shape) -> Adapters | None:
    """Return the numbers of `train.lora`'s adapters; None without adapters."""
    how = config.train.lora
    if how is None:
        return None
    groups = [(group, group.chosen(how.targets)) for group in _groups(shape)]
    linear = [(group.layers / shape.layers, group, shapes) for group, shapes in groups if not group.experts]
    of_experts = [(group, shapes) for group, shapes in groups if group.experts]
    sources = [(share, next(iter(group.ends.values()))[0], shapes) for share, group, shapes in linear]
    return Adapters(
        parameters=sum(g.layers * how.rank * (g.experts or 1) * (a + b) for g, shapes in groups for a, b in shapes),
        inputs=sum(share * a for share, _, shapes in linear for a, _ in shapes),
        ranks=how.rank * sum(share * len(shapes) for share, _, shapes in linear),
        read=sum(share * source for share, source, _ in sources),
        unread=sum(share * source for share, source, shapes in sources if not shapes),
        summed=sum(g.layers * g.experts * a * b for g, shapes in of_experts for a, b in shapes) / shape.layers,
    )


def linear_weights(shape: Shape) -> int:
    """Return the weights of all linear layers but the output's; of a mixture, with those of experts."""
    return sum(g.layers * (g.experts or 1) * a * b for g in _groups(shape) for a, b in g.ends.values())


def _groups(shape: Shape) -> list[_Group]:
    """Return all weights that adapters can have: linear layers but the output's, and experts."""
    hidden, mixtures = shape.hidden, shape.layers - shape.dense_layers if shape.experts else 0
    groups = [_Group(shape.layers, ends) for ends in _attention(shape)]
    dense = shape.dense_intermediate if shape.experts else shape.intermediate
    for layers, module, wide in (
        (shape.layers - mixtures, "mlp", dense),
        (mixtures * (shape.shared > 0), "mlp.shared_experts", shape.shared),
    ):
        groups.append(_Group(layers, {f"{module}.{x}_proj": (hidden, wide) for x in ("gate", "up")}))
        groups.append(_Group(layers, {f"{module}.down_proj": (wide, hidden)}))
    wide = shape.intermediate
    for name, ends in {"gate_up_proj": (hidden, 2 * wide), "down_proj": (wide, hidden)}.items():
        groups.append(_Group(mixtures, {f"mlp.experts.{name}": ends}, shape.experts))
    return [group for group in groups if group.layers]


def _attention(shape: Shape) -> list[dict[str, tuple[int, int]]]:
    """Return attention's linear layers: those with the same input together."""
    hidden, queries, keys = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if shape.latent is None:
        first = {"q_proj": (hidden, queries), "k_proj": (hidden, keys), "v_proj": (hidden, keys)}
        layers = [first, {"o_proj": (queries, hidden)}]
    else:
        latent, values = shape.latent, shape.heads * shape.latent.value_dim
        to_queries = {"q_a_proj": (hidden, latent.query_rank)} if latent.query_rank else {"q_proj": (hidden, queries)}
        layers = [
            {**to_queries, "kv_a_proj_with_mqa": (hidden, latent.rank + latent.rotary)},
            {"kv_b_proj": (latent.rank, shape.heads * (shape.head_dim - latent.rotary) + values)},
            {"o_proj": (values, hidden)},
        ]
        if latent.query_rank:
            layers.append({"q_b_proj": (latent.query_rank, queries)})
    return [{f"self_attn.{name}": ends for name, ends in group.items()} for group in layers]
