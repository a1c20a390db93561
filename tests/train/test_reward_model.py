"""The reward model, whole or on a policy's base in bits: its folder, its loss, and resuming after a break."""

import random

import peft
import pytest
import torch
import transformers
from torch.nn import functional as F

from tests.models.families import VOCAB, tiny
from tests.models.test_lora import taught
from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.errors import CheckpointError
from verizero.pipeline.models.lora import Adapted, is_factor
from verizero.pipeline.models.quantized import is_quantized
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.ranks import ALONE
from verizero.pipeline.train.reward_model import NORM, LabelledSteps, RewardModel
from verizero.pipeline.train.torch_trained import TorchTrained

OPTIMIZER = OptimizerConfig(learning_rate=1e-2, eps=1e-3)  # with 1e-8 a gradient that is rounding makes a whole step


def pairs(count=9, seed=0):
    """Better sides hold the token 5 more often."""
    draw = torch.Generator().manual_seed(seed)

    def side(good):
        n = int(torch.randint(2, 20, (1,), generator=draw))
        ids = torch.randint(3, VOCAB, (n,), generator=draw)
        ids[torch.rand(n, generator=draw) < 0.5] = 5 if good else 6
        return tuple(ids.tolist())

    return [(side(True), side(False)) for _ in range(count)]


ROWS = [ids for sides in pairs(seed=3) for ids in sides]
KINDS = ["whole", "bits"]
"""Of weights of its own, or of adapters on the base of a policy with adapters, which is in four bits."""


def on_bits(name="llama", seed=0):
    return Adapted(tiny(name, seed=seed), 3, 6.0, (), 5, quantize_on="cpu")


def backend_of(kind, name="llama", seed=0, **train):
    adapted = taught(on_bits(name, seed)) if kind == "bits" else None
    return Backend(tiny(name, seed=seed) if adapted is None else adapted.model, TrainConfig(**train), adapted=adapted)


def model_of(kind="whole", name="qwen2 tied", scattered=True, **train):
    found = backend_of(kind, name, **train).reward_model(OPTIMIZER, 50)
    if scattered:
        torch.manual_seed(1)
        torch.nn.init.normal_(found.model.score.weight)
    return found


def rewards(model):
    return model.rewards(ROWS).detach()


@pytest.mark.parametrize("kind", KINDS)
def test_it_begins_without_an_opinion(kind):
    fresh = model_of(kind, scattered=False, micro_batch_tokens=64)
    assert rewards(fresh).abs().max() == 0
    assert fresh.held_out(pairs())["held_out/accuracy"] == 0.5


def classifier(folder):
    return transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()


def alone(model):
    """What transformers' own forward gives each row."""
    with torch.no_grad():
        return torch.stack([model(input_ids=torch.tensor([ids])).logits[0, 0] for ids in ROWS])


@pytest.mark.parametrize("name", ["qwen2 tied", "llama", "gpt2"])
def test_its_folder_loads_as_a_sequence_classifier_and_says_the_same(tmp_path, name):
    own = model_of(name=name)
    own.update(pairs())
    own.save(tmp_path, character_tokenizer("abc"))
    theirs = classifier(tmp_path / "model")
    assert theirs.config.num_labels == 1
    torch.testing.assert_close(rewards(own), alone(theirs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "qwen2 tied"])
def test_on_bits_its_folder_has_plain_numbers_too_and_its_adapters_are_pefts(tmp_path, name):
    own = model_of("bits", name)
    own.update(pairs())
    own.update(pairs())
    own.write(tmp_path, character_tokenizer("abc"))
    torch.testing.assert_close(alone(classifier(tmp_path)), rewards(own), rtol=1e-4, atol=1e-5)
    base = classifier(tmp_path)
    base.base_model.load_state_dict(on_bits(name).plain_model().base_model.state_dict())
    theirs = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    torch.testing.assert_close(alone(theirs), rewards(own), rtol=1e-4, atol=1e-5)


def test_it_learns_on_the_bits_of_the_policy_which_stays_as_it_is():
    backend = backend_of("bits")
    before = {name: p.detach().clone() for name, p in backend.model.named_parameters()}
    model = backend.reward_model(OPTIMIZER, 20)
    assert model.can_pack()
    bits = [p.data_ptr() for p in backend.model.parameters() if is_quantized(p)]
    assert bits == [p.data_ptr() for p in model.model.parameters() if is_quantized(p)] != []
    trained = {name for name, p in model.model.named_parameters() if p.requires_grad}
    assert trained == {name for name in before if is_factor(name)} | {"score.weight"}
    losses = [model.update(pairs())["loss"] for _ in range(20)]
    assert losses[-1] < losses[0] / 2
    assert model.held_out(pairs(30, seed=9))["held_out/accuracy"] > 0.8
    assert all(torch.equal(p, before[name]) for name, p in backend.model.named_parameters())


