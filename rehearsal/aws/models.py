"""Requests, template properties and answers, checked against botocore's own service models."""

from __future__ import annotations

import base64
import datetime
import functools
import json
import re
from typing import Any
from urllib.parse import parse_qs, unquote

import botocore.session
from botocore.model import OperationModel, ServiceModel, Shape
from botocore.validate import ParamValidator


class ApiError(Exception):
    """An error answer as an AWS service would give it."""

    def __init__(self, code: str, message: str, status: int = 400):
        self.code, self.message, self.status = code, message, status
        super().__init__(f"{code}: {message}")


@functools.cache
def service_model(service: str) -> ServiceModel:
    """The model of one service, by botocore's name (`amp`, not `aps`). Parsed once per process."""
    return botocore.session.Session().get_service_model(service)


def operation(service: str, name: str) -> OperationModel:
    """The model of one operation; an unknown name is answered like AWS does."""
    model = service_model(service)
    if name not in model.operation_names:
        raise ApiError("UnknownOperationException", f"{service} has no operation {name}", 404)
    return model.operation_model(name)


def check(service: str, name: str, params: dict[str, Any]) -> None:
    """Raise ApiError unless `params` has the members, types, ranges, enums and patterns of the operation."""
    shape = operation(service, name).input_shape
    if shape is None:
        return
    report = ParamValidator().validate(params, shape)
    if report.has_errors():
        raise ApiError("ValidationException", report.generate_report().replace("\n", "; "))
    _check_values(shape, params, "")


def _check_values(shape: Shape, value: Any, path: str) -> None:
    # botocore leaves enums, patterns and list sizes to the service, so they are checked here.
    kind = shape.type_name
    if kind == "structure" and isinstance(value, dict):
        for key, member in value.items():
            _check_values(shape.members[key], member, f"{path}.{key}")
    elif kind == "list":
        for index, member in enumerate(value):
            _check_values(shape.member, member, f"{path}[{index}]")
    elif kind == "map":
        for key, member in value.items():
            _check_values(shape.value, member, f"{path}.{key}")
    elif kind == "string" and isinstance(value, str):
        _check_string(shape, value, path)
    _check_upper_bound(shape, value, path)


def _check_string(shape: Shape, value: str, path: str) -> None:
    if shape.enum and value not in shape.enum:
        raise ApiError(
            "ValidationException",
            f"Value '{value}' at '{path.lstrip('.')}' failed to satisfy constraint: "
            f"Member must satisfy enum value set: [{', '.join(shape.enum)}]",
        )
    pattern = shape.metadata.get("pattern")
    if pattern and not _matches(pattern, value):
        raise ApiError(
            "ValidationException",
            f"Value '{value}' at '{path.lstrip('.')}' failed to satisfy constraint: "
            f"Member must satisfy regular expression pattern: {pattern}",
        )


def _check_upper_bound(shape: Shape, value: Any, path: str) -> None:
    limit = shape.metadata.get("max")
    if limit is None:
        return
    size = value if isinstance(value, int | float) else len(value)
    if size > limit:
        raise ApiError(
            "ValidationException", f"Value at '{path.lstrip('.')}' is {size}, above the limit {limit}"
        )


def _matches(pattern: str, value: str) -> bool:
    try:
        return re.fullmatch(pattern, value) is not None
    except re.error:  # a few models use Java syntax that Python cannot read
        return True


def from_template(
    service: str, name: str, properties: dict[str, Any], rename: dict[str, str] | None = None
) -> dict[str, Any]:
    """CloudFormation properties as input of the operation.

    Names are matched without regard to the case of the first letter, numbers and booleans are converted
    as CloudFormation does, and a property without a counterpart is refused. `rename` maps top-level
    property names to members.
    """
    shape = operation(service, name).input_shape
    renamed = {(rename or {}).get(key, key): value for key, value in properties.items()}
    return _convert(shape, renamed, "")


def _convert(shape: Shape, value: Any, path: str) -> Any:
    kind = shape.type_name
    if kind == "structure":
        members = {key.lower(): key for key in shape.members}
        converted = {}
        for key, item in value.items():
            member = members.get(key.lower())
            if member is None:
                raise ApiError(
                    "InvalidRequest",
                    f"#{path}: extraneous key [{key}] is not permitted (Properties validation failed)",
                )
            converted[member] = _convert(shape.members[member], item, f"{path}/{key}")
        return converted
    if kind == "list":
        return [_convert(shape.member, item, f"{path}/{index}") for index, item in enumerate(value)]
    if kind == "map":
        pairs = value if isinstance(value, dict) else {tag["Key"]: tag["Value"] for tag in value}
        return {str(key): _convert(shape.value, item, f"{path}/{key}") for key, item in pairs.items()}
    return _scalar(kind, value, path)


