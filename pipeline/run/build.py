"""From a recipe's words to the objects they name: tokenizer, policy, backend, engine, algorithm."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pipeline.config.data import VerifierChoice
from pipeline.config.preference import loop_parts
from pipeline.config.run import RECORDING_ENGINES, RunConfig, parts_of
from pipeline.config.stages import RlConfig
from pipeline.errors import ConfigError
from pipeline.loop.parity import corrected
from pipeline.loop.sampled_groups import bind_grader
from pipeline.models.load import create_model, eos_ids, load_model, load_tokenizer
from pipeline.models.routing import num_experts, unreplayable
from pipeline.report.progress import Progress
from pipeline.rl.parts import Parts
from pipeline.rollout.engine import Engine
from pipeline.rollout.torch_engine import TorchEngine
from pipeline.rollout.vllm_records import Records
from pipeline.run.data import RunData
from pipeline.scoring.purity import may_leave
from pipeline.scoring.score import COMPONENT, Bound, Scorer, bind_components, bind_verifiers
from pipeline.scoring.second import SecondOpinions
from pipeline.seeds import derive
from pipeline.stages.apart import Apart
from pipeline.stages.programs import open_sandbox
from pipeline.train.backend import Backend
from pipeline.train.ranks import ALONE, Ranks, sharing_sequences
from pipeline.train.torch_backend import TorchBackend
from pipeline.train.watch import SPARE_S, START_S
from verifiers.base import load

if TYPE_CHECKING:
    from pipeline.run.session import Session

PACKAGES = ("torch", "transformers", "prefect", "sympy", "math-verify", "numpy")


def device_of(config: RunConfig) -> str:
    """The device that the recipe asks for; "auto" is a GPU where there is one.

    Raises: ConfigError for a GPU that is not there.
    """
    asked = config.train.device
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if asked.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"train.device={asked!r}, but torch sees no GPU here; set train.device: auto or cpu")
    return asked


def build_tokenizer(config: RunConfig) -> Any:
    """The tokenizer of the policy that the recipe starts from."""
    if config.model.create is not None:
        from pipeline.data.tokenizer import character_tokenizer

        return character_tokenizer(config.model.create.characters)
    assert config.model.path is not None
    return load_tokenizer(config.model.path, config.model.revision)


def context_of(config: RunConfig) -> int | None:
    """The longest sequence of the recipe's policy, in tokens; None where its configuration names none."""
    import transformers

    if config.model.create is not None:
        given = config.model.create.config.get("max_position_embeddings")
        if given is None:
            settings: Any = transformers.AutoConfig.for_model(config.model.create.model_type)
            given = getattr(settings, "max_position_embeddings", None)
        return given
    settings = transformers.AutoConfig.from_pretrained(config.model.path, revision=config.model.revision)
    return getattr(settings, "max_position_embeddings", None)


def build_policy(config: RunConfig, tokenizer: Any, start: Path | None) -> Any:
    """The policy: from checkpoint `start`, else (and under adapters) as the recipe's model section says."""
    device = device_of(config)
    for teacher in config.teachers:
        check_teacher(teacher, tokenizer)
    if start is not None and config.train.lora is None:  # adapters are restored onto the base that they began on
        return load_model(str(start / "model"), config.model.dtype, device)
    if config.model.create is not None:
        create = config.model.create
        model = create_model(create.model_type, create.config, tokenizer, derive(config.seed, "init"))
        return model.to(device)
    assert config.model.path is not None
    return load_model(config.model.path, config.model.dtype, device, config.model.revision)


def put_weights(session: Session, start: Path | None) -> None:
    """The policy takes the weights of checkpoint `start`; None: of the model that the recipe starts from."""
    policy = build_policy(session.recipe, session.tokenizer, start)
    session.backend.model.load_state_dict(policy.state_dict())


def hold_teacher(session: Session, path: str) -> None:
    """The session's backend has the model at `path` as its reference. Raises: ConfigError for other tokens."""
    backend = session.backend
    assert isinstance(backend, TorchBackend)
    if backend.teacher is None:
        check_teacher(path, session.tokenizer)
        backend.hold_teacher(load_model(path, session.config.model.dtype, str(backend.device)))


