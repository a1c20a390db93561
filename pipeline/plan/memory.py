"""Count the bytes that a step takes on each GPU, by part, from the model's sizes and the recipe.

A step has two peaks: while responses are generated, with the engine awake; and in the update, in a backward with
gradients accumulated. The tests compare most parts to measured peaks; the shares of ZeRO are arithmetic.
"""

from __future__ import annotations

from typing import Literal

import torch

from verizero.pipeline.config.auto import num_replicas
from verizero.pipeline.config.episodes import has_episodes, max_sampled_tokens
from verizero.pipeline.config.rl import parts_of
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.models.decoder import habits_of, room_of
from verizero.pipeline.models.forward import CHUNK_ON_GPU
from verizero.pipeline.models.quantized import NF4_BITS
from verizero.pipeline.plan.devices import CPU, Device
from verizero.pipeline.plan.shape import Adapters, Shape, adapters_of, linear_weights
from verizero.pipeline.rl.logprobs import CHUNK_ELEMENTS
from verizero.pipeline.rollout.sampling import BLOCKS_FROM

GIB = 1 << 30
VLLM = "vLLM's share"
"""The part that vLLM has while it is awake."""
GRAPHS = 1 << 30
"""CUDA graphs of vLLM, which stay on the GPU while it sleeps; estimated, 0.5 to 1.5 GiB."""
BLOCK = 256
"""Moments of bitsandbytes in 8 bits that share a float32 scale. Those of embeddings stay float32, and so do those of
tensors below 4,096 numbers, which are not counted."""
MOMENTS = {"adamw": 8.0, "adamw_8bit": 2 * (1 + 4 / BLOCK), "paged_adamw_8bit": 2 * (1 + 4 / BLOCK)}
"""Bytes of a parameter's two moments, by the kind of optimiser. Paged ones count as if they stayed on the GPU."""


def divided_by(train: TrainConfig) -> int:
    """Return the ZeRO stage that divides as much: 3 for FSDP, which divides everything, 0 for torch's backend."""
    return 3 if train.backend == "fsdp" else train.zero


def width_of(config: RunConfig) -> int:
    """Return the bytes of a weight."""
    return 2 if config.model.dtype == "bfloat16" else 4


def peaks(config: RunConfig, shape: Shape, gpus: int, device: Device) -> dict[str, dict[str, float]]:
    """Return bytes on each GPU by part at the two peaks of a step, "generate" and "update"; without RL the update's."""
    shards = shards_of(config, shape, gpus, device)
    update, awake = memory(config, shape, shards), generating(config, shape, gpus, device)
    if config.rl is None:
        return {"update": update}
    ahead = config.rollout.max_staleness > 0  # responses of later steps are generated during the update
    return {
        "generate": resident(config, shape, shards) | awake,
        "update": update | (awake if ahead else resting(config, shape, device)),
    }


def shards_of(config: RunConfig, shape: Shape, gpus: int, device: Device) -> int:
    """Return among how many GPUs the trainer divides what it divides: those of a replica."""
    if config.train.backend != "fsdp":
        return gpus
    return gpus // num_replicas(config.train, shape.parameters, device.memory_gib * GIB, gpus, device.per_node)


def memory(config: RunConfig, shape: Shape, gpus: int) -> dict[str, float]:
    """Return bytes on each GPU by part in a backward, with gradients accumulated, without those of the engine."""
    zero = divided_by(config.train)
    adapters = adapters_of(config, shape)
    parts = resident(config, shape, gpus)
    learns = shape.parameters if adapters is None else adapters.parameters
    parts["gradients"] = trained(config, shape, learns, gpus, adapters is not None)["gradients"]
    if config.train.backend == "fsdp":
        of_block = width_of(config) if config.model.quantize is None else NF4_BITS / 8
        parts |= _gathered(shape, width_of(config), of_block, adapters is None)
    elif zero == 3:
        parts["gathered layers"] = 2 * shape.largest_layer * width_of(config)
    if _has_critic(config):
        parts["critic"] = sum(trained(config, shape, _backbone(shape), gpus, False, "critic").values())
    return parts | activations(config, shape, width_of(config), adapters is None and config.train.backend != "fsdp")


