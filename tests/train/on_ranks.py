"""One rank of several that train: how far each lesson ends from torch alone, by trainer; prints what it found.

Run by `test_on_ranks.py` as `python -m tests.train.on_ranks TRAINER FOLDER`; the place is in RANK and WORLD_SIZE.
"""

import functools
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch._dynamo.utils import counters

from tests.models.families import build
from tests.models.gguf_files import tiny_llama
from tests.models.test_quantized import computes_what_the_trainer_does
from tests.oracles import varlen
from tests.plan.test_estimate import recipe_of
from tests.train import batches, sampled
from tests.train.batches import (
    distance,
    frozen,
    groups_of,
    longer,
    pairs_of,
    parts_of,
    policy,
    settings_of,
    stale,
    two_layers,
    without_tree,
)
from tests.train.episodes import episodes_of, forked
from tests.train.live_rank import bytes_of_base, bytes_of_weights
from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.errors import CheckpointError, NonFiniteError
from verizero.pipeline.models import compiled
from verizero.pipeline.models import streamed as model_files
from verizero.pipeline.models.forward import Replay
from verizero.pipeline.models.kernels import log_probs
from verizero.pipeline.models.load import load_model, ready
from verizero.pipeline.models.lora import Adapted
from verizero.pipeline.models.quantized import num_weights
from verizero.pipeline.models.streamed import model_on_meta
from verizero.pipeline.plan.memory import resident
from verizero.pipeline.plan.shape import from_settings
from verizero.pipeline.preferences.base import load_preference
from verizero.pipeline.rl.divergences import Objective
from verizero.pipeline.rollout.torch_engine import TorchEngine
from verizero.pipeline.run.rollouts import gather_groups, share_of
from verizero.pipeline.scoring.score import GradingTally
from verizero.pipeline.train import checkpoint
from verizero.pipeline.train import ranks as ranks_module
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.distillation import ModelTeacher, ReferenceTeacher, distill_update
from verizero.pipeline.train.preference import PreferenceBatch, PreferenceSettings, preference_update, side_logprobs
from verizero.pipeline.train.ranks import ALONE, Ranks, join, leave
from verizero.pipeline.train.step import update
from verizero.pipeline.train.trees import packs_rows
from verizero.pipeline.types import Group

T = TypeVar("T")
Metrics = list[dict[str, float]]
Weights = dict[str, torch.Tensor]
OPTIMIZER = OptimizerConfig(learning_rate=1e-3, weight_decay=0.1, max_grad_norm=0.5, schedule="linear", eps=1e-5)
"""With the default eps of 1e-8 a gradient near zero, which is rounding alone, would make a step of full size."""
CRITIC = OptimizerConfig(learning_rate=3e-3, weight_decay=0.1, max_grad_norm=0.5)
TOKENS = 120
"""Of a micro-batch: each rank has two or three of them in an update."""


def joined() -> Ranks:
    """The group of ranks that this process belongs to."""
    torch.set_num_threads(1)
    torch.set_printoptions(threshold=1, edgeitems=1)  # under ZeRO 3 DeepSpeed makes a text of each weight, unread
    return join(120)


TURNS = itertools.count()


def once(ranks: Ranks, compute: Callable[[], T]) -> T:
    """Return on all ranks what `compute` returns on one; the next call takes the next rank. All ranks must call it."""
    turn = next(TURNS) % ranks.size
    answers: list[Any] = ranks.gather(compute() if turn == ranks.rank else None)
    found: T = answers[turn]
    return found


def weights(backend: Backend) -> Weights:
    return {n: p.detach().float().clone() for n, p in backend.whole_model().named_parameters()}


def critic_weights(backend: Backend) -> Weights:
    if backend.critic is None:
        return {}
    return {n: w.float().clone() for block in backend.critic.trained.gathered() for n, w in block.items()}


def save(model: Any, folder: Path) -> None:
    model.save_pretrained(folder)


def grpo(backend: Backend, step: int) -> dict[str, float]:
    """An update on groups of its own; the prompts of some are long, so are shared."""
    parts = parts_of("grpo", kl_coef=0.05)
    groups = groups_of(seed=step) if step % 2 else longer(groups_of(seed=step))
    return update(backend, parts, groups, settings_of(parts, 80, step=step))


