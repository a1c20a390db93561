"""The objects that a recipe names: tokenizer, backend, engine, source of rollouts and recorder."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from verizero.pipeline.config.rl import RlConfig, parts_of
from verizero.pipeline.config.rollout import servers_of
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.sample import SampleConfig
from verizero.pipeline.config.servers import load_servers
from verizero.pipeline.errors import ConfigError, boundary
from verizero.pipeline.models.flops import peak_flops
from verizero.pipeline.models.gguf_file import model_folder
from verizero.pipeline.models.load import DTYPES, eos_ids, load_tokenizer
from verizero.pipeline.models.routing import num_experts
from verizero.pipeline.models.sizes import num_parameters, settings_of, settings_of_new
from verizero.pipeline.report.measures import DevicePeaks, gpu_peaks
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.report.store import Store
from verizero.pipeline.report.trackers.base import Trackers
from verizero.pipeline.rollout.engine import Engine
from verizero.pipeline.rollout.engine_model import EngineModel, Records
from verizero.pipeline.rollout.generate import Generation
from verizero.pipeline.rollout.play import EpisodeSetup
from verizero.pipeline.rollout.server_client import ServerSetup
from verizero.pipeline.rollout.server_pool import ServerPool
from verizero.pipeline.rollout.torch_engine import TorchEngine
from verizero.pipeline.run.algorithm import resolve_parts
from verizero.pipeline.run.data import RunData
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.rollouts import AheadSource, RolloutSource
from verizero.pipeline.run.session import Run
from verizero.pipeline.seeds import derive
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.deadline import SPARE_S, START_S
from verizero.pipeline.train.device import existing_device
from verizero.pipeline.train.ranks import ALONE, Ranks


def device_of(config: RunConfig) -> str:
    """Return the device that the recipe asks for; "auto" is a GPU if there is one.

    Raise ConfigError for a GPU that is not there.
    """
    return existing_device(config.train.device, "train.device")


def first_model_path(config: RunConfig) -> str:
    """Return the folder or hub id of the recipe's model; a GGUF file's folder is made, the first time, under `output`.

    Raise ConfigError for a file that cannot be read.
    """
    assert config.model.path is not None
    return model_folder(config.model.path, Path(config.output), config.model.revision)


def settings_of_policy(config: RunConfig) -> Any:
    """Return the configuration of the recipe's model, whose weights are not read. Raises: ConfigError."""
    create = config.model.create
    if create is None:
        assert config.model.path is not None
        return settings_of(config.model.path, config.model.revision)
    with boundary(ConfigError, f"model.create (model_type {create.model_type!r})"):
        return settings_of_new(create.model_type, create.config, build_tokenizer(config))


def num_parameters_of(config: RunConfig) -> int:
    """Return the number of parameters of the recipe's model, whose weights are not read. Raises: ConfigError."""
    return num_parameters(settings_of_policy(config))


def build_tokenizer(config: RunConfig) -> Any:
    """Return the tokenizer of the policy that the recipe starts from."""
    if config.model.create is not None:
        from verizero.pipeline.data.tokenizer import character_tokenizer

        return character_tokenizer(config.model.create.characters)
    return load_tokenizer(first_model_path(config), config.model.revision)


def context_of(config: RunConfig) -> int | None:
    """Return the longest sequence of the recipe's policy in tokens; None if its configuration names none."""
    import transformers

    if config.model.create is not None:
        context = config.model.create.config.get("max_position_embeddings")
        if context is None:
            settings: Any = transformers.AutoConfig.for_model(config.model.create.model_type)
            context = getattr(settings, "max_position_embeddings", None)
        return context
    settings = transformers.AutoConfig.from_pretrained(first_model_path(config), revision=config.model.revision)
    return getattr(settings, "max_position_embeddings", None)


def build_backend(config: RunConfig, model: Any, ranks: Ranks = ALONE) -> Backend:
    """Return the training backend around the policy, which every rank has built alike.

    Raise ConfigError if the algorithm of any stage needs what the policy cannot provide.
    """
    for stage in config.stage_names:
        # For all stages now: an error should not wait for hours of earlier stages.
        resolve_parts(config.of_stage(stage), model)
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    adapted, how = None, config.train.lora
    if how is not None:
        from verizero.pipeline.models.lora import Adapted

        quantize_on = None if config.model.quantize is None else device_of(config)
        seed = derive(config.seed, "lora")
        adapted = Adapted(model, how.rank, how.alpha, how.targets, seed, quantize_on)
    # The embedded engine reads a module's weights; vLLM has its own, and takes them piece by piece.
    engine_reads_module = config.rollout.engine == "torch"
    return Backend(model, config.train, ranks, adapted, engine_reads_module, torch.device(device_of(config)))