def _gathered(shape: Shape, width: int, of_block: float, learns: bool) -> dict[str, float]:
    """Return bytes on each GPU of what FSDP puts together while it computes: a block, and a table of embeddings.

    `of_block`: bytes of a weight in a block. `learns`: all weights do, not adapters alone.
    """
    # Weights and gradients, or these and their float32 copy on the way to the other ranks; in 16 bits the next block's
    # weights come too. Without gradients: weights as they come, and as they are used.
    each, table = 8 if learns else 2 * width, shape.vocab * shape.hidden
    blocks = (8 if learns else 2 * of_block) * shape.block
    if not shape.tied:  # each table comes and goes by itself, as a block does
        return {"gathered layers": max(blocks, each * table)}
    # A tied table is whole throughout forward and backward, as the gradient of its use as output matrix is in the
    # backward. After all blocks the gradient of its other use is added, to a third; frozen, it comes before all blocks.
    throughout, alone = (2, 4) if learns else (1, 2)
    return {
        "gathered layers": blocks,
        "gathered table": max(throughout * table * width, alone * table * width - blocks),
    }


def resident(config: RunConfig, shape: Shape, gpus: int) -> dict[str, float]:
    """Return bytes on each GPU by part of what stays through a whole step, without those of the engine."""
    width = width_of(config)
    zero = divided_by(config.train)
    num, adapters = shape.parameters, adapters_of(config, shape)
    parts = trained(config, shape, num if adapters is None else adapters.parameters, gpus, adapters is not None)
    if adapters is not None:
        ranks = gpus if zero == 3 else 1
        parts["weights"] += base_of(config, shape, ranks) * (config.train.offload != "all")
    if zero == 3 and config.rollout.engine == "torch":
        # For generating; vLLM gets the weights piece by piece.
        parts["whole copy"] = num * width if config.model.quantize is None else base_of(config, shape)
    if config.rl is not None and (size := _reference(config, num * width, adapters)):
        parts["reference"] = size / (gpus if config.train.backend == "fsdp" else 1)
    if _has_critic(config):
        critic = trained(config, shape, _backbone(shape), gpus, False, "critic")
        parts["critic"] = critic["weights"] + critic["optimizer"]
    del parts["gradients"]  # they end with the update
    return parts


def _has_critic(config: RunConfig) -> bool:
    """True if a critic has weights of its own."""
    critic = None if config.rl is None else parts_of(config.rl).critic
    return critic is not None and not critic.shared


def _backbone(shape: Shape) -> int:
    """Return the parameters without the output matrix, in whose place a critic has one number."""
    return shape.parameters - (0 if shape.tied else shape.vocab * shape.hidden)


def trained(
    config: RunConfig,
    shape: Shape,
    num: int,
    gpus: int,
    adapters: bool,
    whose: Literal["optimizer", "critic"] = "optimizer",
) -> dict[str, float]:
    """Return bytes on each GPU of `num` trained parameters, their gradients and AdamW's state.

    `whose`: the field of the stage's section that has the optimiser; for a critic without one, the policy's counts.
    """
    train, width, share = config.train, width_of(config), 1 / gpus
    zero = divided_by(train)
    if train.backend == "fsdp" or (adapters and train.backend != "deepspeed"):
        width = 4  # FSDP divides float32 masters alone; adapters are in float32, whatever the policy's type
    # Of 16-bit weights the other backends keep float32 masters, in whose type moments are and gradients add up.
    optimizers = dict(config.section_of(config.stages[-1]).optimizers())
    moments = MOMENTS[(optimizers.get(whose) or optimizers.get("optimizer") or OptimizerConfig()).kind]
    in_float32 = 0 if adapters else shape.vocab * shape.hidden
    of_all = num * moments + in_float32 * (MOMENTS["adamw"] - moments)
    masters, sums = 4 if width == 2 else 0, 4
    return {
        "weights": 0.0 if train.offload == "all" else num * width * (share if zero == 3 else 1.0),
        "gradients": num * sums * (share if zero >= 2 else 1.0),
        "optimizer": 0.0 if train.offload != "none" else (of_all + num * masters) * (share if zero >= 1 else 1.0),
    }


