"""All templates of the environments, made once per test run."""

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# Node 20 still runs the CDK; its notice would hide a failing test's output.
os.environ.setdefault("JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION", "20")

from cdk_app import names, settings, templates
from stacks.environment import Environment
from stacks.names import Names

ROOT = Path(__file__).parents[2]
ENDPOINT = """
[serving.endpoint]
image = "763104351884.dkr.ecr.us-west-2.amazonaws.com/vllm:0.11.2-sagemaker-v1.2"
base_uri = "s3://models/qwen3-vl-8b"
instance_type = "ml.g6e.4xlarge"
gpus = 1
memory_gib = 64
max_copies = 2
"""


@dataclass(frozen=True)
class Synthesized:
    """`templates` by the short name of the stack; `after` says which stacks each one waits for."""

    environment: Environment
    names: Names
    templates: dict[str, dict[str, Any]]
    after: dict[str, set[str]]

    def resources(self, resource_type: str) -> list[tuple[str, str, dict[str, Any]]]:
        """(stack, logical id, resource) of every resource of the type."""
        return [
            (part, logical_id, resource)
            for part, template in self.templates.items()
            for logical_id, resource in template["Resources"].items()
            if resource["Type"] == resource_type
        ]

    def one(self, resource_type: str) -> dict[str, Any]:
        found = self.resources(resource_type)
        assert len(found) == 1, [logical_id for _, logical_id, _ in found]
        return found[0][2]


def synthesize(environment: Environment) -> Synthesized:
    # The validator takes ten seconds; test_command_line runs it once, with findings fatal.
    named = names.of(environment, names.NO_ACCOUNT)
    return Synthesized(environment, named, *templates.of(environment))


def evaluate(value: Any, **parameters: str) -> Any:
    """A value of the template for parameters; what another stack exports is its name."""
    match value:
        case {"Ref": name}:
            return parameters.get(name, name)
        case {"Fn::Join": [separator, parts]}:
            return separator.join(evaluate(part, **parameters) for part in parts)
        case {"Fn::ImportValue": _}:
            return "artifacts"
        case {"Fn::Equals": [one, other]}:
            return evaluate(one, **parameters) == evaluate(other, **parameters)
        case {"Fn::Not": [one]}:
            return not evaluate(one, **parameters)
    return value


def everything_on() -> Environment:
    """The paper environment with every optional part on."""
    return settings.load(
        "paper",
        {
            "name": "everything",
            "namespace": "hyperpod-ns-research",
            "studio.enabled": True,
            "governance.enabled": True,
            "governance.teams": [{"name": "research", "head_nodes": 1, "gpu_nodes": 3}],
            "guardrails.budget_covers": "environment",
            "guardrails.termination_protection": True,
            "observability.alert_email": "oncall@example.com",
            **{f"serving.{key}": value for key, value in tomllib.loads(ENDPOINT)["serving"].items()},
            "serving.gateway": {"public_name": "visgym"},
            "domain.name": "ray.example.com",
            "domain.hosted_zone_id": "Z0123456789ABCDEFGHIJ",
            "domain.certificate_arn": "arn:aws:acm:us-west-2:123456789012:certificate/"
            "01234567-89ab-cdef-0123-456789abcdef",
        },
    )


@pytest.fixture(scope="session")
def paper() -> Synthesized:
    return synthesize(settings.load("paper"))


@pytest.fixture(scope="session")
def dev() -> Synthesized:
    return synthesize(settings.load("dev"))


@pytest.fixture(scope="session")
def everything() -> Synthesized:
    return synthesize(everything_on())


@pytest.fixture(scope="session")
def keeping() -> Synthesized:
    """The paper environment with its data kept on destroy."""
    return synthesize(settings.load("paper", {"storage.keep_data": True, "name": "keeping"}))
