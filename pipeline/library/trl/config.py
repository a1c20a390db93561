"""`GRPOConfig` with the arguments and the defaults of TRL's, of which those that cannot be kept are refused by name."""

from __future__ import annotations

from typing import Any

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.library.trl.arguments import ARGUMENTS, TRL
from verizero.pipeline.near import did_you_mean


class GRPOConfig:
    """The arguments of training, as attributes. docs/trl.md says what becomes of each.

    Raises: ConfigError for an argument that TRL does not have, or whose value means nothing that is done here.
    """

    def __init__(self, output_dir: str | None = None, **arguments: Any) -> None:
        for name in arguments:
            require_known(name)
        defaults = {name: argument.default for name, argument in ARGUMENTS.items()}
        self.__dict__.update({**defaults, **arguments, "output_dir": output_dir})
        self.check()

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError with the near names: the attributes that there are do not come here."""
        raise AttributeError(f"GRPOConfig has no {name!r}; {did_you_mean(name, ARGUMENTS, 'docs/trl.md lists all')}")

    def check(self) -> None:
        """Raise ConfigError for the first argument that is refused; attributes may have been set since."""
        for name, value in vars(self).items():
            require_known(name)
            argument = ARGUMENTS[name]
            if argument.kind != "translated" and value != argument.default:
                what = "has no meaning here, as" if argument.kind == "meaningless" else "is not possible:"
                remedy = "; leave it out" if argument.kind == "meaningless" else ""
                raise ConfigError(f"{name}={value!r} {what} {argument.text}{remedy} (docs/trl.md)")

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments by name."""
        return dict(vars(self))

    def __repr__(self) -> str:
        own = [f"{n}={v!r}" for n, v in vars(self).items() if n not in ARGUMENTS or v != ARGUMENTS[n].default]
        return f"GRPOConfig({', '.join(own)})"


def require_known(name: str) -> None:
    """Raise ConfigError unless TRL's class has an argument of that name."""
    if name not in ARGUMENTS:
        hint = did_you_mean(name, list(ARGUMENTS), "docs/trl.md lists all")
        raise ConfigError(f"GRPOConfig of TRL {TRL} has no argument {name!r}; {hint}")
