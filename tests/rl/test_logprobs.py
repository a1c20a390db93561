"""Log-probs, entropies and their gradients against plain floats; memory; the recorded sampling set."""

import math
import random

import pytest
import torch

from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.rl import logprobs as module
from verizero.pipeline.rl.logprobs import logprobs_and_entropy


def slow(logits: list[float], target: int, temperature: float) -> tuple[float, float]:
    """(log-prob, entropy) by floats; a logit of -inf has probability 0."""
    scaled = [x / temperature for x in logits]
    top = max(scaled)
    weights = [math.exp(x - top) for x in scaled]
    total = math.fsum(weights)
    entropy = -math.fsum(w / total * math.log(w / total) for w in weights if w > 0)
    return scaled[target] - top - math.log(total), entropy


def random_logits(seed: int, rows: int = 5, vocab: int = 7) -> tuple[list[list[float]], list[int]]:
    r = random.Random(seed)
    return [[r.gauss(0, 2) for _ in range(vocab)] for _ in range(rows)], [r.randrange(vocab) for _ in range(rows)]


@pytest.fixture
def tiny_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows a chunk, so that five rows have whole chunks and a rest."""
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 14)


@pytest.mark.usefixtures("tiny_chunks")
@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.5])
def test_values_and_gradients(temperature: float) -> None:
    rows, targets = random_logits(0)
    logits = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    found, entropy = logprobs_and_entropy(logits, torch.tensor(targets), temperature)
    expected = [slow(row, y, temperature) for row, y in zip(rows, targets, strict=True)]
    assert found.tolist() == pytest.approx([e[0] for e in expected], rel=1e-12)
    assert entropy.tolist() == pytest.approx([e[1] for e in expected], rel=1e-12)
    # each row pulls on its log-prob and on its entropy with weights of its own
    weights = [(1.0 + i, 0.5 - i) for i in range(len(rows))]
    (found * torch.tensor([w[0] for w in weights])).sum().backward(retain_graph=True)
    (entropy * torch.tensor([w[1] for w in weights])).sum().backward()
    for i, (row, y) in enumerate(zip(rows, targets, strict=True)):
        for j in range(len(row)):
            sides = []
            for h in (1e-6, -1e-6):
                moved = [*row[:j], row[j] + h, *row[j + 1 :]]
                value, spread = slow(moved, y, temperature)
                sides.append(weights[i][0] * value + weights[i][1] * spread)
            # A side is rounded to 1e-14 or so, and the difference is divided by 2e-6.
            assert float(logits.grad[i, j]) == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-6, abs=1e-7)


def test_half_precision_logits_are_summed_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(4, 5000, generator=generator) * 3).bfloat16()
    targets = torch.randint(5000, (4,), generator=generator)
    found, _ = logprobs_and_entropy(logits, targets)
    assert found.dtype == torch.float32
    expected = [slow(row.tolist(), int(y), 1.0)[0] for row, y in zip(logits, targets, strict=True)]
    assert found.tolist() == pytest.approx(expected, abs=1e-5)


def test_no_float32_copy_of_the_logits_is_saved() -> None:
    logits = torch.randn(8, 1000, dtype=torch.bfloat16, requires_grad=True)
    saved: list[tuple[torch.dtype, int]] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (saved.append((x.dtype, x.numel())), x)[1], lambda x: x):
        logprobs_and_entropy(logits, torch.zeros(8, dtype=torch.long))
    assert max(n for dtype, n in saved if dtype == torch.float32) == 8
    assert sum(n for dtype, n in saved if dtype == torch.bfloat16) == logits.numel()


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_without_a_distribution_is_refused(temperature: float) -> None:
    with pytest.raises(ConfigError, match="temperature"):
        logprobs_and_entropy(torch.zeros(1, 3), torch.zeros(1, dtype=torch.long), temperature)


@pytest.mark.usefixtures("tiny_chunks")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_kept_sets_are_cut_off_chunk_by_chunk_with_their_gradients(temperature: float) -> None:
    """Compare to a whole copy of the logits with -inf outside the sets, and to finite sums over each set."""
    rows, targets = random_logits(4, rows=6)
    kept = torch.tensor([sorted({t, 1, (t + 2) % 7}) + [-1] * (4 - len({t, 1, (t + 2) % 7})) for t in targets])
    kept[2] = -1
    sets = [[j for j in row if j >= 0] or list(range(7)) for row in kept.tolist()]
    outside = torch.tensor([[j not in allowed for j in range(7)] for allowed in sets])
    at = torch.tensor(targets)
    found = []
    for how in ("copy", "chunks"):
        logits = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
        if how == "copy":
            values, entropy = logprobs_and_entropy(logits.masked_fill(outside, -math.inf), at, temperature)
        else:
            values, entropy = logprobs_and_entropy(logits, at, temperature, kept)
        (values * torch.arange(1, 7) + 0.3 * entropy).sum().backward()
        found.append((values.detach(), entropy.detach(), logits.grad))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    for i, (target, allowed) in enumerate(zip(targets, sets, strict=True)):
        total = math.log(math.fsum(math.exp(rows[i][j] / temperature) for j in allowed))
        logp = [rows[i][j] / temperature - total for j in allowed]
        assert float(found[0][0][i]) == pytest.approx(rows[i][target] / temperature - total, rel=1e-12)
        assert float(found[0][1][i]) == pytest.approx(-math.fsum(math.exp(x) * x for x in logp), rel=1e-12)
    assert found[0][2][outside].abs().sum() == 0
    with pytest.raises(DataError, match="token 3 at row 0"):
        logprobs_and_entropy(torch.zeros(1, 5), torch.tensor([3]), 1.0, torch.tensor([[1, 2, -1]]))