def check_teacher(path: str, tokenizer: Any) -> None:
    """Raises: ConfigError where the teacher at `path` has another vocabulary than `tokenizer`."""
    theirs, ours = load_tokenizer(path).get_vocab(), tokenizer.get_vocab()
    if theirs != ours:
        odd = sorted(theirs.items() ^ ours.items())[0][0]
        raise ConfigError(
            f"rl.reference.teacher={path!r} has a vocabulary of {len(theirs)} tokens and the policy one of "
            f"{len(ours)}; they differ, first in {odd!r}. A teacher scores the policy's own tokens: use one of "
            "the same family, or distil through its answers (stage sample, endpoint)"
        )


def build_backend(config: RunConfig, model: Any, ranks: Ranks = ALONE) -> Backend:
    """The training backend around the policy, of which every rank has built the same.

    Raises: ConfigError for an algorithm that needs what the policy cannot give, of whichever stage.
    """
    for stage in config.stages_of("rl"):
        resolve_parts(config.of_stage(stage.name), model)
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    ranks = sharing_sequences(ranks, config.train.sequence_parallel)
    if ranks.pieces is not None:
        ranks.pieces.enable(model)
        ranks.pieces.prove(model)
    adapted, how = None, config.train.lora
    if how is not None:
        from pipeline.models.lora import Adapted

        shares = config.train.zero < 3  # shards are no weights
        adapted = Adapted(model, how.rank, how.alpha, how.targets, derive(config.seed, "lora"), shares)
    if config.train.backend == "deepspeed":
        from pipeline.train.deepspeed_backend import DeepSpeedBackend

        return DeepSpeedBackend(model, config.train, ranks, adapted)
    return TorchBackend(model, ranks, config.train, adapted)


def build_engine(
    config: RunConfig,
    model: Any,
    tokenizer: Any,
    backend: Any = None,
    folder: Path | None = None,
    held: Any = None,
) -> Engine:
    """The rollout engine that the recipe names; servers write their logs into `folder`.

    Weights come from the module `held`, where it is given; else from `backend.named_weights`, where it has one.
    Raises: ConfigError where the engine is not installed, or knows no such argument.
    """
    how, ends = config.rollout, eos_ids(model, tokenizer)
    if how.engine == "torch":
        return TorchEngine(model if held is None else held, ends, tokenizer.pad_token_id, how.max_rows)
    from pipeline.rollout.vllm_engine import Policy, VllmEngine

    named = getattr(backend, "named_weights", None)
    records = records_of(config, model)
    policy = Policy.of(model, ends, named, records) if held is None else Policy.of(held, ends, None, records)
    if how.engine == "vllm_server":
        from pipeline.rollout.vllm_server import VllmServerEngine

        ranks: Ranks = getattr(backend, "ranks", ALONE)
        peers = ranks.beside(max(START_S, config.launch.phase_timeout_s) + SPARE_S)
        return VllmServerEngine(policy, how.vllm, how.max_rows, folder or Path.cwd(), peers)
    return VllmEngine(policy, how.vllm, how.max_rows)


def records_of(config: RunConfig, model: Any) -> Records:
    """What an engine is to record for the stages of RL."""
    sections = [config.section_of(s) for s in config.stages_of("rl")]
    masks = [parts_of(s).masks for s in sections if isinstance(s, RlConfig)]
    is_cut = config.rollout.top_p < 1 or config.rollout.top_k > 0
    is_moe = num_experts(model.config) is not None
    return Records(is_cut and any(m.keep_sampling for m in masks), is_moe and any(m.keep_routing for m in masks))


def resolve_parts(config: RunConfig, model: Any = None) -> Parts | None:
    """The algorithm's parts with the recipe's numbers filled in; None for a recipe or stage without RL.

    Raises: ConfigError for an algorithm that needs what this recipe, or `model` where it is given, cannot give.
    """
    if config.stages_of("online_preference"):
        return loop_parts()
    if config.rl is None or not config.stages_of("rl"):
        return None
    from pipeline.algorithms.base import weighted

    parts = weighted(parts_of(config.rl), config.scoring.weights)
    if model is not None:
        check_routing(parts, model, config.rollout.engine, config.train.gradient_checkpointing)
    return corrected(parts, config.rollout).resolve(config.rollout.max_response_tokens)


