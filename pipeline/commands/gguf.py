"""`verizero gguf`: write a model as a GGUF file, for llama.cpp and what is built on it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, get_args

from verizero.pipeline.shown import show

TYPES = ("f32", "f16", "bf16", "q8_0")


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("gguf", help="write a run's model, or another one, as a GGUF file for llama.cpp")
    command.add_argument("model", help="a run's folder, or a model's folder")
    command.add_argument("file", type=Path, help="the file to write, e.g. my-model.gguf; one that is there is replaced")
    command.add_argument("--type", choices=TYPES, default="bf16", help="of the matrices; default: bf16")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the file, and say what is in it. Raises: ConfigError for a model that has no such file."""
    from verizero.pipeline.errors import ConfigError
    from verizero.pipeline.models.gguf_file import SUFFIX
    from verizero.pipeline.models.load import quiet
    from verizero.pipeline.models.to_gguf import NumberType, write_gguf
    from verizero.pipeline.run.serving import folder_of_model, recipe_of

    assert get_args(NumberType) == TYPES
    if arguments.file.suffix != SUFFIX:
        raise ConfigError(f"{arguments.file}: the name of a GGUF file ends in {SUFFIX}")
    quiet()
    recipe = recipe_of(arguments.model)
    name = Path(arguments.model).resolve().name
    written = write_gguf(folder_of_model(arguments.model), arguments.file, arguments.type, name)
    total = sum(written.types.values())
    shares = ", ".join(f"{count / total:.1%} {kind}" for kind, count in written.types.items())
    show(f"{arguments.file}: {written.architecture}, {total:,} weights ({shares}), {written.num_bytes / 1e6:,.1f} MB")
    if recipe is not None and recipe.data.template.name != "chat":
        show(
            f"The run's prompts were made by data.template: {recipe.data.template.name}. llama.cpp's chat makes "
            "others: send it the same text by its plain completions."
        )
    return 0
