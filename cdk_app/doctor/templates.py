"""What `cdk synth` would write, made in this process."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from cdk_app.doctor.finding import Unknown
from stacks.environment import Environment

_CONTEXT = Path(__file__).parents[2] / "cdk.json"


def synthesize(environment: Environment, account: str) -> dict[str, dict[str, Any]] | Unknown:
    """Stack name -> CloudFormation template. Unknown when there is no node to run the CDK with."""
    # The doctor has its own line about node; the CDK's box would cover it.
    os.environ.setdefault("JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION", "20")
    from aws_cdk import App

    from cdk_app import app as cdk_application

    with tempfile.TemporaryDirectory() as folder:
        try:
            context = json.loads(_CONTEXT.read_text())["context"]
            app = App(context=context, outdir=folder, builtin_cloud_formation_validation=False)
            cdk_application.build(app, environment, account)
            return {stack.stack_name: stack.template for stack in app.synth().stacks}
        except (RuntimeError, OSError) as error:
            return Unknown(f"the templates could not be made: {error}"[:300], "see `cdk synth`")
