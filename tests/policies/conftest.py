"""Templates of all that can be switched on, and the IAM statements in them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from cdk_app import settings
from tests.synth.conftest import Synthesized, everything_on, synthesize


class Statement(NamedTuple):
    """One IAM statement of a template, at stack/logical id; `on_resource` says that no role has it."""

    where: str
    on_resource: bool
    body: dict[str, Any]

    @property
    def actions(self) -> list[str]:
        return as_list(self.body["Action"])

    @property
    def resources(self) -> list[Any]:
        return as_list(self.body.get("Resource", []))


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def statements(synthesized: Synthesized) -> Iterator[Statement]:
    """Statements of every policy document; trust policies are not among them."""
    for part, template in synthesized.templates.items():
        for logical_id, resource in template["Resources"].items():
            properties = resource.get("Properties", {})
            kind = resource["Type"]
            documents = [properties.get("PolicyDocument") or properties.get("KeyPolicy")]
            documents += [inline["PolicyDocument"] for inline in properties.get("Policies", [])]
            for document in filter(None, documents):
                for body in document["Statement"]:
                    yield Statement(f"{part}/{logical_id}", not kind.startswith("AWS::IAM::"), body)


@pytest.fixture(scope="session")
def everything() -> Synthesized:
    return synthesize(everything_on())


@pytest.fixture(scope="session")
def production() -> Synthesized:
    """With what the everything environment leaves out: private access, endpoints, flow logs."""
    return synthesize(settings.load("production"))


@pytest.fixture(scope="session")
def both(everything: Synthesized, production: Synthesized) -> tuple[Synthesized, Synthesized]:
    """Between them every resource type and every role that the stacks can make."""
    return everything, production
