"""Objects that were passed as rows and reward functions, as files for a recipe; first rows, and functions as text."""

from __future__ import annotations

import glob
import inspect
import io
import itertools
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

import cloudpickle

from verizero.pipeline.config.data import FILE_TYPES, HubSource
from verizero.pipeline.data.source_files import PlacedRow, plain, read_file, read_hub, table_row
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.host.disk import json_text, write_atomic
from verizero.pipeline.near import near_path
from verizero.pipeline.registry import PICKLED, cached
from verizero.verifiers._reward_functions import RewardFunction
from verizero.verifiers.base import Verifier

LRU_CACHE = type(lru_cache(len))
Reward = str | Callable[..., Any] | Verifier[Any]
Rewards = Reward | Sequence[Reward] | Mapping[str, Reward]


def verifier_of(
    reward: Rewards, folder: Path, weights: Sequence[float] | Mapping[str, float] | None, success: float | None
) -> dict[str, Any]:
    """Return the `verifier` of a recipe for what a user gave as reward; functions are kept in `folder`, the recipe's.

    reward: the name of a verifier, "file.py:function", a function, or a list or dict of those. `weights` are those of
    a list or a dict.
    Raises: ConfigError.
    """
    if isinstance(reward, str) or not isinstance(reward, Sequence | Mapping):
        if weights is not None:
            raise ConfigError(
                f"weights={weights!r} belong to several rewards; give reward a list or a dict, or drop them"
            )
        named = _kept(reward, folder)
        if ":" not in named:
            if success is not None:
                raise ConfigError(f"success={success:g} is of reward functions, and {named!r} is a verifier; drop it")
            return {"name": named}
        return {"path": named, **({"params": {"success": success}} if success is not None else {})}
    functions = _by_name(reward, folder)
    if not functions:
        raise ConfigError("reward is empty; give a function, or a list or dict of them")
    params: dict[str, Any] = {"functions": functions}
    if weights is not None:
        params["weights"] = _weights(weights, list(functions))
    if success is not None:
        params["success"] = success
    return {"name": "rewards", "params": params}


def _by_name(rewards: Sequence[Reward] | Mapping[str, Reward], folder: Path) -> dict[str, str]:
    if isinstance(rewards, Mapping):
        return {str(name): _kept(reward, folder, str(name)) for name, reward in rewards.items()}
    functions: dict[str, str] = {}
    for reward in rewards:
        name = reward.rpartition(":")[2] if isinstance(reward, str) else _name_of(reward)
        while name in functions:
            name += "_again"
        functions[name] = _kept(reward, folder, name)
    return functions


