"""Strict checks of what clients send, with the answers that the real API server gives."""

from __future__ import annotations

import re
from typing import Any

import jsonschema_rs

from rehearsal.kube import schemas
from rehearsal.kube.kinds import Kind
from rehearsal.kube.status import ApiError, invalid

Object = dict[str, Any]

_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_VALUE = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
# Kinds whose names may hold other characters, such as `system:node`.
_FREE_NAMES = ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")
_LABEL_NAMES = ("Namespace", "Service")


class Validator:
    """Holds one compiled schema per kind; compiles on first use."""

    def __init__(self) -> None:
        self._crds: dict[Kind, Object] = {}
        self._compiled: dict[Kind, jsonschema_rs.Draft202012Validator | None] = {}

    def add_crd(self, kind: Kind, schema: Object) -> None:
        self._crds[kind] = schema
        self._compiled.pop(kind, None)

    def has_schema(self, kind: Kind) -> bool:
        return kind.builtin or kind in self._crds

    def defaulted(self, kind: Kind, obj: Object) -> Object:
        return schemas.defaulted(self._crds[kind], obj) if kind in self._crds else obj

    def check(self, kind: Kind, obj: Object, field_validation: str = "Strict") -> list[str]:
        """Raise a 400 (unknown fields) or a 422 (wrong values); return warnings.

        `field_validation` is the API's parameter: Strict refuses unknown fields, Warn returns them as
        warnings, Ignore passes over them.
        """
        if kind not in self._compiled:
            self._compiled[kind] = self._compile(kind)
        compiled = self._compiled[kind]
        errors = list(compiled.iter_errors(obj)) if compiled else []
        errors += [_Nested(error) for error in schemas.metadata_validator().iter_errors(obj["metadata"])]
        unknown: list[str] = []
        causes: list[dict[str, str]] = []
        for error in errors:
            path = _field(error.instance_path)
            if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.AdditionalProperties):
                unknown += [
                    f'unknown field "{path}.{name}"'.replace('".', '"') for name in _unexpected(error)
                ]
            else:
                causes.append(_cause(path, error))
        unknown = sorted(set(unknown))
        if unknown and field_validation == "Strict":
            raise ApiError(400, "strict decoding error: " + ", ".join(unknown))
        causes += _name_causes(kind, obj["metadata"])
        if causes:
            raise invalid(kind.kind, kind.group, obj["metadata"].get("name", ""), causes)
        warnings = unknown if field_validation == "Warn" else []
        if not self.has_schema(kind):
            warnings.append(f"{kind.api_version} {kind.kind} is not validated: no CRD file is at hand")
        return warnings

    def _compile(self, kind: Kind) -> jsonschema_rs.Draft202012Validator | None:
        if kind in self._crds:
            return schemas.crd_validator(self._crds[kind])
        return schemas.core_validator(kind) if kind.builtin else None


class _Nested:
    """An error below metadata, with its path seen from the object's root."""

    def __init__(self, error: Any):
        self.kind = error.kind
        self.message = error.message
        self.instance_path = ["metadata", *error.instance_path]
        self.instance = error.instance


def _unexpected(error: Any) -> list[str]:
    return list(error.kind.unexpected)


def _field(path: list[str | int]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _cause(path: str, error: Any) -> dict[str, str]:
    kinds = jsonschema_rs.ValidationErrorKind
    if isinstance(error.kind, kinds.Required):
        field = f"{path}.{error.kind.property}".removeprefix(".")
        return {"reason": "FieldValueRequired", "message": "Required value", "field": field}
    reason = "FieldValueInvalid"
    if isinstance(error.kind, kinds.Type):
        reason = "FieldValueTypeInvalid"
    elif isinstance(error.kind, kinds.Enum):
        reason = "FieldValueNotSupported"
    return {"reason": reason, "message": f"Invalid value: {error.message}", "field": path or "<root>"}


def _name_causes(kind: Kind, metadata: Object) -> list[dict[str, str]]:
    causes = []

    def refuse(field: str, value: Any, rule: str) -> None:
        causes.append(
            {"reason": "FieldValueInvalid", "message": f"Invalid value: {value!r}: {rule}", "field": field}
        )

    name = metadata.get("name", "")
    if kind.kind in _LABEL_NAMES:
        if not _LABEL.match(name) or len(name) > 63:
            refuse("metadata.name", name, "must be a DNS label: lower case, digits and '-', 63 characters")
    elif kind.kind not in _FREE_NAMES and (not _SUBDOMAIN.match(name) or len(name) > 253):
        refuse("metadata.name", name, "must be a DNS subdomain: lower case, digits, '-' and '.'")
    for key, value in (metadata.get("labels") or {}).items():
        if not _VALUE.match(str(value)) or len(str(value)) > 63:
            refuse(
                "metadata.labels", value, f"label {key} takes at most 63 of letters, digits, '-', '_', '.'"
            )
    return causes
