"""The findings of rldoctor 0.2 about the same runs: `pip install rldoctor`, then

python -m benchmarks.diagnose.in_trl.rldoctor --folder runs/diagnose_trl

It reads the state of the last checkpoint, as its page shows. A detector counts for every cause that it could mean, so
that the comparison favours it.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from benchmarks.diagnose.in_trl.faults import BY_NAME

MEANS = {
    "advantage_collapse": {"advantages_vanish", "too_hard", "too_easy", "constant_reward", "wrong_references"},
    "entropy_collapse": {"entropy_collapse"},
    "reward_hacking": {"false_positives", "evaluation_leak"},
    "length_pathology": {"length_drift", "length_cap", "end_token_missing"},
    "clip_saturation": {"clip_stops_learning"},
    "kl_drift": {"kl_too_strong", "learning_rate_high"},
    "gradient_pathology": {"gradients_always_clipped", "learning_rate_high", "length_cap"},
    "reward_composition": {"reward_scales"},
    "plateau": {"learning_rate_low", "kl_too_strong", "prompts_repeat"},
}
PROBLEMS = ("WARN", "CRIT")


def main() -> None:
    """Print what it finds in each run, then the shares."""
    from rl_doctor import diagnose, load_run  # type: ignore[import-not-found]

    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, default=Path("runs/diagnose_trl"))
    counts: Counter[str] = Counter()
    for scores in sorted(options.parse_args().folder.glob("*/seed*/scores.json")):
        name = scores.parts[-3]
        state = next(scores.parent.glob("output/checkpoint-*/trainer_state.json"))
        findings = [f for f in diagnose(load_run(str(state))).findings if f.severity.label in PROBLEMS]
        names = [f.detector for f in sorted(findings, key=lambda f: -PROBLEMS.index(f.severity.label))]
        cause = BY_NAME[name].cause
        if cause == "none":
            counts["healthy"] += 1
            counts["quiet"] += not names
        else:
            counts["faults"] += 1
            counts["first"] += bool(names) and cause in MEANS[names[0]]
            counts["three"] += any(cause in MEANS[detector] for detector in names[:3])
        print(f"{name}-{scores.parts[-2]}: {cause}, and found {', '.join(names) or 'nothing'}")
    first, three = counts["first"], counts["three"]
    print(f"{counts['faults']} faults: a detector of the cause first in {first}, among the first three in {three}")
    print(f"{counts['healthy']} healthy runs: nothing in {counts['quiet']}")


if __name__ == "__main__":
    main()
