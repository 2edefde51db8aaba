"""The arguments of the tool, and the strict schema that both APIs take."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from stepbox.tool import CODE_DESCRIPTION, LANGUAGE_DESCRIPTION, Language


def _strict(schema: dict[str, Any]) -> None:
    # Strict mode wants every property required, and no defaults: null stands for "left out".
    for property_schema in schema["properties"].values():
        property_schema.pop("default", None)
    schema["required"] = list(schema["properties"])


class RunCode(BaseModel):
    """What the model gives. An argument that is not here is refused, and nothing runs."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=_strict)

    code: str = Field(description=CODE_DESCRIPTION)
    language: Language | None = Field(default=None, description=f"{LANGUAGE_DESCRIPTION} null is python.")


def strict_schema() -> dict[str, Any]:
    """The JSON schema of `RunCode` as strict function calling wants it."""
    schema = RunCode.model_json_schema()
    schema.pop("description", None)  # of the class, for people; the tool has its own
    return schema
