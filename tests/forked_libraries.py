"""Libraries, without the project, for programs of tests that replace functions of torch or have Triton interpreted.

The make-believe device of `tests.fake_device` replaces functions of torch before anything of the project is imported.
"""

from contextlib import suppress

import accelerate.utils.other  # noqa: F401
import torch.utils.serialization.config  # noqa: F401
import transformers.modeling_utils
import transformers.models.auto.tokenization_auto
import transformers.models.qwen2.modeling_qwen2
import transformers.models.qwen3.modeling_qwen3
import transformers.models.qwen3_moe.modeling_qwen3_moe
import transformers.tokenization_utils_sentencepiece  # noqa: F401
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

get_checkpoint_conversion_mapping("qwen2")  # fills a table of all models, once for all forks
with suppress(ImportError):  # transformers imports DeepSpeed at the first save where it is installed
    # Any engine's start imports this, and thereby torch's compiler: two seconds of each rank.
    import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401
