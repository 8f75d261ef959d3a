"""Where the strict JSON schemas come from: Kubernetes' own, and those inside CustomResourceDefinitions."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema_rs
import yaml

from rehearsal.kube.kinds import Kind
from training.files import write_atomic

Schema = dict[str, Any]
CORE_VERSION = "v1.37.0"
_BASE = "https://kubernetes.invalid/api/"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


def load_crds(folder: Path, cache_dir: Path) -> list[Schema]:
    """Every CustomResourceDefinition in the YAML files of a folder.

    A large CRD takes seconds to read as YAML, so each file is kept as JSON, named by its content.
    """
    cache_dir.mkdir(parents=True, exist_ok=True)
    crds = []
    for path in sorted(folder.glob("*.yaml")):
        text = path.read_bytes()
        cached = cache_dir / f"{path.stem}.{hashlib.sha256(text).hexdigest()[:16]}.json"
        if not cached.exists():
            loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
            # Both loaders are safe ones.
            documents = [doc for doc in yaml.load_all(text, Loader=loader) if doc]
            write_atomic(cached, json.dumps(documents))
        documents = json.loads(cached.read_text())
        crds += [doc for doc in documents if doc.get("kind") == "CustomResourceDefinition"]
    return crds


def core_validator(kind: Kind) -> jsonschema_rs.Draft202012Validator | None:
    """The validator of a built-in kind, or None where kubernetes-validate has no schema of it."""
    group = kind.group.split(".")[0]
    name = f"{kind.kind}-{group}-{kind.version}" if group else f"{kind.kind}-{kind.version}"
    path = _core_folder() / f"{name.lower()}.json"
    if not path.is_file():
        return None
    return _compile(json.loads(path.read_text()))


@cache
def metadata_validator() -> jsonschema_rs.Draft202012Validator:
    """The validator of ObjectMeta, which a CRD's own schema leaves open."""
    return _compile({"$ref": f"{_BASE}_definitions.json#/$defs/{_META}"})


def crd_validator(schema: Schema) -> jsonschema_rs.Draft202012Validator:
    """The validator of one CRD version, in which a field that the schema doesn't know is an error."""
    strict = _strict(schema)
    strict.setdefault("properties", {}).update(
        apiVersion={"type": "string"}, kind={"type": "string"}, metadata={"type": "object"}
    )
    return jsonschema_rs.validator_for(strict)


def defaulted(schema: Schema, value: Any) -> Any:
    """The value with the schema's defaults filled in, as the API server does for custom resources."""
    if isinstance(value, dict):
        filled = dict(value)
        extra = schema.get("additionalProperties")
        for key, child in schema.get("properties", {}).items():
            if key not in filled and "default" in child:
                filled[key] = child["default"]
            if key in filled:
                filled[key] = defaulted(child, filled[key])
        if isinstance(extra, dict):
            known = schema.get("properties", {})
            filled = {k: v if k in known else defaulted(extra, v) for k, v in filled.items()}
        return filled
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [defaulted(schema["items"], item) for item in value]
    return value


def _strict(schema: Any) -> Any:
    """An OpenAPI v3 structural schema as JSON schema, with unknown fields forbidden."""
    if not isinstance(schema, dict):
        return schema
    dropped = ("default", "description", "nullable", "format", "example")
    out = {k: v for k, v in schema.items() if k not in dropped and not k.startswith("x-kubernetes-")}
    if schema.get("x-kubernetes-int-or-string"):
        out.pop("type", None)
        out["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    keep = schema.get("x-kubernetes-preserve-unknown-fields", False)
    if "properties" in schema:
        out["properties"] = {k: _strict(v) for k, v in schema["properties"].items()}
        if schema.get("x-kubernetes-embedded-resource"):
            for key in ("apiVersion", "kind", "metadata"):
                out["properties"].setdefault(key, {})
        if not keep and "additionalProperties" not in schema:
            out["additionalProperties"] = False
    if isinstance(schema.get("additionalProperties"), dict):
        out["additionalProperties"] = _strict(schema["additionalProperties"])
    if "items" in schema:
        out["items"] = _strict(schema["items"])
    if schema.get("nullable") and "type" in out:
        out["type"] = [out["type"], "null"]
    return out


def _core_folder() -> Path:
    root = Path(str(resources.files("kubernetes_validate")))
    return root / "kubernetes-json-schema" / f"{CORE_VERSION}-local-strict"


@cache
def _definitions() -> Schema:
    return json.loads((_core_folder() / "_definitions.json").read_text())


def _compile(schema: Schema) -> jsonschema_rs.Draft202012Validator:
    anchored = {key: value for key, value in schema.items() if key != "$id"}
    definitions = {key: value for key, value in _definitions().items() if key != "$id"}
    registry = jsonschema_rs.Registry([(f"{_BASE}_definitions.json", definitions)])
    return jsonschema_rs.Draft202012Validator(anchored, registry=registry, base_uri=f"{_BASE}schema.json")
