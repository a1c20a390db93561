"""The reference of a policy with adapters, to which it lends its base."""

import pytest
import torch

from tests.models.families import tiny
from verizero.pipeline.config.sections import OptimizerConfig
from verizero.pipeline.models.lora import Adapted
from verizero.pipeline.train.backend import Backend

IDS = torch.tensor([[3, 4, 5, 6, 7, 8]])
WHERE = torch.arange(6)[None] > 0


def backend_on(quantize_on):
    model = tiny("llama")
    backend = Backend(model, adapted=Adapted(model, 3, 6.0, (), 5, quantize_on=quantize_on))
    backend.start(OptimizerConfig(learning_rate=0.05), 10)
    return backend


def train(backend):
    for _ in range(3):
        backend.backward(-backend.logprobs(IDS, WHERE, 1.0)[0].sum())
        backend.step()


def scored(backend, which):
    with torch.no_grad():
        return backend.logprobs(IDS, WHERE, 1.0, which)[0]


@pytest.mark.parametrize("quantize_on", [None, "cpu"])
def test_it_stays_while_the_policy_moves_and_comes_back_the_same(quantize_on, tmp_path):
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
def test_a_moving_mean_is_one_of_whole_weights(quantize_on, is_fresh, tmp_path):
    """The product of two means of factors is not the mean of their products."""
    backend = backend_on(quantize_on)
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