def base_of(config: RunConfig, shape: Shape, ranks: int = 1) -> float:
    """Return bytes on each of `ranks` that divide them of all weights as they are before training, scales included."""
    width = width_of(config)
    if config.model.quantize is None:
        return shape.parameters * width / ranks
    quantized = linear_weights(shape)
    bits = 4 / ranks + (NF4_BITS - 4)  # each rank has all scales
    return (shape.parameters - quantized) * width / ranks + quantized * bits / 8


def _reference(config: RunConfig, size: float, adapters: Adapters | None) -> float:
    """Return bytes of the reference: 0 if there is none, if it is offloaded, or if it is the adapters' frozen base."""
    assert config.rl is not None
    how, train = config.rl.reference, config.train
    if (how is not None and how.schedule == "none") or train.offload != "none":
        return 0.0
    if adapters is not None and ((how is not None and how.schedule == "frozen") or config.rl.rounds == 1):
        return 0.0
    if adapters is not None and train.backend in ("auto", "torch") and (how is None or how.schedule != "ema"):
        return 4.0 * adapters.parameters  # they are another policy on the same base
    return size


def activations(config: RunConfig, shape: Shape, width: int, head_learns: bool) -> dict[str, float]:
    """Return bytes kept for the backward of one micro-batch, and bytes of its logits with their gradient.

    `head_learns`: output embeddings have a whole gradient, which is counted here.
    """
    adapters = adapters_of(config, shape)
    # a row with more than micro_batch_tokens is a micro-batch alone
    longest = longest_of(config) + prompt_tokens(config)
    tokens = max(config.train.most_tokens, longest)
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    scaled = 0 if adapters is not None else width  # kept for the gradient of a norm's weight
    norms: float = 2 * shape.hidden * (4 + scaled + width)  # two norms a block: float32 input, scaled, output
    if shape.qk_norm:
        norms += (queries + keys) * (4 + scaled)
    attention = width * (3 * queries + 2 * keys) + 4 * shape.heads
    mlp = 4 * shape.mlp_width * width
    block = norms + attention + mlp
    summed = 0.0 if adapters is None else width * adapters.summed
    if adapters is not None:
        adapter_width = width if config.train.backend in ("fsdp", "deepspeed") else 4
        block += adapter_width * adapters.ranks
        if adapter_width == width:
            block -= width * adapters.unread
        else:  # each adapter keeps its own copy of its input, in float32
            block += adapter_width * adapters.inputs - width * adapters.read
    ends = shape.hidden * (4 + 3 * width)
    logits = _logits(config, shape, tokens, width, head_learns)
    # The gradient of a block's sums is there for a moment.
    activations = tokens * (shape.layers * block + ends) + (shape.layers + 1) * summed
    if config.train.recomputes:
        # only blocks' inputs are kept; a block is computed again after the logits are freed, and takes their place
        activations = tokens * (shape.layers * shape.hidden * width + ends) + max(
            0, tokens * block + 2 * summed - logits
        )
    if config.model.quantize is not None:  # the layer that computes has its numbers for a moment
        activations += width * shape.hidden * max(shape.intermediate, queries)
    return {"activations": activations, "logits": logits}


def _logits(config: RunConfig, shape: Shape, tokens: int, width: int, head_learns: bool) -> float:
    """Return bytes of the logits, their gradient and their float32 copies."""
    at_once = CHUNK_ON_GPU if config.train.logits_chunk_tokens == "auto" else config.train.logits_chunk_tokens
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


def longest_of(config: RunConfig) -> int:
    """Return the most tokens that are sampled for a prompt: of a response, or of an episode with all its turns."""
    return max_sampled_tokens(config.rollout, config.episodes, has_episodes(config.data, config.episodes))


def resting(config: RunConfig, shape: Shape, device: Device) -> dict[str, float]:
    """Return bytes of the engine on each GPU while the trainer computes: a server has devices of its own."""
    how = config.rollout
    if config.rl is None or how.servers is not None:
        return {}
    if how.engine == "vllm" and how.vllm.sleep:
        return {} if how.vllm.enforce_eager else {"vLLM's graphs": GRAPHS}
    if how.engine == "vllm":
        return {VLLM: how.vllm.memory_share * device.memory_gib * GIB}
    return {"engine weights": engine_weights(config, shape, device is CPU)}


