"""The reward model: what transformers computes of its folder, one update however cut up, and resuming after a break."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Literal

import pytest
import torch
import transformers
from torch.nn import functional as F

from tests.models.families import VOCAB, tiny
from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.errors import NonFiniteError
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.ranks import ALONE
from verizero.pipeline.train.reward_model import NORM, LabelledSteps, RewardModel, Sides
from verizero.pipeline.train.torch_trained import TorchTrained

OPTIMIZER = OptimizerConfig(learning_rate=1e-2, eps=1e-3)  # with 1e-8 a gradient that is rounding makes a whole step
Packing = Literal["auto", "on", "off"]


def pairs(count: int = 9, seed: int = 0) -> list[Sides]:
    """Better sides hold the token 5 more often."""
    draw = torch.Generator().manual_seed(seed)

    def side(good: bool) -> tuple[int, ...]:
        n = int(torch.randint(2, 20, (1,), generator=draw))
        ids = torch.randint(3, VOCAB, (n,), generator=draw)
        ids[torch.rand(n, generator=draw) < 0.5] = 5 if good else 6
        return tuple(ids.tolist())

    return [(side(True), side(False)) for _ in range(count)]


def model_of(
    name: str = "qwen2 tied", scattered: bool = True, tokens: int = 10_000, packing: Packing = "auto"
) -> RewardModel:
    config = TrainConfig(micro_batch_tokens=tokens, packing=packing)
    found = Backend(tiny(name), config).reward_model(OPTIMIZER, 50)
    if scattered:
        torch.manual_seed(1)
        torch.nn.init.normal_(found.model.score.weight)
    return found


def test_it_begins_without_an_opinion() -> None:
    fresh = model_of(scattered=False, tokens=64)
    assert fresh.rewards([ids for sides in pairs() for ids in sides]).abs().max() == 0
    assert fresh.held_out(pairs())["held_out/accuracy"] == 0.5


@pytest.mark.parametrize("name", ["qwen2 tied", "llama", "gpt2"])
def test_the_folder_loads_as_a_sequence_classifier_and_says_the_same(tmp_path: Path, name: str) -> None:
    own = model_of(name)
    own.update(pairs())
    own.save(tmp_path, character_tokenizer("abc"))
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    assert theirs.config.num_labels == 1
    rows = [ids for sides in pairs(seed=3) for ids in sides]
    width = max(map(len, rows))
    padded = torch.tensor([[*r, *[0] * (width - len(r))] for r in rows])
    mask = torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in rows])
    with torch.no_grad():
        wanted = theirs(input_ids=padded, attention_mask=mask).logits[:, 0]
    torch.testing.assert_close(own.rewards(rows).detach(), wanted, rtol=1e-4, atol=1e-5)


def steps(count: int = 9, seed: int = 0) -> list[LabelledSteps]:
    """A step is right if its last token is 5."""
    draw = random.Random(seed)
    out = []
    for _ in range(count):
        ids = tuple(draw.choice((5, 6, 7)) for _ in range(draw.randint(6, 20)))
        ends = tuple(sorted(draw.sample(range(1, len(ids) - 1), draw.randint(1, 4))))
        out.append(LabelledSteps(ids[: ends[-1] + 1], ends, tuple(ids[end] == 5 for end in ends)))
    return out


def test_the_loss_of_steps_is_the_cross_entropy_of_their_prefixes() -> None:
    """Each step is scored as a text that ends with it, and all steps of the batch weigh alike."""
    own, batch = model_of(tokens=60), steps()
    prefixes = [row.ids[: end + 1] for row in batch for end in row.ends]
    right = torch.tensor([float(r) for row in batch for r in row.right])
    wanted = F.binary_cross_entropy_with_logits(own.rewards(prefixes).detach(), right)
    signs = 2 * right.double() - 1
    margins = own.margins(batch)
    torch.testing.assert_close(margins, own.rewards(prefixes).detach().double() * signs, rtol=1e-4, atol=1e-5)
    metrics = own.update(batch)
    assert metrics["loss"] == pytest.approx(float(wanted), rel=1e-5)
    assert metrics["accuracy"] == pytest.approx(float((margins > 0).double().mean()))


def answers(count: int = 9) -> list[Sides]:
    """Three pairs of each prompt."""
    draw = random.Random(0)
    prompts = [tuple(draw.choices(range(3, VOCAB), k=12)) for _ in range(count // 3)]
    return [(prompts[i // 3] + good, prompts[i // 3] + bad) for i, (good, bad) in enumerate(pairs(count))]


@pytest.mark.run
def test_it_learns_which_steps_are_right() -> None:
    own = model_of(scattered=False)
    for step in range(40):
        own.update(steps(32, step))
    assert own.held_out(steps(100, 999))["held_out/accuracy"] > 0.95


@pytest.mark.run
def test_it_learns_which_side_is_better() -> None:
    own = model_of(scattered=False)
    for step in range(60):
        own.update(pairs(32, step))
    seen = own.held_out(pairs(200, 999))
    assert seen["held_out/accuracy"] > 0.9
    assert seen["held_out/calibration_error"] < 0.15


@pytest.mark.run
def test_going_on_after_a_break_gives_the_same_bits(tmp_path: Path) -> None:
    whole = model_of(tokens=100)
    for step in range(4):
        if step == 2:
            whole.save(tmp_path, character_tokenizer("abc"))
        whole.update(pairs(seed=step))
    again = Backend(tiny("qwen2 tied"), whole.train_config).reward_model(OPTIMIZER, 50, tmp_path)
    for step in (2, 3):
        again.update(pairs(seed=step))
    for ours, theirs in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.run
@pytest.mark.parametrize("backend", ["torch", "fsdp"])
def test_an_earlier_model_continues_with_a_fresh_optimiser(backend: str, tmp_path: Path) -> None:
    first = model_of(tokens=100)
    first.update(pairs())
    first.write(tmp_path, character_tokenizer("abc"))
    config = TrainConfig(backend=backend, device="cpu", micro_batch_tokens=100)  # type: ignore[arg-type]
    own = tiny("qwen2 tied")
    later = Backend(own, config).reward_model(OPTIMIZER, 50, start=tmp_path)
    rows = [ids for sides in pairs(seed=3) for ids in sides]
    torch.testing.assert_close(later.rewards(rows).detach(), first.rewards(rows).detach())
    fresh = RewardModel(TorchTrained(first.model, NORM, ALONE), OPTIMIZER, 50, config)
    ours, theirs = later.update(pairs(seed=1)), fresh.update(pairs(seed=1))
    assert ours == pytest.approx(theirs, rel=1e-4)
    torch.testing.assert_close(later.rewards(rows).detach(), fresh.rewards(rows).detach(), rtol=1e-4, atol=1e-5)


def test_what_is_not_finite_is_refused_and_changes_nothing() -> None:
    own = model_of()
    before = [p.detach().clone() for p in own.model.parameters()]
    with torch.no_grad():
        kept = own.model.score.weight.clone()
        own.model.score.weight.fill_(float("inf"))
    with pytest.raises(NonFiniteError, match="refused"):
        own.update(pairs())
    with torch.no_grad():
        own.model.score.weight.copy_(kept)
    assert all(torch.equal(p, b) for p, b in zip(own.model.parameters(), before, strict=True))
    assert all(p.grad is None for p in own.model.parameters())
