"""The `sandbox` section of a recipe: where programs run, their isolation and their limits."""

from __future__ import annotations

from pydantic import Field, field_validator

from verizero.pipeline.config.sections import Section
from verizero.sandbox.results import MOST


class SandboxConfig(Section):
    """The sandbox for programs in responses. The limits apply to each test, if its verifier sets none."""

    min_level: int = Field(
        2,
        ge=0,
        le=3,
        description="least isolation level, else the run does not start; 2: Landlock and seccomp; 3: namespaces too",
    )
    workers: int | None = Field(None, ge=1, description="most programs at a time on this machine; null: two per core")
    packages: tuple[str, ...] = Field(
        (), description="installed distributions that Python programs may import, with what they require"
    )
    url: str | tuple[str, ...] | None = Field(
        None, description="address of one or several `verizero sandbox serve`; null: run on this machine"
    )
    token_env: str | None = Field(None, description="environment variable that holds the services' token")
    wall_s: float | None = Field(
        None,
        gt=0,
        le=MOST["wall_s"],
        description="seconds of wall-clock time; null here and below: the sandbox's default",
    )
    cpu_s: float | None = Field(None, gt=0, le=MOST["cpu_s"], description="CPU seconds, over all threads")
    memory_mib: int | None = Field(None, ge=1, le=MOST["memory_mib"])
    output_kib: int | None = Field(None, ge=1, le=MOST["output_kib"])
    disk_mib: int | None = Field(None, ge=1, le=MOST["disk_mib"], description="size of the files in the scratch folder")
    processes: int | None = Field(None, ge=1, le=MOST["processes"], description="most threads and processes at a time")
    max_tests: int | None = Field(
        None, ge=1, le=MOST["max_tests"], description="most tests of a reference; one with more is refused"
    )

    @field_validator("url")
    @classmethod
    def _is_address(cls, value: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        urls = (value,) if isinstance(value, str) else value
        if urls is not None and not urls:
            raise ValueError("names no service; give one address or several, or null")
        for url in urls or ():
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"{url!r} is no http(s) address, such as http://127.0.0.1:8080")
        return value

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of the services; empty if programs run on this machine."""
        return (self.url,) if isinstance(self.url, str) else self.url or ()

    @property
    def limits(self) -> dict[str, float | int]:
        """The limits that are not null."""
        names = ("wall_s", "cpu_s", "memory_mib", "output_kib", "disk_mib", "processes", "max_tests")
        return {name: value for name in names if (value := getattr(self, name)) is not None}