def ppo(backend: Backend, step: int) -> dict[str, float]:
    parts = parts_of("ppo", num_minibatches=1, num_epochs=1)
    groups = forked(seed=step) if step % 2 else groups_of(seed=step)
    return update(backend, parts, groups, settings_of(parts, TOKENS, step=step))


def episodes(backend: Backend, step: int) -> dict[str, float]:
    """Episodes of several rows."""
    parts = parts_of("grpo", kl_coef=0.1, num_minibatches=1)
    settings = settings_of(parts, TOKENS, step=step)
    return update(backend, parts, (forked if step % 2 else episodes_of)(seed=step), settings)


def pairs(backend: Backend, step: int) -> dict[str, float]:
    """Pairs whose responses share their prompt; one rank has more of them than the other."""
    rows, at = pairs_of(longer(groups_of(3))), PreferenceSettings(0, 1.0, TOKENS)
    batch = PreferenceBatch(rows, side_logprobs(backend, rows, "reference", at))
    metrics = preference_update(backend, *load_preference("dpo"), batch, at)
    assert metrics["tree/ratio"] > 1.3 or not packs(backend)
    return metrics


def packs(backend: Backend) -> bool:
    return backend.train_config.packing != "off"


def distil(backend: Backend, step: int) -> dict[str, float]:
    """By a teacher that is held, and by the policy's own reference."""
    from tests.train.test_distillation import rows_of, settings

    objectives = [Objective("forward_kl"), Objective("reverse_kl", "top_k", top_k=4)]
    teachers = {"a": ModelTeacher(two_layers(50)), "b": ReferenceTeacher(backend, backend.policy.is_divided)}
    return distill_update(backend, teachers, rows_of(7, step), objectives[step % 2], settings(60))


def routed(backend: Backend, step: int) -> dict[str, float]:
    """An update of a mixture by its own routers, then one by experts that were recorded in their place."""
    metrics = grpo(backend, step)
    ids = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 11, 12]])
    where = torch.ones_like(ids, dtype=torch.bool)
    where[:, 0] = False
    routing = (torch.arange(5 * 2 * 2 * 2).view(2, 5, 2, 2) % 4).to(torch.int16)  # two layers, two experts a token
    logprobs, _ = backend.logprobs(ids, where, 1.0, replay=Replay(routing=routing))
    free, _ = backend.logprobs(ids, where, 1.0)
    assert float((free - logprobs).abs().max().detach()) > 1e-4, "the routes change nothing"
    backend.backward(logprobs.sum() / backend.ranks.size)
    by_routes = backend.step()
    assert by_routes["routing/changed"] > 0
    return {**metrics, "logprobs": float(logprobs.sum()), **{f"routes/{k}": v for k, v in by_routes.items()}}


def mixture() -> Any:
    settings = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
    return ready(build("qwen3_moe", settings))


@dataclass(frozen=True)
class Lesson:
    """What a policy learns in two steps, between which its reference moves."""

    teach: Callable[[Backend, int], dict[str, float]] = grpo
    model: Callable[[], Any] = two_layers
    shared: bool | None = None
    """Whether its critic shares the backbone; None: there is none."""
    adapters: bool = False
    bits: bool = False
    """The base of the adapters is in four bits."""
    half: bool = False
    """The weights are in bfloat16, and compared with those of torch in float32."""

    def backend(self, ranks: Ranks, train: TrainConfig, start: Path | None = None) -> Backend:
        """A backend that has begun. `start`: the weights stay in files, where the trainer can read them there."""
        dtype = "bfloat16" if self.half and ranks is not ALONE else "float32"
        if start is not None and train.backend == "fsdp" and not self.half:
            model = model_on_meta(str(start), torch.float32)
        else:
            model = self.model() if start is None else load_model(str(start), dtype)
        adapted = None
        if self.adapters:
            adapted = Adapted(model, 2, 4.0, (), 7, "cpu" if self.bits else None)
        return Backend(model, train, ranks, adapted, device=torch.device("cpu"))

    def begin(self, backend: Backend) -> Backend:
        backend.start(OPTIMIZER, 2)
        backend.refresh_reference()
        if self.shared is not None:
            backend.start_critic(self.shared, CRITIC, 2)
        return backend

    def rest(self, backend: Backend) -> Metrics:
        """The second step, after the reference has moved."""
        backend.refresh_reference(0.5)
        return [self.teach(backend, 1)]


