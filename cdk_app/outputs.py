"""What the deployed stacks say about themselves, read back from CloudFormation."""

from dataclasses import fields

import boto3
from botocore.exceptions import ClientError

from cdk_app import names
from stacks.environment import Environment
from stacks.outputs import Outputs, output_key
from training.errors import SubstrateError

__all__ = ["Outputs", "read"]

DEPLOY = "cdk deploy --all --require-approval never --concurrency 4"


def read(session: boto3.Session, environment: Environment) -> Outputs:
    """Outputs of every stack of `environment` in the session's account.

    Raises SubstrateError naming the stack that is missing or not complete, or the output that it lacks.
    """
    account = session.client("sts", region_name=environment.region).get_caller_identity()["Account"]
    named = names.of(environment, account)
    client = session.client("cloudformation", region_name=environment.region)
    per_stack: dict[str, dict[str, str]] = {}
    values = {"region": environment.region, "account": account, "namespace": environment.namespace}
    for field in fields(Outputs):
        part = field.metadata.get("stack")
        if part is None or part not in environment.parts:
            continue
        if part not in per_stack:
            per_stack[part] = _stack_outputs(client, named.stack(part))
        key = output_key(field.name)
        if key in per_stack[part]:
            values[field.name] = per_stack[part][key]
        elif field.default != "":
            raise SubstrateError(
                f"stack {named.stack(part)} has no output {key}", "deploy it again with this version"
            )
    return Outputs(**values)


def _stack_outputs(client, stack: str) -> dict[str, str]:
    try:
        found = client.describe_stacks(StackName=stack)["Stacks"][0]
    except ClientError as error:
        if error.response["Error"]["Code"] != "ValidationError":
            raise
        raise SubstrateError(f"stack {stack} is not deployed", f"run `{DEPLOY}` first") from None
    if not found["StackStatus"].endswith("_COMPLETE") or found["StackStatus"].startswith("DELETE"):
        raise SubstrateError(
            f"stack {stack} is {found['StackStatus']}", f"see its events: `cdk diagnose {stack}`"
        )
    return {output["OutputKey"]: output["OutputValue"] for output in found.get("Outputs", [])}