def engine_weights(config: RunConfig, shape: Shape, on_cpu: bool = False) -> float:
    """Return bytes of the embedded engine's own weights: a copy of all, or what it keeps next to a base.

    On the CPU the fast path packs a copy of each matrix that it multiplies by, the output layer among them.
    """
    adapters, width = adapters_of(config, shape), width_of(config)
    table = shape.vocab * shape.hidden
    if adapters is None or (divided_by(config.train) == 3 and config.model.quantize is None):
        return (shape.parameters + table * (on_cpu and shape.is_fast and shape.tied)) * width
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    # The fast path copies weights that it puts together, which it does not do with those in 4 bits.
    copies = shape.is_fast and config.model.quantize is None
    together = shape.layers * shape.hidden * (queries + 2 * keys + 2 * shape.intermediate)
    return 4.0 * adapters.parameters + (linear_weights(shape) + table if on_cpu else together) * width * copies


def generating(config: RunConfig, shape: Shape, gpus: int, device: Device) -> dict[str, float]:
    """Return bytes of the engine on each GPU while responses are generated: a server has devices of its own.

    vLLM takes its whole share when it wakes: weights, cache and all else are within it.
    """
    how, width = config.rollout, width_of(config)
    if how.servers is not None or config.rl is None:
        return {}
    if how.engine == "vllm":
        return {VLLM: how.vllm.memory_share * device.memory_gib * GIB}
    # Whole prompts are dealt to ranks, and the fullest rank decides.
    habits = habits_of(torch.device("cpu" if device is CPU else "cuda"))
    group, prompts = config.rl.group_size, -(-config.rl.prompts_per_step // gpus)
    # The fast path computes and keeps a prompt once for its responses.
    readers = group if shape.is_fast else 1
    lengths, repeats = ([x] * (prompts * group // readers) for x in (prompt_tokens(config), readers))
    room = room_of(lengths, repeats, how.max_rows, longest_of(config), gpu=device is not CPU)
    rows, at_once = room.rows, -(-room.rows // group)
    columns, prompt_columns = (-(-n // habits.align) * habits.align for n in (room.columns, room.prompt_columns))
    cache = (rows * columns + room.prompts * prompt_columns) * shape.cache(width, expanded=True)
    # A token of a prompt while it is computed: the widest of a block's two halves.
    attending = (shape.heads + shape.kv_heads) * (3 * shape.head_dim + shape.value_dim)
    prefilled = (2 * shape.hidden + max(attending, shape.mlp_width * 4)) * width
    return {
        "engine weights": engine_weights(config, shape, device is CPU),
        "KV cache": cache,
        "sampler": sampling_memory(config, rows, shape.vocab, width),
        "prefill": min(habits.prefill_tokens, at_once * prompt_tokens(config)) * prefilled,
    }


def engine_needs(config: RunConfig, shape: Shape) -> float:
    """Return the least bytes of vLLM's share on each GPU: its part of the weights and the cache of one response."""
    over, width = config.rollout.vllm.tensor_parallel, width_of(config)
    weights = shape.parameters * width / over
    length = longest_of(config) + prompt_tokens(config)
    split = 1 if shape.latent is not None else min(over, shape.kv_heads)
    return weights + length * shape.cache(width) / split


def sampling_memory(config: RunConfig, rows: int, vocab: int, width: int) -> float:
    """Return the bytes of drawing a token for each row."""
    how = config.rollout
    logits = 4 + 4 * (how.temperature != 1)  # in float32, and divided by the temperature
    # Weights alone, where blocks of them are summed; log-probs, and their sums in float64.
    drawing = 4 if vocab >= BLOCKS_FROM else 4 + 8
    if how.top_p < 1:
        # Sorted logits with their places, and probabilities three times.
        drawing = max(drawing + 4, 4 + 8 + 3 * 4)
    elif how.top_k > 0:
        drawing += 4
    return float(rows * vocab * max(logits + drawing, width + 4))
