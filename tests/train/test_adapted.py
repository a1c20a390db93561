"""What a policy with adapters lends its base to: its reference, and a reward model on a quantised base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from tests.models.families import tiny
from tests.models.test_lora import taught
from tests.train.test_reward_model import OPTIMIZER, pairs
from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.errors import CheckpointError
from verizero.pipeline.models.lora import Adapted, is_factor
from verizero.pipeline.models.quantized import is_quantized
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.ranks import ALONE
from verizero.pipeline.train.reward_model import NORM, RewardModel
from verizero.pipeline.train.torch_trained import TorchTrained

IDS = torch.tensor([[3, 4, 5, 6, 7, 8]])
WHERE = torch.arange(6)[None] > 0


def backend_on(quantize_on: str | None) -> Backend:
    model = tiny("llama")
    backend = Backend(model, adapted=Adapted(model, 3, 6.0, (), 5, quantize_on=quantize_on))
    backend.start(OptimizerConfig(learning_rate=0.05), 10)
    return backend


def train(backend: Backend) -> None:
    for _ in range(3):
        backend.backward(-backend.logprobs(IDS, WHERE, 1.0)[0].sum())
        backend.step()


def scored(backend: Backend, which: Any) -> torch.Tensor:
    with torch.no_grad():
        return backend.logprobs(IDS, WHERE, 1.0, which)[0]


@pytest.mark.parametrize("quantize_on", [None, "cpu"])
def test_it_stays_while_the_policy_moves_and_comes_back_the_same(quantize_on: str | None, tmp_path: Path) -> None:
    backend = backend_on(quantize_on)
    base = scored(backend, "policy")
    backend.refresh_reference()
    assert backend.reference is backend.adapted, "which takes no memory"
    train(backend)
    middle = scored(backend, "policy")
    assert (middle - base).abs().max() > 0.1
    assert torch.equal(scored(backend, "reference"), base)
    backend.refresh_reference()
    shared = {p.data_ptr() for p in backend.model.parameters() if not p.requires_grad}
    assert {p.data_ptr() for p in backend.reference.model.parameters()} >= shared, "the base is there once"
    train(backend)
    assert torch.equal(scored(backend, "reference"), middle)
    backend.save(tmp_path, lambda model, folder: model.save_pretrained(folder))
    assert (tmp_path / "model").exists() == (quantize_on is None)
    names = torch.load(tmp_path / "trainer.pt", weights_only=True)["reference"].keys()
    assert all("lora_" in name for name in names)
    again = backend_on(quantize_on)
    again.load(tmp_path)
    assert torch.equal(scored(again, "reference"), middle)
    assert torch.equal(scored(again, "policy"), scored(backend, "policy"))


@pytest.mark.parametrize("quantize_on", [None, "cpu"])
@pytest.mark.parametrize("is_fresh", [True, False])
def test_a_moving_mean_is_one_of_whole_weights(quantize_on: str | None, is_fresh: bool, tmp_path: Path) -> None:
    """The product of two means of factors is not the mean of their products."""
    backend = backend_on(quantize_on)
    assert backend.adapted is not None
    if not is_fresh:
        train(backend)
    backend.refresh_reference()
    before = backend.adapted.plain_model().state_dict()
    train(backend)
    after = backend.adapted.plain_model().state_dict()
    backend.refresh_reference(0.25)
    for name, weight in backend.reference.model.state_dict().items():
        torch.testing.assert_close(weight, before[name].lerp(after[name], 0.25))
    backend.save(tmp_path, lambda model, folder: model.save_pretrained(folder))
    again = backend_on(quantize_on)
    again.load(tmp_path)
    assert torch.equal(scored(again, "reference"), scored(backend, "reference"))


ROWS = [ids for sides in pairs(seed=3) for ids in sides]


def adapted(name: str, seed: int = 0) -> Adapted:
    return Adapted(tiny(name, seed=seed), 3, 6.0, (), 5, quantize_on="cpu")


def backend_of(name: str = "llama", seed: int = 0) -> Backend:
    policy = taught(adapted(name, seed))
    return Backend(policy.model, adapted=policy)


def rewards(model: RewardModel) -> torch.Tensor:
    return model.rewards(ROWS).detach()


def test_it_learns_on_the_bits_of_the_policy_which_stays_as_it_is() -> None:
    backend = backend_of()
    before = {name: p.detach().clone() for name, p in backend.model.named_parameters()}
    model = backend.reward_model(OPTIMIZER, 20)
    assert rewards(model).abs().max() == 0
    assert model.can_pack()
    bits = [p.data_ptr() for p in backend.model.parameters() if is_quantized(p)]
    assert bits == [p.data_ptr() for p in model.model.parameters() if is_quantized(p)] != []
    trained = {name for name, p in model.model.named_parameters() if p.requires_grad}
    assert trained == {name for name in before if is_factor(name)} | {"score.weight"}
    losses = [model.update(pairs())["loss"] for _ in range(20)]
    assert losses[-1] < losses[0] / 2
    assert model.held_out(pairs(30, seed=9))["held_out/accuracy"] > 0.8
    assert all(torch.equal(p, before[name]) for name, p in backend.model.named_parameters())


@pytest.mark.parametrize("name", ["llama", "qwen2 tied"])
def test_its_folder_is_a_classifier_of_plain_numbers_and_its_adapters_are_pefts(tmp_path: Path, name: str) -> None:
    backend = backend_of(name)
    model = backend.reward_model(OPTIMIZER, 20)
    model.update(pairs())
    model.update(pairs())
    model.write(tmp_path, character_tokenizer("abc"))
    plain = classifier(tmp_path)
    torch.testing.assert_close(rewards(of_classifier(plain)), rewards(model), rtol=1e-4, atol=1e-5)
    base = classifier(tmp_path)
    base.base_model.load_state_dict(adapted(name).plain_model().base_model.state_dict())
    theirs: Any = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    with torch.no_grad():
        for ids, wanted in zip(ROWS, rewards(model), strict=True):
            found = theirs(input_ids=torch.tensor([ids])).logits[0, 0]
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def classifier(folder: Path) -> Any:
    return transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()


def of_classifier(model: Any) -> RewardModel:
    return RewardModel(TorchTrained(model, NORM, ALONE), OPTIMIZER, 20, TrainConfig())


def test_it_goes_on_with_the_same_bytes_and_a_checkpoint_has_no_base(tmp_path: Path) -> None:
    whole = backend_of().reward_model(OPTIMIZER, 20)
    for seed in range(4):
        whole.update(pairs(seed=seed))
    cut = backend_of().reward_model(OPTIMIZER, 20)
    for seed in range(2):
        cut.update(pairs(seed=seed))
    cut.save(tmp_path, character_tokenizer("abc"))
    trained = sum(p.nbytes for p in cut.model.parameters() if p.requires_grad)
    assert sum(f.stat().st_size for f in tmp_path.rglob("*") if f.is_file()) < 3 * trained + 30_000
    again = backend_of().reward_model(OPTIMIZER, 20, folder=tmp_path)
    for seed in range(2, 4):
        again.update(pairs(seed=seed))
    ours, theirs = dict(again.model.named_parameters()), dict(whole.model.named_parameters())
    assert all(torch.equal(ours[name], p) for name, p in theirs.items())


def test_a_later_stage_trains_it_on_with_a_fresh_optimiser(tmp_path: Path) -> None:
    model = backend_of().reward_model(OPTIMIZER, 20)
    model.update(pairs())
    model.update(pairs())
    model.write(tmp_path, character_tokenizer("abc"))
    later = backend_of().reward_model(OPTIMIZER, 20, start=tmp_path)
    assert later.trained.num_updates == 0
    assert torch.equal(rewards(later), rewards(model))
    with pytest.raises(CheckpointError, match="of another base than the recipe's model"):
        backend_of(seed=1).reward_model(OPTIMIZER, 20, start=tmp_path)
