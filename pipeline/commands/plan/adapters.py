"""Count the low-rank adapters of `train.lora` from a model's sizes: those of linear layers, and those of experts."""

from __future__ import annotations

from dataclasses import dataclass

from verizero.pipeline.commands.plan.shape import Shape
from verizero.pipeline.config.run import RunConfig


@dataclass(frozen=True, slots=True)
class Adapters:
    """Counts of low-rank adapters: `parameters` and `adapted` over all layers, the others per block, in the mean."""

    parameters: int
    adapted: int
    """Weights of the base that have an adapter; a merged copy of them is kept for generating."""
    inputs: float
    """A token's inputs of adapters; an input of several adapters counts several times."""
    ranks: float
    """A token's products of the first factors, which the second ones read."""
    read: float
    """A token's inputs of linear layers, each counted once: without adapters, a backward keeps them for weight
    gradients."""
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
        return [ends for name, ends in self.ends.items() if not targets or any(_is(name, t) for t in targets)]


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
        adapted=sum(g.layers * (g.experts or 1) * a * b for g, shapes in groups for a, b in shapes),
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


def _is(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")
