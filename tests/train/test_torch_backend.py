"""The backend: its schedule, its update, and resuming after a break as if there had been none."""

import math

import pytest
import torch

from tests.models.families import build, tiny
from tests.train.batches import backend_of, groups_of, parts_of, policy, settings_of, weights
from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.errors import CheckpointError
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.optimizer import schedule
from verizero.pipeline.train.step import update


def rates(total, **changes):
    config = OptimizerConfig(**{"learning_rate": 8.0, "warmup_steps": 0, **changes})
    return [schedule(config, step, total) for step in range(total + 2)]


HALF_WAY = 4 / math.sqrt(2)
WSD = {"schedule": "wsd", "decay_share": 0.4, "final_share": 0.0}


@pytest.mark.parametrize(
    ("total", "changes", "wanted"),
    [
        (4, {}, [8.0] * 6),
        (6, {"warmup_steps": 4}, [2.0, 4.0, 6.0, 8.0, 8.0, 8.0, 8.0, 8.0]),
        (4, {"schedule": "linear", "final_share": 0.5}, [8.0, 7.0, 6.0, 5.0, 4.0, 4.0]),
        (
            6,
            {"schedule": "linear", "final_share": 0.5, "warmup_steps": 2},
            [4.0, 8.0, 8.0, 7.0, 6.0, 5.0, 4.0, 4.0],
        ),
        (4, {"schedule": "cosine", "final_share": 0.0}, [8.0, 4 + HALF_WAY, 4.0, 4 - HALF_WAY, 0.0, 0.0]),
        (2, {"schedule": "cosine", "final_share": 0.25}, [8.0, 5.0, 2.0, 2.0]),
        (2, {"schedule": "cosine", "warmup_steps": 4}, [2.0, 4.0, 6.0, 8.0]),
        (10, {**WSD, "warmup_steps": 2}, [4.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 6.0, 4.0, 2.0, 0.0, 0.0]),
        (2, {**WSD, "warmup_steps": 4}, [2.0, 4.0, 6.0, 8.0]),
    ],
)
def test_rates_are_those_of_the_schedule(total, changes, wanted):
    assert rates(total, **changes) == pytest.approx(wanted)


def test_the_reference_is_made_once_then_moves_by_alpha():
    backend = Backend(policy(0))
    backend.refresh_reference()
    first = weights(backend)
    other = policy(1).state_dict()
    backend.model.load_state_dict(other)
    held = backend.reference.model.state_dict()
    assert all(torch.equal(held[k], first[k]) for k in first)
    backend.refresh_reference(0.25)
    for k, v in backend.reference.model.state_dict().items():
        assert torch.allclose(v, 0.25 * other[k] + 0.75 * first[k])
    backend.refresh_reference()
    assert all(torch.equal(v, other[k]) for k, v in backend.reference.model.state_dict().items())
    assert not any(p.requires_grad for p in backend.reference.model.parameters())


def save_model(model, folder):
    model.save_pretrained(folder)


@pytest.mark.parametrize("trainer", ["torch", "fsdp"])
def test_a_backend_without_stage_or_reference_comes_back_without(trainer, tmp_path):
    """Whatever it was before: in half precision the masters leave the gradients of the parameters alone."""

    def opened():
        config = TrainConfig(backend=trainer, device="cpu")
        return Backend(policy(dtype=torch.bfloat16), config)

    opened().save(tmp_path, save_model)
    backend = opened()
    backend.start(OptimizerConfig(learning_rate=0.1), 4)
    backend.refresh_reference()
    assert learned(backend) == 0.1
    backend.load(tmp_path)
    assert (backend.policy.optimizer, backend.policy.config, backend.reference) == (None, None, None)
    assert backend.policy.total_steps == backend.num_updates == 0
    assert all(p.grad is not None for p in backward(backend).model.parameters())
    backend.discard()
    backend.start(OptimizerConfig(learning_rate=0.2), 4)
    assert learned(backend) == 0.2
    backend.policy.change(OptimizerConfig(learning_rate=0.3))
    assert learned(backend) == 0.3
    assert backend.num_updates == 2


def backward(backend):
    ids = torch.tensor([[3, 4, 5, 6]])
    backend.backward(backend.logprobs(ids, torch.arange(4)[None] > 0, 1.0)[0].sum())
    return backend


def learned(backend):
    """The learning rate of an update."""
    return backward(backend).step()["learning_rate"]


@pytest.mark.parametrize("trainer", ["torch", "fsdp"])
def test_weights_of_another_architecture_are_refused(trainer):
    backend = Backend(policy(), TrainConfig(backend=trainer, device="cpu"))
    with pytest.raises(CheckpointError, match=r"have no 'model\..*': they are of another architecture"):
        backend.replace_weights(tiny("gpt2", dtype=torch.float64))


@pytest.mark.parametrize("with_reference", [True, False])
def test_a_state_of_another_model_is_refused(with_reference, tmp_path):
    backend = backend_of()
    if not with_reference:
        backend.reference = None
    parts = parts_of("dr_grpo")
    update(backend, parts, groups_of(), settings_of(parts))
    backend.save(tmp_path, save_model)
    for changes in ({"hidden_size": 24}, {"hidden_size": 16, "num_hidden_layers": 3}):
        shape = {"num_key_value_heads": 1, "num_attention_heads": 2, **changes}
        other = Backend(build("qwen2", shape, dtype=torch.float64))
        with pytest.raises(CheckpointError, match="does not fit the model"):
            other.load(tmp_path)


def test_moments_of_another_shape_are_refused(tmp_path):
    """Of as many dimensions, which torch would accept."""
    backend = backend_of()
    backend.start(OptimizerConfig(learning_rate=0.1), 1)
    weight = next(backend.model.parameters())
    backend.backward(weight.sum())
    backend.step()
    backend.policy.optimizer.state[weight]["exp_avg"] = torch.zeros(1, 1)
    backend.save(tmp_path, save_model)
    with pytest.raises(CheckpointError, match="does not fit the model"):
        backend.load(tmp_path)


def test_a_checkpoint_of_the_other_backend_is_refused_with_the_way_on(tmp_path):
    (tmp_path / "trainer.json").write_text('{"backend": "deepspeed"}')
    with pytest.raises(CheckpointError, match=r"was not written by train\.backend=torch; .* model\.path: .*/model"):
        Backend(policy()).load(tmp_path)
