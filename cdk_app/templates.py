"""What `cdk synth` would write for an environment, made in this process and not validated."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from cdk_app import names
from stacks.environment import Environment

_CONTEXT = Path(__file__).resolve().parent.parent / "cdk.json"


class Assembly(NamedTuple):
    """By the short name of each stack: its template, and the stacks that it waits for."""

    templates: dict[str, dict[str, Any]]
    after: dict[str, set[str]]


def of(environment: Environment, account: str = names.NO_ACCOUNT) -> Assembly:
    """Read from the files of the assembly: to ask the CDK for each stack costs more."""
    # Node 20 still runs the CDK; its notice would cover what our caller prints.
    os.environ.setdefault("JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION", "20")
    from aws_cdk import App

    from cdk_app import app as cdk_application

    context = json.loads(_CONTEXT.read_text())["context"]
    named = names.of(environment, account)
    part_of = {named.stack(part): part for part in environment.parts}
    with tempfile.TemporaryDirectory() as folder:
        app = App(
            context=context,
            outdir=folder,
            stack_traces=False,
            tree_metadata=False,
            builtin_cloud_formation_validation=False,
        )
        cdk_application.build(app, environment, account)
        app.synth()
        out = Path(folder)
        artifacts = json.loads((out / "manifest.json").read_text())["artifacts"]
        return Assembly(
            templates={
                part: json.loads((out / artifacts[stack]["properties"]["templateFile"]).read_text())
                for stack, part in part_of.items()
            },
            after={
                part: {part_of[name] for name in artifacts[stack].get("dependencies", ()) if name in part_of}
                for stack, part in part_of.items()
            },
        )