LESSONS = {
    "grpo": Lesson(),
    "half": Lesson(half=True),
    "critic": Lesson(ppo, shared=False),
    "shared critic": Lesson(ppo, shared=True),
    "episodes": Lesson(episodes),
    "pairs": Lesson(pairs),
    "distil": Lesson(distil),
    "experts": Lesson(routed, mixture),
    "adapters": Lesson(adapters=True),
    "adapters of experts": Lesson(model=mixture, adapters=True),
    "adapters, a critic": Lesson(ppo, shared=False, adapters=True),
    "bits": Lesson(model=lambda: tiny_llama(head_width=16), adapters=True, bits=True),
}
FSDP = {"backend": "fsdp"}
REPLICAS = {**FSDP, "replicas": 2}


def zero(stage: int, **more: Any) -> dict[str, Any]:
    return {"backend": "deepspeed", "zero": stage, **more}


@dataclass(frozen=True)
class Trainer:
    """Lessons by the fields of `train`, and other claims: name -> function of the ranks and a folder."""

    lessons: list[tuple[dict[str, Any], list[str]]]
    claims: list[Callable[[Ranks, Path], dict[str, Any]]] = field(default_factory=list)


def learn(name: str, how: dict[str, Any], ranks: Ranks, folder: Path) -> dict[str, float]:
    """Distances from torch alone after both steps; of a resumed run from an unbroken one; and of what is refused."""
    lesson, train = LESSONS[name], TrainConfig(device="cpu", **how)

    def alone() -> tuple[Metrics, Weights, Weights]:
        backend = lesson.begin(lesson.backend(ALONE, TrainConfig(), start))
        metrics = [lesson.teach(backend, 0), *lesson.rest(backend)]
        return metrics, weights(backend), critic_weights(backend)

    folder.mkdir(parents=True, exist_ok=True)
    start = folder / "start"
    save(lesson.model(), start)  # transformers writes on rank 0 alone
    ranks.barrier()
    metrics, wanted, of_critic = once(ranks, alone)
    backend = lesson.begin(lesson.backend(ranks, train, start))
    before, critic_before = weights(backend), critic_weights(backend)
    is_base = backend.reference is backend.adapted or not lesson.adapters
    seen = [lesson.teach(backend, 0)]
    ranks.barrier()
    finish = backend.save(folder, save, in_background=True)
    middle = weights(backend)
    seen += lesson.rest(backend)
    if finish is not None:
        finish()
    ranks.barrier()
    again = lesson.backend(ranks, train, start if lesson.adapters else folder / "model")
    again.load(folder)
    is_base = (is_base and again.reference is again.adapted) or not lesson.adapters
    found = {"read": distance(weights(again), middle)}
    if not lesson.bits:
        read = load_model(str(folder / "model"))
        found["saved"] = distance({n: p.detach() for n, p in read.named_parameters()}, middle)
    lesson.rest(again)
    ends = weights(backend)
    if lesson.half:
        found["half weights"] = distance(ends, wanted)
    else:
        found["weights"] = distance(ends, wanted)
        found["metrics"] = max(abs(a[k] - b[k]) for a, b in zip(seen, metrics, strict=True) for k in without_tree(b))
    found |= {
        "resumed": distance(weights(again), ends),
        "moved": distance(ends, before),
        "base": float(is_base),
        "refused": refuses(again),
    }
    if backend.critic is not None:
        found["critic"] = distance(critic_weights(backend), of_critic)
        found["critic moved"] = distance(critic_weights(backend), critic_before)
        found["critic resumed"] = distance(critic_weights(again), critic_weights(backend))
    return found


def refuses(backend: Backend) -> float:
    """How far the weights move by gradients that are not finite on one rank; infinite if a rank does not refuse it."""
    ids, where = torch.tensor([[3, 4, 5, 6]]), torch.tensor([[False, True, True, True]])
    bad = math.nan if backend.ranks.is_first else 1.0
    before, of_critic = weights(backend), critic_weights(backend)
    moved = 0.0
    if backend.critic is not None:
        backend.critic.backward(backend.critic.values(ids, where).sum() * bad)
        moved += unless_refused(backend.critic.require_finite)
        backend.discard()
        moved += distance(critic_weights(backend), of_critic)
    backend.backward(backend.logprobs(ids, where, 1.0)[0].sum() * bad)
    moved += unless_refused(backend.step)
    return moved + distance(weights(backend), before)