def steps(count=9, seed=0):
    """A step is right if its last token is 5."""
    draw = random.Random(seed)
    out = []
    for _ in range(count):
        ids = tuple(draw.choice((5, 6, 7)) for _ in range(draw.randint(6, 20)))
        ends = tuple(sorted(draw.sample(range(1, len(ids) - 1), draw.randint(1, 4))))
        out.append(LabelledSteps(ids[: ends[-1] + 1], ends, tuple(ids[end] == 5 for end in ends)))
    return out


def test_the_loss_of_steps_is_the_cross_entropy_of_their_prefixes():
    """Each step is scored as a text that ends with it, and all steps of the batch weigh alike."""
    own, batch = model_of(micro_batch_tokens=60), steps()
    prefixes = [row.ids[: end + 1] for row in batch for end in row.ends]
    right = torch.tensor([float(r) for row in batch for r in row.right])
    wanted = F.binary_cross_entropy_with_logits(own.rewards(prefixes).detach(), right)
    signs = 2 * right.double() - 1
    margins = own.margins(batch)
    torch.testing.assert_close(margins, own.rewards(prefixes).detach().double() * signs, rtol=1e-4, atol=1e-5)
    metrics = own.update(batch)
    assert metrics["loss"] == pytest.approx(float(wanted), rel=1e-5)
    assert metrics["accuracy"] == pytest.approx(float((margins > 0).double().mean()))


def answers(count=9):
    """Three pairs of each prompt."""
    draw = random.Random(0)
    prompts = [tuple(draw.choices(range(3, VOCAB), k=12)) for _ in range(count // 3)]
    return [(prompts[i // 3] + good, prompts[i // 3] + bad) for i, (good, bad) in enumerate(pairs(count))]


@pytest.mark.run
def test_it_learns_which_side_is_better():
    own = model_of(scattered=False)
    for step in range(60):
        own.update(pairs(32, step))
    seen = own.held_out(pairs(200, 999))
    assert seen["held_out/accuracy"] > 0.9
    assert seen["held_out/calibration_error"] < 0.15


@pytest.mark.parametrize("kind", KINDS)
def test_going_on_after_a_break_gives_the_same_bits(kind, tmp_path):
    """And on bits a checkpoint has no base."""
    how = {"micro_batch_tokens": 100}
    whole = backend_of(kind, **how).reward_model(OPTIMIZER, 50)
    for seed in range(4):
        if seed == 2:
            whole.save(tmp_path, character_tokenizer("abc"))
        whole.update(pairs(seed=seed))
    again = backend_of(kind, **how).reward_model(OPTIMIZER, 50, tmp_path)
    for seed in (2, 3):
        again.update(pairs(seed=seed))
    ours, theirs = dict(again.model.named_parameters()), dict(whole.model.named_parameters())
    assert all(torch.equal(ours[name], p) for name, p in theirs.items())
    trained = sum(p.nbytes for p in whole.model.parameters() if p.requires_grad)
    size = sum(f.stat().st_size for f in tmp_path.rglob("*") if f.is_file())
    assert kind == "whole" or size < 3 * trained + 30_000


@pytest.mark.run
@pytest.mark.parametrize(("kind", "trainer"), [("whole", "torch"), ("whole", "fsdp"), ("bits", "torch")])
def test_an_earlier_model_continues_with_a_fresh_optimiser(kind, trainer, tmp_path):
    how = {"micro_batch_tokens": 100, "device": "cpu"}
    first = model_of(kind, "llama", **how)
    first.update(pairs())
    first.update(pairs())
    first.write(tmp_path, character_tokenizer("abc"))
    later = backend_of(kind, backend=trainer, **how).reward_model(OPTIMIZER, 50, start=tmp_path)
    torch.testing.assert_close(rewards(later), rewards(first))
    assert later.trained.num_updates == 0
    if kind == "bits":
        with pytest.raises(CheckpointError, match="of another base than the recipe's model"):
            backend_of(kind, seed=1).reward_model(OPTIMIZER, 50, start=tmp_path)
        return
    fresh = RewardModel(TorchTrained(first.model, NORM, ALONE), OPTIMIZER, 50, TrainConfig(**how))
    assert later.update(pairs(seed=1)) == pytest.approx(fresh.update(pairs(seed=1)), rel=1e-4)
    torch.testing.assert_close(rewards(later), rewards(fresh), rtol=1e-4, atol=1e-5)