def _scalar(kind: str, value: Any, path: str) -> Any:
    try:
        if kind in ("integer", "long"):
            return int(value)
        if kind in ("float", "double"):
            return float(value)
        if kind == "boolean":
            return value if isinstance(value, bool) else {"true": True, "false": False}[str(value).lower()]
    except (ValueError, KeyError, TypeError):
        raise ApiError("InvalidRequest", f"#{path}: {value!r} is not of type {kind}") from None
    if kind == "string" and not isinstance(value, str):
        return json.dumps(value) if isinstance(value, dict | list) else str(value)
    return value.encode() if kind == "blob" and isinstance(value, str) else value


def parse_request(
    service: str, method: str, path: str, query: str, headers: dict[str, str], body: bytes
) -> tuple[str, dict[str, Any]]:
    """(operation, params) of an HTTP request in the JSON or REST-JSON protocol."""
    target = headers.get("x-amz-target")
    if target:
        name = target.rpartition(".")[2]
        params = json.loads(body or b"{}")
    else:
        name, found = _route(service_model(service), method, path)
        params = _rest_params(operation(service, name).input_shape, found, query, headers, body)
    shape = operation(service, name).input_shape
    return name, _decode(shape, params) if shape is not None else {}


def _route(model: ServiceModel, method: str, path: str) -> tuple[str, dict[str, str]]:
    best: tuple[str, dict[str, str]] | None = None
    fewest = 99
    for name in model.operation_names:
        http = model.operation_model(name).http
        if http["method"] != method:
            continue
        template = http["requestUri"].split("?")[0]
        pattern = re.sub(r"\\\{(\w+)(\\\+)?\\\}", r"(?P<\1>[^/]+)", re.escape(template))
        match = re.fullmatch(pattern + "/?", path)
        if match and len(match.groupdict()) < fewest:  # literal segments win over parameters
            best, fewest = (name, match.groupdict()), len(match.groupdict())
    if best is None:
        raise ApiError(
            "UnknownOperationException", f"No operation of {model.service_name} at {method} {path}", 404
        )
    return best


def _rest_params(
    shape: Shape | None, in_path: dict[str, str], query: str, headers: dict[str, str], body: bytes
) -> dict[str, Any]:
    if shape is None:
        return {}
    queried = parse_qs(query, keep_blank_values=True)
    document = json.loads(body) if body else {}
    params: dict[str, Any] = {}
    for key, member in shape.members.items():
        wire = member.serialization.get("name", key)
        location = member.serialization.get("location")
        if location == "uri":
            params[key] = unquote(in_path[wire])
        elif location == "querystring" and wire in queried:
            params[key] = (
                queried[wire]
                if member.type_name == "list"
                else _scalar(member.type_name, queried[wire][0], key)
            )
        elif location == "header" and wire.lower() in headers:
            params[key] = headers[wire.lower()]
        elif location is None and wire in document:
            params[key] = document[wire]
    return params


def _decode(shape: Shape, value: Any) -> Any:
    kind = shape.type_name
    if kind == "structure" and isinstance(value, dict):
        return {k: _decode(shape.members[k], v) if k in shape.members else v for k, v in value.items()}
    if kind == "list" and isinstance(value, list):
        return [_decode(shape.member, item) for item in value]
    return base64.b64decode(value) if kind == "blob" and isinstance(value, str) else value


def render(service: str, name: str, answer: dict[str, Any]) -> bytes:
    """The answer as JSON in the operation's output shape, without members that the model does not know."""
    shape = operation(service, name).output_shape
    return json.dumps(_encode(shape, answer) if shape is not None else {}).encode()


def _encode(shape: Shape, value: Any) -> Any:
    kind = shape.type_name
    if kind == "structure":
        return {
            member.serialization.get("name", key): _encode(member, value[key])
            for key, member in shape.members.items()
            if value.get(key) is not None
        }
    if kind == "list":
        return [_encode(shape.member, item) for item in value]
    if kind == "map":
        return {key: _encode(shape.value, item) for key, item in value.items()}
    if kind == "blob":
        return base64.b64encode(value).decode()
    if kind == "timestamp":
        if isinstance(value, datetime.datetime):
            value = value.timestamp()
        if shape.serialization.get("timestampFormat") == "iso8601":
            return datetime.datetime.fromtimestamp(value, datetime.UTC).isoformat()
    return value