def unless_refused(act: Callable[[], Any]) -> float:
    try:
        act()
    except NonFiniteError:
        return 0.0
    return math.inf


def sum_of_small_gradients(backend: Backend) -> float:
    """The norm of a gradient of 1 and 32 of 1/512 each, over all ranks; bfloat16 has none between 1 and 1 + 1/128."""
    share = 1.0 / backend.ranks.size
    width = backend.whole_model().config.hidden_size
    # RMSNorm of a row with one number other than 0 is the root of its width, times that number's weight.
    row = torch.nn.functional.one_hot(torch.tensor(0), width).to(torch.bfloat16)
    factors = [1.0, *([1 / 512] * 32)]
    if backend.train_config.backend == "fsdp" and not backend.ranks.is_first:
        factors.reverse()  # the sum over ranks is in float32 too
    for factor in factors:
        normed = backend.compute(lambda model: model.model.norm(4 * row))[0]
        backend.backward(normed * (factor * share / width**0.5))
    return backend.step()["grad_norm"]


def sums(ranks: Ranks, root: Path) -> dict[str, Any]:
    """How far a sum of small gradients in bfloat16 is from the exact one."""
    how = {"fsdp": FSDP} if sys.argv[1] == "fsdp" else {f"zero {n}": zero(n) for n in (1, 2, 3)}
    found, start = {}, root / "half"
    save(two_layers(), start)
    ranks.barrier()
    for name, fields in how.items():
        backend = LESSONS["half"].backend(ranks, TrainConfig(device="cpu", **fields), start)
        norm = sum_of_small_gradients(LESSONS["half"].begin(backend))
        found[f"sum, {name}"] = {"sum": abs(norm - (1 + 32 / 512))}
    return found


def packed_and_compiled(ranks: Ranks, root: Path) -> dict[str, Any]:
    """In bfloat16 as on a GPU: rows are packed and blocks compiled, here by a compiler that makes no machine code.

    A block is one graph for each width, with recomputed activations too, whatever the lengths. The weights are float32,
    and the forward is not: proofs must allow its rounding.
    """
    save(two_layers(), root / "packed")
    ranks.barrier()
    with pytest.MonkeyPatch.context() as patch:
        varlen.take_the_place_of_the_kernel(patch)
        patch.setattr(torch._dynamo.config, "recompile_limit", compiled.MAX_GRAPHS)
        traced = functools.cache(lambda plain, _: torch.compile(plain, dynamic=False, backend="aot_eager"))
        patch.setattr(compiled, "_compiled", traced)
        config = TrainConfig(device="cpu", packing="on", compile="on", micro_batch_tokens=256, **FSDP, **CHEAP)
        backend = LESSONS["grpo"].begin(Backend(load_model(str(root / "packed"), "bfloat16"), config, ranks))
        before = weights(backend)
        counters.clear()
        grpo(backend, 0)
        graphs = counters["stats"]["unique_graphs"]
        assert graphs > 0
        grpo(backend, 1)
        assert counters["stats"]["unique_graphs"] == graphs, "no new one for new lengths"
        assert not counters["graph_break"]
        assert packs_rows(backend)
        assert backend.dtype == torch.bfloat16
        return {"packed and compiled": {"moved": distance(weights(backend), before)}}


def of_bits(ranks: Ranks, root: Path) -> dict[str, Any]:
    """A base in bits that is divided: what a rank holds of it, what an engine gets, and what a checkpoint has."""
    start, saved = root / "bits", root / "saved bits"
    save(tiny_llama(head_width=16), start)
    saved.mkdir(exist_ok=True)
    ranks.barrier()
    lesson = LESSONS["bits"]
    whole = lesson.backend(ALONE, TrainConfig(), start)
    backend = lesson.begin(lesson.backend(ranks, TrainConfig(device="cpu", **FSDP), start))
    base_numbers = distance(published(backend), published(whole))
    grpo(backend, 0)
    backend.save(saved, save)
    engine = TorchEngine(backend.engine_module(), [1], 0)
    backend.update_engine_module()
    engine.publish(1)
    computes_what_the_trainer_does(engine, backend)
    ranks.barrier()
    assert sorted(p.name for p in saved.iterdir()) == ["adapter", "shards", "trainer.json", "trainer.pt"]
    assert sum(map(num_weights, backend.model.parameters())) == sum(map(num_weights, whole.model.parameters()))
    return {
        "what is held of bits": {
            "read": base_numbers,  # bits that are read layer by layer are those of a whole base
            "share": bytes_of_base(backend.model) / bytes_of_base(whole.model) - 0.5,
            "planned": bytes_of_weights(backend.model) / planned(backend.model.config) - 1,
        }
    }


