"""The parity check: a difference between engine and trainer is reported, corrected or ends the run."""

import json
from contextlib import contextmanager

import pytest

from tests.stages.recorded import CUT, EXPERTS, V32
from tests.stages.sessions import Heard, display, rows, session_of, train_round
from tests.stages.tiny import tiny
from verizero.pipeline.errors import RunError
from verizero.pipeline.loop.rounds import check_parity
from verizero.pipeline.models.quantized import InBits
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.rollout.hf_decoder import HfDecoder
from verizero.pipeline.rollout.torch_engine import TorchEngine
from verizero.pipeline.run.algorithm import sampling
from verizero.pipeline.run.opening import open_run


def parity_of(session):
    how = sampling(session.setup)
    return check_parity(session.run, session.workers, session.setup.config.rollout, session.recorder, how)


class TestTheGate:
    """The scripted engine reports a log-prob of -0.5 for whatever it says, which no trainer agrees with."""

    def gap(self, folder, action):
        with session_of(folder, rollout={"parity": {"action": action}}) as session:
            gap = parity_of(session)
            return display(session), gap

    def test_off_is_the_default_of_the_embedded_engine(self, tmp_path):
        assert self.gap(tmp_path, "auto")[1] is None
        assert not (tmp_path / "run" / "parity.json").exists()

    def test_a_difference_is_said_and_written_down(self, tmp_path):
        heard, gap = self.gap(tmp_path, "warn")
        assert gap.p50 <= gap.p99 <= gap.largest
        assert gap.mean > 1
        (said,) = [line for line in heard.lines if "differ" in line]
        assert "rollout.parity.action: correct" in said
        written = json.loads((tmp_path / "run" / "parity.json").read_text())
        assert written["differs"] is True
        assert written["mean"] == gap.mean

    def test_a_difference_ends_the_run_where_the_recipe_says_so(self, tmp_path):
        with pytest.raises(RunError, match=r"differ in log-probs.*tolerance is 0\.001"):
            self.gap(tmp_path, "stop")

    def test_the_tolerance_is_the_types_unless_the_recipe_names_one(self):
        how = tiny().rollout
        assert (how.parity_tolerance("float32"), how.parity_tolerance("bfloat16")) == (1e-3, 5e-2)
        assert tiny(overrides=["rollout.parity.tolerance=0.2"]).rollout.parity_tolerance("bfloat16") == 0.2

    @pytest.mark.parametrize("changes", [[], [V32, *EXPERTS, *CUT]], ids=["plain", "over what was recorded"])
    def test_the_embedded_engine_passes(self, changes, tmp_path):
        config = tiny(overrides=["stages=[rl]", "rollout.parity.action=stop", *changes])
        with open_run(config, tmp_path, tmp_path / "run", "auto", Progress()) as session:
            gap = parity_of(session)
        assert gap.num_tokens > 20
        assert gap.largest < 1e-4


class MergedAndRoundedAgain(TorchEngine):
    """The fault: the adapters go into the base's numbers, and these back into 4 bits, which are other ones."""

    def __init__(self, adapted, right):
        self._adapted, self._how = adapted, (sorted(right.eos_ids), right.pad_id)
        self.publish(right.version)

    def publish(self, version):
        plain = self._adapted.plain_model()
        super().__init__(InBits(plain, "cpu").read(plain), *self._how)
        super().publish(version)

    def _choose(self):
        return HfDecoder(self.model, self.pad_id)  # the other decoder takes 4 bits with adapters only


FOUR_BITS = [
    "model.quantize=nf4",
    "train.lora={rank: 4, alpha: 8}",
    "stages=[rl]",
    "rl.optimizer.learning_rate=0.02",
    "rl.select.keep=all",
    "rl.algorithm.entropy_coef=0.1",  # a gradient where all rewards are equal
    "rollout.max_response_tokens=8",
    "data.evaluation=[]",
]


@contextmanager
def in_four_bits(folder, action, is_planted):
    config = tiny(overrides=[*FOUR_BITS, f"rollout.parity.action={action}"])
    with open_run(config, folder, folder / "run", "auto", Heard()) as session:
        generation = session.workers.rollouts.generation
        if is_planted:
            generation.engine = MergedAndRoundedAgain(session.workers.backend.adapted, generation.engine)
        yield session


class TestAMergeIntoABaseInFourBits:
    """Fresh adapters are zero, so nothing differs before the first update; the steps' own differences show it."""

    @pytest.mark.parametrize("is_planted", [True, False])
    def test_it_is_said_once_and_the_right_engine_is_silent(self, tmp_path, is_planted):
        with in_four_bits(tmp_path, "warn", is_planted) as session:
            train_round(session)
            found = [row["metrics"]["mismatch/abs"] for row in rows(session)]
            said = [line for line in display(session).lines if "differ" in line]
            is_seen = session.workers.rollouts.parity == "differs"
        assert json.loads((tmp_path / "run" / "parity.json").read_text())["differs"] is False
        assert found[0] < 1e-4
        if is_planted:
            assert min(found[1:]) > 1e-3, "two steps are past the tolerance, and one line says so"
            assert [line.split(" nats")[0] for line in said] == [
                f"round 1 step 2: engine and trainer differ by {found[1]:.2e}"
            ]
            assert is_seen
        else:
            assert max(found) < 1e-4
            assert not said
            assert not is_seen

    def test_it_ends_the_run_where_the_recipe_says_so_and_the_step_is_written(self, tmp_path):
        with in_four_bits(tmp_path, "stop", True) as session:
            with pytest.raises(
                RunError, match=r"round 1 step 2: engine and trainer differ by .*parity.tolerance is 0\.001"
            ):
                train_round(session)
            assert len(rows(session)) == 2