def build_engine(
    config: RunConfig,
    model: Any,
    tokenizer: Any,
    backend: Backend | None = None,
    folder: Path | None = None,
    engine_copy: Any = None,
    longest: int | None = None,
) -> Engine:
    """Return the rollout engine that the recipe names. Servers write their logs into `folder`.

    `longest`: most tokens of a prompt and its response; None: the model's context. The engine takes weights from the
    module `engine_copy` if it is given, else from `backend`, else from `model`.
    Raise ConfigError if the engine is not installed, or does not know an argument of the recipe.
    """
    how, ends = config.rollout, eos_ids(model, tokenizer)
    if how.engine == "torch":
        return TorchEngine(model if engine_copy is None else engine_copy, ends, tokenizer.pad_token_id, how.max_rows)
    records = records_of(config, model)
    weights = backend.named_weights if backend is not None and engine_copy is None else None
    dtype = None if backend is None else backend.dtype
    takes_adapters = how.takes_adapters and engine_copy is None
    adapters = backend.engine_adapters() if backend is not None and takes_adapters else None
    copied = model if engine_copy is None else engine_copy
    policy = EngineModel.of(copied, ends, weights, records, dtype, longest, adapters)
    if (params := servers_of(config.launch, how)) is not None:
        ranks = ALONE if backend is None else backend.ranks
        # A group of its own: threads of the engine must not mix their messages with the trainer's.
        peers = ranks.in_own_group(max(START_S, config.launch.phase_timeout_s) + SPARE_S)
        nodes = tuple(config.launch.generating)
        setup = ServerSetup(policy, how.max_rows, folder or Path.cwd(), how.servers_field, nodes)
        return ServerPool(load_servers(how.engine)[1](params, setup), setup, peers)
    from verizero.pipeline.rollout.vllm_engine import VllmEngine

    return VllmEngine(policy, how.vllm, how.max_rows)


def longest_text(config: RunConfig, data: RunData, model_config: Any) -> int | None:
    """Return the most tokens of a prompt of the data and its response; None: the model's context is the limit."""
    asks_with_hints = any(section.hint is not None for section in config.sections_of(SampleConfig).values())
    if data.longest_prompt is None or asks_with_hints:
        return None
    longest = data.longest_prompt + config.rollout.max_response_tokens
    return min(longest, getattr(model_config, "max_position_embeddings", None) or longest)


def records_of(config: RunConfig, model: Any) -> Records:
    """Return what the engine must record for the stages of RL."""
    masks = [parts_of(section).params for section in config.sections_of(RlConfig).values()]
    is_cut = config.rollout.top_p < 1 or config.rollout.top_k > 0
    is_moe = num_experts(model.config) is not None
    return Records(is_cut and any(m.keep_sampling for m in masks), is_moe and any(m.keep_routing for m in masks))


def build_source(
    config: RunConfig, backend: Backend, data: RunData, folder: Path, episodes: EpisodeSetup | None = None
) -> RolloutSource:
    """Return the source of rollouts around the engine that the recipe names. `episodes` plays prompts in turns.

    Raise ConfigError if the engine is not installed, or does not know an argument of the recipe.
    """
    how, tokenizer = config.rollout, data.renderer.tokenizer
    model = backend.engine_module() if how.engine == "torch" else backend.model
    longest = longest_text(config, data, backend.model.config) if episodes is None else None
    if how.max_staleness == 0:
        engine = build_engine(config, model, tokenizer, backend, folder, longest=longest)
        return RolloutSource(Generation(engine, data.renderer, config.seed, episodes), backend.ranks)
    # Responses that were started two updates ago must not see newer weights: the engine then reads from a copy.
    engine_copy = copy.deepcopy(backend.whole_model()).requires_grad_(False) if how.max_staleness > 1 else None
    engine = build_engine(config, model, tokenizer, backend, folder, engine_copy, longest)
    generation = Generation(engine, data.renderer, config.seed, episodes)
    return AheadSource(generation, backend.ranks, engine_copy, backend.model.device)


def build_recorder(run: Run, store: Store, backend: Backend, progress: Progress) -> Recorder:
    """Return the recorder of a run, which writes into `store`."""
    config = run.recipe
    trackers = config.report.trackers if run.ranks.is_first else ()
    tracked = Trackers(trackers, run.rank_folder, config.name, config.model_dump(mode="json"))
    return Recorder(store, tracked, progress, *gpu_of(config, backend))


def gpu_of(config: RunConfig, backend: Backend) -> tuple[DevicePeaks | None, float | None]:
    """Return the meter of this rank's GPU, and the operations a second of all ranks' GPUs; None for the CPU.

    The second is None also for a GPU whose data sheet is not known here.
    """
    model = backend.model
    if model.device.type != "cuda":
        return None, None
    # The recipe's type: that of divided weights is their masters'.
    size = DTYPES[config.model.dtype].itemsize
    peak = peak_flops(torch.cuda.get_device_name(model.device), size)

    def sleeping_bytes() -> int:
        return 0  # of an engine that does not sleep

    if config.rollout.engine == "vllm" and config.rollout.servers is None:
        from verizero.pipeline.rollout.vllm_engine import sleeping_bytes
    return gpu_peaks(sleeping_bytes), None if peak is None else peak * backend.ranks.size