def sealed(ranks: Ranks, root: Path) -> dict[str, Any]:
    """Shards and the model's files are hashed by the rank that wrote them, each file is checked by one rank, and a
    damaged one is named.
    """
    folder, read, plain = root / "00000007", list[Path](), checkpoint.sha256_of
    lesson = LESSONS["grpo"]
    backend = lesson.begin(lesson.backend(ranks, TrainConfig(device="cpu", **FSDP)))
    folder.mkdir(exist_ok=True)
    checkpoint.sha256_of = lambda path: read.append(path) or plain(path)
    file_bytes, model_files.FILE_BYTES = model_files.FILE_BYTES, 1  # a file for each block
    try:
        finish = backend.save(folder, save, in_background=True)
        known = finish() if finish is not None else {}
        shards = sorted((folder / "shards").glob("__*"))
        written = sorted([*shards, *(folder / "model").glob("*.safetensors")])
        assert known.keys() == {str(path.relative_to(folder)) for path in written}
        assert {p.name[:3] for p in read if p in shards} == {f"__{ranks.rank}"}
        assert any(p.parent.name == "model" for p in read), "every rank writes some of the model"
        assert sorted(path for mine in ranks.gather(read) for path in mine) == written
        if ranks.is_first:
            checkpoint._seal_folder(folder, 7, known)
        ranks.barrier()
        read.clear()
        checkpoint.require(folder, ranks)
        assert sum(ranks.gather(len(read))) == sum(p.is_file() for p in folder.rglob("*")) > len(shards) + 3
    finally:
        checkpoint.sha256_of, model_files.FILE_BYTES = plain, file_bytes
    if ranks.is_first:
        shards[-1].write_bytes(shards[-1].read_bytes()[:-1] + b"?")
    ranks.barrier()
    with pytest.raises(CheckpointError, match=f"shards/{shards[-1].name} was changed"):
        checkpoint.require(folder, ranks)
    return {"seals": {}}


def planned(settings: Any) -> float:
    """What a plan counts of them on each of two GPUs."""
    model = {"quantize": "nf4", "dtype": "float32"}
    config = recipe_of("Qwen/Qwen3-8B", model=model, train={"backend": "fsdp", "lora": {"rank": 2, "alpha": 4}})
    return resident(config, from_settings(settings), 2)["weights"]


def published(backend: Backend) -> Weights:
    """What vLLM gets: the base's numbers and the adapters."""
    found = backend.engine_adapters()
    assert found is not None
    both: list[Iterable[tuple[str, torch.Tensor]]] = [found.base(), found.factors()]
    return {name: tensor.clone() for part in both for name, tensor in part}


def streamed(ranks: Ranks, root: Path) -> dict[str, Any]:
    """Weights that ZeRO 3 divides are gathered layer by layer, and no whole copy is kept."""
    # DeepSpeed leaves weights of less than 100,000 elements whole, and these layers have larger ones.
    wide = build("qwen2", {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4})
    config = TrainConfig(device="cpu", **zero(3))
    backend = LESSONS["grpo"].begin(Backend(wide, config, ranks, engine_reads_module=False))
    grpo(backend, 0)
    found, most = {}, 0
    for name, tensor in backend.named_weights():
        most = max(most, sum(p.numel() for p in backend.model.parameters()))
        found[name] = tensor.clone()
    whole = backend.whole_model()
    assert most < 0.6 * sum(p.numel() for p in whole.parameters())
    assert backend._whole is None
    return {"streamed": {"read": distance(found, {n: p.detach() for n, p in whole.named_parameters()})}}


