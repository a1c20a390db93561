"""Run folders as a run leaves them, made up but whole: a model that learns two domains, with a seed."""

import json
import random

from verizero.pipeline.report.estimates import PromptSamples, summarize_domain

DOMAINS = ("arithmetic", "induction")
HOSTILE = (
    '</script><script>window.hacked=1</script><img src=x onerror="window.hacked=1">&lt;!--\u2028 \ud800 $title ${x}'
    " \x1b[2J \u202e"
)
RECIPE = """name: demo
seed: 7
stages: [sft, rl]
rl:
  algorithm: {name: grpo}
  rounds: 3  # the reference moves before each
"""
ROLLOUT = json.loads(
    '{"stage": "rl", "round": 1, "step": 1, "prompt_id": "p", "domain": "arithmetic", "prompt": "1+1=", '
    '"response": "2", "sample": 0, "reward": 1.0, "status": "graded", "score": 1.0, "reason": "equal", '
    '"extracted": "2", "finish_reason": "stop", "length": 1, "kept": true}'
)
"""One line of rollouts.jsonl."""
INFO = json.loads(
    '{"name": "demo", "seed": 7, "versions": {"python": "3.11.9", "torch": "2.13.0+cpu"}, "device": "cpu", '
    '"num_parameters": 812544, "isolation": {"level": 3, "layers": ["namespaces", "seccomp", "rlimits"], '
    '"missing": {"cgroup": "not writable"}}}'
)


def make_run(folder, rounds=3, steps_per_round=20, sft_steps=60, seed=7):
    """`folder`, holding the files of a finished run."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    rows = [_evaluation(rng, "base", "before training", 0, 0, 0.02)]
    rollouts = _rollouts(rng, "evaluation/before training", 0, 0, 0.02, 6)
    for step in range(1, sft_steps + 1):
        metrics = {"loss": 2.2 * 0.95**step + 0.4 + rng.gauss(0, 0.03), "grad_norm": 1.0, "learning_rate": 1e-3}
        time = {"update": rng.uniform(0.1, 0.14)}
        rows.append({"kind": "step", "stage": "sft", "round": 0, "step": step, "metrics": metrics, "time": time})
    rows.append(_evaluation(rng, "sft", "after sft", 0, 0, 0.4))
    rollouts += _rollouts(rng, "evaluation/after sft", 0, 0, 0.4, 6)
    total = rounds * steps_per_round
    for step in range(1, total + 1):
        round_, skill = 1 + (step - 1) // steps_per_round, 0.4 + 0.5 * step / total
        rows.append(_rl_step(rng, step, round_, (step - 1) % steps_per_round, skill))
        rollouts += _rollouts(rng, "rl", round_, step, skill, 2)
        if step % steps_per_round == 0:
            rows.append(_evaluation(rng, "rl", f"after round {round_}", round_, step, skill))
            rollouts += _rollouts(rng, f"evaluation/after round {round_}", round_, step, skill, 6)
    write(folder / "metrics.jsonl", rows)
    write(folder / "rollouts.jsonl", rollouts)
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    info = INFO | {"name": folder.name, "seed": seed}
    (folder / "run.json").write_text(json.dumps(info), encoding="utf-8")
    return folder


def read_rows(path):
    """The rows of a JSONL file, read the plain way."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def write(path, rows):
    """Write the rows of a JSONL file, as a run does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    path.write_bytes(lines.encode("utf-8", "surrogatepass"))


def _evaluation(rng, stage, label, round_, step, skill):
    k, domains = 8, {}
    for shift, domain in enumerate(DOMAINS):
        samples = []
        for i in range(60):
            chance = min(0.99, max(0.0, rng.gauss(skill - 0.03 * shift, 0.25)))
            right = tuple(rng.random() < chance for _ in range(k))
            answers = tuple("42" if r else rng.choice(["41", "43", None]) for r in right)
            lengths = tuple(rng.randint(20, 60) for _ in right)
            cut = tuple(n > 58 for n in lengths)
            samples.append(PromptSamples(f"{domain}/{i}", right, answers, lengths, cut, chance > 0.5))
        domains[domain] = summarize_domain(samples, k)
    place = {"kind": "evaluation", "stage": stage, "round": round_, "step": step, "label": label, "k": k}
    return {**place, "domains": domains, "time": {"evaluate/generate": 4.5, "evaluate/verify": 0.25}}


def _rl_step(rng, step, round_, in_round, skill):
    kept, right = 16, int(12 * max(0.0, skill - 0.5))
    metrics = {f"reward/mean/{d}": skill - 0.04 * i + rng.gauss(0, 0.05) for i, d in enumerate(DOMAINS)}
    metrics |= {
        "reward/sampled": skill + rng.gauss(0, 0.04),
        "kl/k3": 0.002 * in_round + abs(rng.gauss(0, 0.002)),
        "entropy": 0.5 - 0.3 * skill + rng.gauss(0, 0.01),
        "clip_fraction/low": abs(rng.gauss(0.004, 0.002)),
        "clip_fraction/high": abs(rng.gauss(0.008, 0.003)),
        "length/mean": 32 + 8 * skill + rng.gauss(0, 1),
        "truncated": 0.01,
        "groups/kept": kept,
        "groups/all_right": right,
        "groups/all_wrong": rng.randint(0, 3),
        "groups/equal": 0,
        "groups/infrastructure": int(step % 17 == 0),
        "reference/version": round_,
        "policy/version": step,
        "prompts/distinct": 16 * step,
    }
    time = {"generate": 0.9 + rng.random() * 0.2, "verify": 0.06, "select": 0.001, "update": 1.1, "publish": 0.002}
    time["total"] = sum(time.values()) + 0.05
    return {"kind": "step", "stage": "rl", "round": round_, "step": step, "metrics": metrics, "time": time}


def _rollouts(rng, stage, round_, step, skill, groups):
    rows = []
    for i in range(groups):
        a, b = rng.randint(10, 99), rng.randint(10, 99)
        if stage.startswith("evaluation"):
            a, b = 20 + i, 31 + 7 * i
        domain = DOMAINS[i % 2]
        for sample in range(4):
            said = a + b if rng.random() < skill else a + b + rng.choice([-10, -1, 1, 10])
            status = "graded" if rng.random() < 0.93 else rng.choice(["no_answer", "timeout", "sandbox_error"])
            score = float(status == "graded" and said == a + b)
            sum_of_digits = a % 10 + b % 10
            carry = f"{a % 10}+{b % 10}={sum_of_digits}, carry {int(sum_of_digits > 9)}"
            response = f"{a}+{b}: {carry}.\nAnswer: {said}"
            wrong = f"wrong_number: {said} is not {a + b}" if status == "graded" else status
            own = {"stage": stage, "round": round_, "step": step, "prompt_id": f"{domain}/{a}+{b}", "domain": domain}
            own |= {"prompt": f"{a}+{b}=", "sample": sample, "status": status, "score": score}
            own |= {"reward": None if status == "sandbox_error" else score, "reason": "equal" if score else wrong}
            own |= {"response": HOSTILE if (step, i, sample) == (1, 0, 0) and stage == "rl" else response}
            own |= {"extracted": str(said) if status == "graded" else None, "length": len(response)}
            rows.append(ROLLOUT | own | {"kept": i % 3 != 0})
    return rows