def check_routing(parts: Parts, model: Any, engine: str, recomputes: bool = False) -> None:
    """Refuse to keep the routing of a mixture of experts where it cannot be recorded or replayed.

    On a dense model there is nothing to keep, and the option asks for nothing. `recomputes`: activations are computed
    again in the backward, when nothing is replayed any more.
    Raises: ConfigError with the remedy.
    """
    experts = num_experts(model.config)
    if not parts.masks.keep_routing or experts is None:
        return
    why = unreplayable(model) if engine in RECORDING_ENGINES else f"rollout.engine={engine!r} does not record it"
    if recomputes:
        why = "train.gradient_checkpointing computes activations again without it (set that to false, or this)"
    if why is not None:
        raise ConfigError(
            f"rl.algorithm.keep_routing is on, and the policy is a mixture of {experts} experts whose routing cannot "
            f"be kept: {why}; set rl.algorithm.keep_routing: false"
        )


def build_graders(
    config: RunConfig, data: RunData, base_dir: Path, progress: Progress
) -> tuple[Scorer, SecondOpinions | None, dict[str, Any] | None]:
    """What grades this run's responses, what does so again, and what stands around the programs among them.

    Raises: DataError, ConfigError, IsolationError.
    """
    bound = bind_verifiers(data.all_prompts, config.verifiers, base_dir)
    components = bind_components(config.scoring, base_dir)
    second, asked = None, config.scoring.second_opinion
    if asked is not None:
        known = sorted({p.domain for p in data.train})
        unknown = sorted(set(asked.domains or ()) - set(known))
        if unknown:
            said = f"scoring.second_opinion.domains names {unknown[0]!r}, which no training row has"
            raise ConfigError(f"{said}; there are {', '.join(known)}")
        choice = asked.verifier
        second = SecondOpinions(
            asked, load(choice.name, choice.path, base_dir).bind(choice.params, base_dir), config.seed
        )
    also: list[Bound] = [] if second is None else [second.bound]
    rl = [config.of_stage(s.name).rl for s in config.stages_of("rl")]
    judges = [r.reward for r in rl if r is not None and r.reward is not None]
    also += [load(j.name, j.path, base_dir).bind(j.params, base_dir) for j in judges]
    isolation = open_sandbox(config.sandbox, [*bound.values(), *components, *also], progress)
    choices = {key: config.data.verifiers.get(key) or VerifierChoice(name=key) for key in bound}
    choices |= {f"{COMPONENT}{i}": c.verifier for i, c in enumerate(config.scoring.components)}
    graders = bound | {f"{COMPONENT}{i}": b for i, b in enumerate(components)}
    moving = {key: c for key, c in choices.items() if c.path is None and may_leave(graders[key])}
    apart = Apart(config.sandbox, base_dir, moving) if moving and config.scoring.overlap is not False else None
    return Scorer(config.scoring, bound, components, apart), second, isolation


def build_judge(session: Session) -> Scorer | None:
    """What grades the present stage of RL, where it names a verifier; an earlier stage's reward model is in its folder.

    The judge of the stage before is closed. Raises: ConfigError.
    """
    if session.judge is not None:
        session.judge.close()
    rl = session.config.rl if session.config.stages[0].kind == "rl" else None
    if rl is None or rl.reward is None:
        return None
    return session.scorer.instead(bind_grader(session, rl.reward))


def write_run_info(session: Session) -> None:
    """`run.json`: what this run is made with, for the report."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    model = session.backend.model
    info = {
        "name": session.config.name,
        "seed": session.config.seed,
        "versions": versions,
        "device": str(model.device),
        "num_parameters": sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters()),
        "num_ranks": session.ranks.size,
        "engine_fast_path": getattr(session.engine, "is_fast", None),
        "engine_note": getattr(session.engine, "fallback_reason", None),
        "num_prompts": {"train": len(session.data.train), "evaluation": len(session.data.evaluation)},
        "data_notes": list(session.data.notes),
        "isolation": session.isolation,
    }
    (session.folder / "run.json").write_text(json.dumps(info, indent=1))