def replicated(ranks: Ranks, root: Path) -> dict[str, Any]:
    """Two replicas of two ranks each: both have the same bytes, and meet once an update, whatever its micro-batches."""
    lesson, calls, plain = LESSONS["critic"], list[int](), ranks_module._sum_in_place
    backend = lesson.begin(lesson.backend(ranks, TrainConfig(device="cpu", **REPLICAS)))
    before = weights(backend)

    def counted(tensors: Sequence[torch.Tensor], group: Any) -> None:
        calls.append(dist.get_world_size(group))
        plain(tensors, group)

    ranks_module._sum_in_place = counted
    try:
        ppo(backend, 0)
    finally:
        ranks_module._sum_in_place = plain
    assert calls == [2, 2], "the critic's gradient and the policy's"
    rows = {n: p.to_local().detach() for n, p in backend.model.named_parameters()}
    held = sum(r.numel() for r in rows.values()) / sum(w.numel() for w in before.values())
    others = ranks.gather(rows)
    assert all(torch.equal(others[ranks.rank % 2][n], others[ranks.rank % 2 + 2][n]) for n in rows)
    return {"two replicas": {"moved": distance(weights(backend), before), "share": held - 0.5}}


def kernels(ranks: Ranks, root: Path) -> dict[str, Any]:
    """Divided backends hand the kernel of log-probs, interpreted, plain output embeddings, and get its gradients."""
    plain, found = log_probs.log_probs, {}
    calls: list[bool] = []

    def counted(hidden: Any, weight: Any, *rest: Any, **named: Any) -> Any:
        calls.append(type(weight.data) is torch.Tensor and weight.dim() == 2 and weight.shape[1] == hidden.shape[1])
        return plain(hidden, weight, *rest, **named)

    log_probs.log_probs = counted
    for name, how in {"fsdp": FSDP, "zero 3": zero(3)}.items():
        found[f"kernel, {name}"] = learn("grpo", {"logits_chunk_tokens": 3, **how}, ranks, root / name)
        assert all(calls)
        assert calls
    return found


def followed(ranks: Ranks, root: Path) -> dict[str, Any]:
    """One rank resumes from what several wrote, and trains to the end of the run."""
    found = {}
    for folder in sorted(p.parent for p in root.glob("grpo*/model")):
        how = FSDP if (folder / "shards").exists() else zero(int(folder.name[-1]))
        lesson = LESSONS["grpo"]
        alone = lesson.begin(Backend(two_layers()))
        grpo(alone, 0)
        lesson.rest(alone)
        backend = lesson.backend(ranks, TrainConfig(device="cpu", **how), folder / "model")
        backend.load(folder)
        lesson.rest(backend)
        found[folder.name] = {"weights": distance(weights(backend), weights(alone))}
    return found


def gathered_of(ranks: Ranks, groups: Sequence[Group]) -> list[Group]:
    """The groups as this rank has them after all ranks have sampled their shares."""
    share = share_of(ranks, [g.prompt for g in groups])
    (gathered,), _ = gather_groups(ranks, share, [[groups[i] for i in share.indices]], GradingTally({}, 0, 0.0))
    return gathered


def experts() -> Any:
    """A model with experts."""
    return sampled.model_of("qwen3_moe", torch.float64)


def recorded_groups() -> list[Group]:
    """Responses of a model with experts, with kept sets and routes."""
    return sampled.groups_of(experts(), sampled.Sampling(sampled.MAX, 0.9, 0.8, max_kept=9, keep_routing=True))


def trained_on(ranks: Ranks, groups: Sequence[Group], case: str) -> dict[str, Any]:
    """Weights after two updates; prompts are shared in the cases that say so."""
    _, name, params = CASES[case]
    model = experts() if case == "recorded experts" else policy()
    backend = Backend(model, ranks=ranks, config=TrainConfig(packing="auto" if "shared" in case else "off"))
    backend.start(batches.OPTIMIZER, 10)
    backend.reference = frozen(experts() if case == "recorded experts" else policy(100))
    parts = parts_of(name, **params)
    if parts.critic is not None:
        backend.start_critic(parts.critic.shared, batches.OPTIMIZER, 10)
    for step in range(2):
        update(backend, parts, groups, settings_of(parts, 40, step=step))
    return {k: v.detach().clone() for k, v in backend.model.state_dict().items()}


