"""Columns of rows as mappings name them: one with what is taken of it, or several that become one object."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_serializer, model_validator

from verizero.pipeline.config.sections import Section


class Column(Section):
    """Instructions for reading a value from a row: a column, then the steps below, in this order.

    Or several columns that become one object, as a reference with tests and a function's name is.
    """

    column: str = Field("", description="name of the column; a.b.0 steps into objects and lists")
    columns: dict[str, Column] = Field(
        default_factory=dict,
        description="several columns as one object, by key, or a list of their names; absent ones are left out",
    )
    then: tuple[str, ...] = Field((), description="columns whose texts are added directly behind the column's own text")
    parse: Literal["json"] | None = Field(None, description="json: the text is JSON, which a key steps into")
    key: str | None = Field(None, description="path such as a.b.0 within the parsed value")
    after: str | None = Field(None, min_length=1, description="keep only the text after the last occurrence of this")
    before: str | None = Field(None, min_length=1, description="keep only the text before the first occurrence of this")
    boxed: bool = Field(False, description=r"keep only the content of the last \boxed{...}")
    replace: tuple[tuple[str, str], ...] = Field(
        (), description="pairs [regular expression, replacement], applied in order"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_names(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"column": value}
        if isinstance(value, list):
            value = {"columns": value}
        if isinstance(value, Mapping) and isinstance(value.get("columns"), list):
            return {**value, "columns": {str(name): name for name in value["columns"]}}
        return value

    @model_serializer
    def _brief(self) -> Any:
        fields = {name: value for name in type(self).model_fields if (value := getattr(self, name))}
        return fields["column"] if list(fields) == ["column"] else fields

    @field_validator("replace")
    @classmethod
    def _compiles(cls, value: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        for pattern, _ in value:
            try:
                re.compile(pattern)
            except re.error as exc:
                raise ValueError(f"{pattern!r} is no regular expression: {exc}") from exc
        return value

    @model_validator(mode="after")
    def _one_or_several(self) -> Column:
        if bool(self.column) == bool(self.columns):
            raise ValueError("give either column, the name of one, or columns, the names of several")
        if self.columns and (steps := [name for name in self.model_fields_set - {"columns"} if getattr(self, name)]):
            raise ValueError(
                f"{', '.join(sorted(steps))}: a step of one column; give it as columns: {{key: {{column: …}}}}"
            )
        if any(each.columns for each in self.columns.values()):
            raise ValueError("columns within columns cannot be; give each of them as one column")
        return self
