"""What is DeepSpeed's or FSDP's own: gradients of unused weights, what waits on the CPU, errors, refusals."""

import pytest
import torch

from tests.train.batches import two_layers
from tests.train.on_ranks import LESSONS, grpo
from tests.train.rank_group import installed
from tests.warm import warm
from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.errors import RunError, Unsupported
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.deepspeed_trained import DeepSpeedTrained
from verizero.pipeline.train.fsdp_trained import (
    FsdpTrained,
    _collective_errors_amid,
    own_group,
    read_tensors,
    write_tensors,
)
from verizero.pipeline.train.optimizer import clipped_step, finite_norm
from verizero.pipeline.train.ranks import ALONE
from verizero.pipeline.train.torch_trained import TorchTrained

DIVIDED = [(1, "none"), (2, "optimizer"), (3, "none"), (3, "all")]
"""Stages of ZeRO, each with what is offloaded."""


def norms(zero, offload):
    """The gradient's norm in updates whose micro-batches use the whole policy, or its embeddings alone."""
    ids = torch.tensor([[3, 4, 5, 6]])

    def whole(model):
        return model(input_ids=ids).logits.square().mean() * 100

    def embeddings(model):
        return (model.model.embed_tokens(ids) ** 2).mean() / 1000

    model, config = two_layers(), OptimizerConfig(learning_rate=1e-3, max_grad_norm=None)
    backend = Backend(model)
    if zero:
        train = TrainConfig(backend="deepspeed", device="cpu", zero=zero, offload=offload)
        backend = Backend(model, train)
    backend.start(config, 5)
    seen = []
    for losses in ([whole], [embeddings], [embeddings, whole], [whole, embeddings], [embeddings]):
        for loss in losses:
            if zero:
                backend.policy.engine.backward(backend.policy.engine(loss))
            else:
                loss(model).backward()
        seen.append(backend.policy.step()[0] if zero else plain_step(backend, config))
    return seen


def plain_step(backend, config):
    """An update of torch's backend, in which a parameter that nothing used has a gradient of zero as in DeepSpeed's."""
    parameters = [p for p in backend.model.parameters() if p.grad is not None]
    norm = finite_norm(parameters, "gradient norm", 0)
    clipped_step(backend.policy.optimizer, config, parameters, norm, 1e-3)
    backend.policy.optimizer.zero_grad(set_to_none=False)
    return float(norm)


def norms_of_each(settings):
    """`norms` of each, in one process."""
    return [norms(zero, offload) for zero, offload in settings]


@installed
@pytest.mark.run
def test_a_parameter_that_an_update_does_not_use_keeps_no_gradient_of_an_earlier_one():
    plain, *divided = warm().call(norms_of_each, [(0, "none"), *DIVIDED])
    for how, seen in zip(DIVIDED, divided, strict=True):
        assert seen == pytest.approx(plain, rel=1e-5), how


def test_a_whole_reference_waits_on_the_cpu():
    """Between its own log-probs and the policy's; on this machine both are the CPU, so the moves are counted."""

    class Travelling(torch.nn.Module):
        """A reference that says it is on another device than the one asked for."""

        device = torch.device("meta")
        seats: tuple[str, ...] = ()

        def to(self, *args, **_):
            self.device = args[0]
            self.seats += (str(args[0]),)
            return self

    for offload, wanted in (("all", ("cpu",)), ("none", ())):
        backend, reference = Backend(two_layers()), Travelling()
        backend.train_config = TrainConfig(backend="deepspeed", zero=3, offload=offload)
        backend.reference = TorchTrained(reference, "reference", ALONE)
        for _ in range(2):
            backend.compute(lambda model: None)
        assert reference.seats == wanted


def test_deepspeed_does_not_change_the_optimiser_within_a_stage():
    with pytest.raises(Unsupported, match=r"as a stage starts; set train\.backend: torch or fsdp"):
        object.__new__(DeepSpeedTrained).change(OptimizerConfig(learning_rate=1e-3))


@pytest.mark.run
def test_the_optimiser_and_a_reference_wait_in_the_memory_of_the_cpu():
    config = TrainConfig(backend="fsdp", device="cpu", offload="optimizer")
    backend = LESSONS["grpo"].begin(Backend(two_layers(), config))
    shards, reference = backend.policy, backend.reference
    assert isinstance(reference, FsdpTrained)
    grpo(backend, 0)
    for name, p in shards.model.named_parameters():
        row = shards._rows[name]
        assert torch.equal(row, p.to_local())
        assert row.data_ptr() != p.to_local().data_ptr()  # on a GPU it would be on another device
        assert "exp_avg" in shards._moments(name)
    assert device_bytes(reference) == {0}
    reference.place(True)
    assert min(device_bytes(reference)) > 0


@pytest.mark.run
def test_a_divided_reference_waits_there_from_the_start(tmp_path):
    config = TrainConfig(backend="fsdp", device="cpu", offload="optimizer")
    backend = Backend(two_layers(), config)
    for alpha in (1.0, 0.5):
        backend.refresh_reference(alpha)
        assert device_bytes(backend.reference) == {0}
    backend.save(tmp_path, lambda model, folder: model.save_pretrained(folder))
    assert device_bytes(backend.reference) == {0}
    again = Backend(two_layers(), config)
    again.load(tmp_path)
    assert device_bytes(again.reference) == {0}


def device_bytes(reference):
    return {p.to_local().untyped_storage().nbytes() for p in reference.model.parameters()}


@pytest.mark.run
def test_what_writes_shards_touches_no_gpu(tmp_path, monkeypatch):
    """In the thread that writes, the first GPU is the current one: its stream is another rank's."""
    backend = LESSONS["grpo"].begin(Backend(two_layers(), TrainConfig(backend="fsdp", device="cpu")))
    grpo(backend, 0)
    shards = backend.policy.tensors()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for group in (None, own_group()):
        finish = write_tensors(shards, tmp_path / str(group is None), group)
        if finish is not None:
            finish()
    monkeypatch.undo()
    wanted = {name: t.to_local().clone() for name, t in shards.items()}
    for folder in tmp_path.iterdir():
        for t in shards.values():
            t.to_local().zero_()
        read_tensors(shards, folder)
        assert all(torch.equal(shards[name].to_local(), rows) for name, rows in wanted.items())


def test_an_error_of_the_model_is_not_taken_for_one_of_the_network():
    with pytest.raises(RuntimeError, match=r"^out of memory$") as caught, _collective_errors_amid():
        raise RuntimeError("out of memory")
    assert not isinstance(caught.value, RunError)
    with pytest.raises(RunError, match="gets no answer from the others"), _collective_errors_amid():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:525] Connection closed by peer")
