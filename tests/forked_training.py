"""What training programs import sooner or later, some of it when they grade, save a model or end."""

import importlib
import pkgutil
from contextlib import suppress

import accelerate.utils.other  # noqa: F401
import torch.utils.serialization.config  # noqa: F401
import transformers.modeling_utils
import transformers.models.auto.tokenization_auto
import transformers.models.qwen2.modeling_qwen2
import transformers.tokenization_utils_sentencepiece  # noqa: F401
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

import verizero.pipeline.algorithms
import verizero.pipeline.checks.page
import verizero.pipeline.data.generators.arithmetic
import verizero.pipeline.models.streamed
import verizero.pipeline.rl.explain
import verizero.pipeline.stages
import verizero.pipeline.whole_run
import verizero.verifiers.math
from verizero.pipeline.models.load import quiet

for parts in (verizero.pipeline.algorithms, verizero.pipeline.stages):
    for module in pkgutil.iter_modules(parts.__path__, f"{parts.__name__}."):
        importlib.import_module(module.name)
quiet()
get_checkpoint_conversion_mapping("qwen2")  # fills a table of all models, once for all forks
with suppress(ImportError):  # transformers imports DeepSpeed at the first save where it is installed
    # Any engine's start imports this, and thereby torch's compiler: two seconds of each rank.
    import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401