CASES: dict[str, tuple[Callable[[], list[Group]], str, dict[str, Any]]] = {
    "grpo": (lambda: groups_of(5), "grpo", {"kl_coef": 0.05}),
    "several epochs": (lambda: groups_of(7), "grpo", {"num_epochs": 2, "num_minibatches": 3}),
    "a critic": (lambda: groups_of(5), "ppo", {"num_epochs": 2, "num_minibatches": 2}),
    "kl in the reward": (lambda: stale(groups_of(5), 1, 0, 2), "reinforce_pp", {"kl_coef": 0.1, "num_minibatches": 2}),
    "tokens of the whole batch": (lambda: stale(groups_of(6), 2, 1, 1), "clip_cov", {"num_minibatches": 2}),
    "episodes": (lambda: episodes_of(5, 4), "grpo", {"num_minibatches": 2}),
    "one rank that gets all": (
        lambda: groups_of(3, 2, 5, lost=False),
        "clip_cov",
        {"num_minibatches": 2, "num_epochs": 3},
    ),
    "shared prompts": (lambda: longer(stale(groups_of(6), 2, 1, 1)), "clip_cov", {"num_minibatches": 2}),
    "shared prompts in one group": (lambda: longer(groups_of(1, 6)), "grpo", {"kl_coef": 0.05}),
    "one group": (lambda: groups_of(1, 2), "grpo", {}),
    "recorded experts": (recorded_groups, "grpo", {"kl_coef": 0.0, "num_minibatches": 2}),
}


def gathered(ranks: Ranks, root: Path) -> dict[str, Any]:
    """How far the weights of each case are from those of one process, after updates on what other ranks sampled.

    Each rank is the one process of some cases.
    """
    mine = [name for i, name in enumerate(CASES) if i % ranks.size == ranks.rank]
    gathered = ranks.gather({name: trained_on(Ranks(), CASES[name][0](), name) for name in mine})
    by_one = {name: ends for part in gathered for name, ends in part.items()}
    out: dict[str, Any] = {}
    for name, (make, _, _) in CASES.items():
        groups = make()
        mine = gathered_of(ranks, groups)
        assert mine == groups, "all ranks have equal responses, with all that was recorded of their sampling"
        weights = trained_on(ranks, mine, name)
        # Ranks compute shared prompts with other rows than one process does, and the policy's norms are in float32.
        how = "gathered trees" if "shared" in name else "gathered"
        out[f"gathered, {name}"] = {how: max(float((weights[k] - v).abs().max()) for k, v in by_one[name].items())}
    return out


CHEAP = {"gradient_checkpointing": True, "logits_chunk_tokens": 3}
OFFLOADED = {"offload": "optimizer"}
IN_OTHER_WAYS = ("critic", "adapters", "adapters of experts", "bits")
TRAINERS = {
    "torch": Trainer([({}, ["grpo", "shared critic", "distil", "experts", "adapters"])], [gathered]),
    "fsdp": Trainer(
        [
            (FSDP, [name for name in LESSONS if name not in IN_OTHER_WAYS]),
            ({**FSDP, **CHEAP}, ["grpo", "adapters of experts"]),
            ({**FSDP, **CHEAP, **OFFLOADED}, ["critic", "bits"]),
        ],
        [sums, packed_and_compiled, of_bits, sealed],
    ),
    "fsdp, more ranks": Trainer(
        [
            (FSDP, ["grpo"]),
            ({**FSDP, **OFFLOADED}, ["grpo"]),
            (REPLICAS, ["half", "critic", "adapters of experts"]),
            ({**REPLICAS, **OFFLOADED}, ["grpo"]),
        ],
        [replicated],
    ),
    "deepspeed": Trainer(
        [
            (zero(1), ["half", "adapters"]),
            (zero(1, **OFFLOADED), ["half"]),
            (zero(2), ["critic", "pairs"]),
            (zero(2, **CHEAP), ["half"]),
            (zero(3), ["half", "shared critic", "episodes", "distil", "adapters of experts"]),
            (zero(3, offload="all"), ["grpo", "critic"]),
            (zero(3, **CHEAP), ["grpo"]),
        ],
        [sums, streamed],
    ),
    "kernels": Trainer([], [kernels]),
    "one that follows": Trainer([], [followed]),
}


def title(how: dict[str, Any]) -> str:
    return " ".join(str(v) if k in ("backend", "zero", "offload") else k for k, v in how.items()) or "torch"


def main(name: str, root: Path) -> dict[str, Any]:
    ranks, trainer = joined(), TRAINERS[name]
    found: dict[str, Any] = {}
    for how, lessons in trainer.lessons:
        for lesson in lessons:
            found[f"{lesson}, {title(how)}"] = learn(lesson, how, ranks, root / f"{lesson} {title(how)}")
    for claim in trainer.claims:
        found |= claim(ranks, root)
    leave()
    return found


if __name__ == "__main__":
    print("found", json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
