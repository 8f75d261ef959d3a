"""What `cdk synth` would write, or why that cannot be made here."""

from typing import Any

from cdk_app import names, templates
from cdk_app.doctor.finding import Unknown
from stacks.environment import Environment


def synthesize(environment: Environment, account: str) -> dict[str, dict[str, Any]] | Unknown:
    """Stack name -> CloudFormation template. Unknown when there is no node to run the CDK with."""
    try:
        made = templates.of(environment, account).templates
    except (RuntimeError, OSError) as error:
        return Unknown(f"the templates could not be made: {error}"[:300], "see `cdk synth`")
    named = names.of(environment, account)
    return {named.stack(part): template for part, template in made.items()}