def _weights(weights: Sequence[float] | Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    if isinstance(weights, Mapping):
        return {str(name): float(weight) for name, weight in weights.items()}
    if len(weights) != len(names):
        raise ConfigError(
            f"weights has {len(weights)} numbers for {len(names)} rewards; give one for each of {', '.join(names)}"
        )
    return dict(zip(names, map(float, weights), strict=True))


def _kept(reward: Reward, folder: Path, name: str = "") -> str:
    """Return the name or path of a reward for a recipe in `folder`; a path of the user's becomes absolute."""
    if isinstance(reward, str):
        file, colon, attribute = reward.rpartition(":")
        if reward.endswith(".py"):
            raise ConfigError(f"reward={reward!r} names no function; write {reward + ':my_function'!r}")
        return f"{Path(file).expanduser().absolute()}:{attribute}" if colon else reward
    if not callable(reward) and not isinstance(reward, Verifier):
        raise ConfigError(f"reward: {reward!r:.80} is {type(reward).__name__}; give a function, or a verifier's name")
    if not isinstance(reward, Verifier):
        RewardFunction.of(reward, name)  # refuses one that cannot be called by names
    stem = name or _name_of(reward)
    path = folder / f"{stem}{PICKLED}"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        pickled = io.BytesIO()
        _Pickler(pickled).dump(reward)
    except Exception as exc:
        raise ConfigError(
            f"reward function {stem!r} holds something that cannot go to the process that grades ({exc}); "
            "put it into a file, and give reward='file.py:function'"
        ) from exc
    write_atomic(path, pickled.getvalue())
    write_atomic(path.with_suffix(".py"), source_of(reward).encode())
    return f"{path.name}:{stem}"


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Keeps the places of code, which messages name, and takes caches of `__main__` by value, as its functions."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            make, values = self.dispatch_table[CodeType](obj)
            return make, tuple(_place(obj.co_filename) if v == "<dynamic-code>" else v for v in values)
        if isinstance(obj, LRU_CACHE) and obj.__module__ == "__main__":
            return cached, (obj.__wrapped__, obj.cache_parameters())
        return super().reducer_override(obj)


def _place(file: str) -> str:
    """Return the file, or the name of the notebook's cell that is compiled under it, such as "Cell In[3]"."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    named = shell.compile.format_code_name(file) if shell is not None else None
    return " ".join(named) if named else file


def _name_of(reward: Any) -> str:
    name = reward.name if isinstance(reward, Verifier) else getattr(reward, "__name__", type(reward).__name__)
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name).strip("_") or "reward"


def source_of(function: Any) -> str:
    """Return the source of a function with the values that it closes over, by which a later start knows it again."""
    while not hasattr(function, "__code__") and hasattr(function, "func"):
        function = function.func
    if isinstance(function, Verifier):
        function = function.single or function.batch
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    try:
        text = textwrap.dedent(inspect.getsource(function if code is not None else type(function)))
    except (OSError, TypeError):  # typed into an interpreter that keeps no source
        text = f"# no source; constants {getattr(code, 'co_consts', ())!r}, names {getattr(code, 'co_names', ())!r}\n"
    closed = inspect.getclosurevars(function).nonlocals if code is not None else {}
    return text + "".join(f"# {name} = {_shown(value)}\n" for name, value in sorted(closed.items()))


def _shown(value: Any) -> str:
    text = repr(value)
    return type(value).__name__ if " at 0x" in text else text  # an address differs from process to process


Data = Any
"""A path, a pattern of several, a hub id, or rows in memory: a list of dicts, a dict of lists, a data set, a frame."""
LOOKED_AT = 50


def place_of(data: Data, folder: Path, name: str, split: str = "train", argument: str = "data") -> dict[str, Any]:
    """Return the place of rows as a recipe names it, {file: ...} or {hub: ...}; rows in memory become a file there.

    `argument`: whose value `data` is, for messages.

    Raises: ConfigError for what holds no rows; DataError for a row that JSON cannot hold.
    """
    if isinstance(data, str | Path):
        return _named(str(data), split, argument)
    lines = [_line(row, number) for number, row in enumerate(_rows(data, split), 1)]
    if not lines:
        raise DataError("data is empty; give at least one row")
    path = folder / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, ("\n".join(lines) + "\n").encode())
    return {"file": path.name}


def first_rows(place: Mapping[str, Any], folder: Path, most: int = LOOKED_AT) -> list[dict[str, Any]]:
    """Return the good ones of the first rows of a place. Raises: DataError, also that of a row if most are bad."""
    rows: Iterable[PlacedRow]
    if "file" in place:
        rows = read_file(folder / place["file"], str(place["file"]))
    else:
        rows = read_hub(HubSource.model_validate(place["hub"]), folder)
    read = [row for _, _, row in itertools.islice(rows, most)]
    good = [row for row in read if not isinstance(row, DataError)]
    if len(good) < len(read) / 2:
        raise next(row for row in read if isinstance(row, DataError))
    return good


def _named(name: str, split: str, argument: str) -> dict[str, Any]:
    path = Path(name).expanduser()
    if path.is_file() or (glob.has_magic(name) and glob.glob(str(path), recursive=True)):
        return {"file": str(path.absolute())}
    if path.is_dir():
        return {"hub": {"id": str(path.absolute()), "split": split}}
    ident, _, config = name.partition(":")
    # A hub id has no ending of letters: one is that of a file, whose name may be mistyped.
    if glob.has_magic(name) or name.startswith((".", "/", "~")) or (path.suffix[1:].isalpha() and not config):
        otherwise = f"give its path, or {name + ':default'!r} for a data set of the hub"
        raise ConfigError(f"{argument}={name!r}: there is no such file; {near_path(name, otherwise)}")
    return {"hub": {"id": ident, "split": split, **({"config": config} if config else {})}}


def _rows(data: Any, split: str) -> Iterable[Any]:
    """Return the rows of what holds some in memory. Raises: ConfigError."""
    if isinstance(data, Mapping) and split in data:  # a DatasetDict
        data = data[split]
    names = getattr(data, "column_names", getattr(data, "columns", None))
    names = () if names is None or isinstance(data, Mapping) else names
    if twice := [name for name, count in Counter(map(str, names)).items() if count > 1]:
        raise ConfigError(f"data has the column {twice[0]!r} twice; give each its own name")
    if isinstance(data, Mapping) and data and all(_is_column(column) for column in data.values()):
        lengths = {name: len(column) for name, column in data.items()}
        if len(set(lengths.values())) > 1:
            raise ConfigError(f"the columns of data have different lengths: {lengths}; give each row all columns")
        return [dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True)]
    for method in ("to_pylist", "to_dicts"):  # a table of Arrow, a frame of polars
        if hasattr(data, method):
            return map(table_row, getattr(data, method)())
    if hasattr(data, "to_dict") and hasattr(data, "columns"):  # a frame of pandas
        return map(table_row, data.to_dict("records"))
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        splits = f" with {', '.join(map(str, data))}" if isinstance(data, Mapping) else ""
        raise ConfigError(
            f"data is {type(data).__name__}{splits}; give a file ({', '.join(FILE_TYPES)}), a hub id, a list of dicts, "
            "a dict of lists, a Dataset, a DataFrame or a table of Arrow"
        )
    return map(table_row, data) if hasattr(data, "features") else data  # of Dataset, of a list


def _is_column(value: Any) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, str | Mapping) and not hasattr(value, "features")


def _line(row: Any, number: int) -> str:
    """Return a row as JSON. Raises: DataError naming its column."""
    if not isinstance(row, Mapping):
        raise DataError(f"row {number} of data is {type(row).__name__}; each row is a dict of columns")
    cells = []
    for name, cell in row.items():
        try:
            text = f"{json_text(str(name))}: {json_text(plain(cell))}"
            text.encode()  # which alone shows half of a surrogate pair
        except (TypeError, ValueError, RecursionError) as exc:
            raise DataError(
                f"row {number} of data: column {name!r} cannot be written as JSON ({exc}); correct the cell, or leave "
                "the column out"
            ) from exc
        cells.append(text)
    return "{" + ", ".join(cells) + "}"
