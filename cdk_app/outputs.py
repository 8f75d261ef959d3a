"""What the deployed stacks say about themselves, read back from CloudFormation."""

from dataclasses import fields

import boto3
from botocore.exceptions import ClientError

from cdk_app import caller, names
from stacks.environment import Environment
from stacks.outputs import Outputs, cloudformation_name
from training.errors import SubstrateError

__all__ = ["Outputs", "read"]

DEPLOY = "cdk deploy --all --require-approval never --concurrency 4"
_USABLE = {
    "CREATE_COMPLETE",
    "UPDATE_COMPLETE",
    "UPDATE_ROLLBACK_COMPLETE",
    "IMPORT_COMPLETE",
    "IMPORT_ROLLBACK_COMPLETE",
}
"""States in which a stack has all its resources. ROLLBACK_COMPLETE is none: the first deploy was undone."""


def read(session: boto3.Session, environment: Environment) -> Outputs:
    """Outputs of every stack of `environment` in the session's account.

    Raises SubstrateError naming the stack that is missing or not complete, or the output that it lacks, and
    where the credentials are of another account than the settings.
    """
    account = caller.account(session, environment)
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
        key = cloudformation_name(field.name)
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
    status = found["StackStatus"]
    if status not in _USABLE:
        raise SubstrateError(f"stack {stack} is {status}", _remedy(stack, status))
    return {output["OutputKey"]: output["OutputValue"] for output in found.get("Outputs", [])}


def _remedy(stack: str, status: str) -> str:
    cause = f"`cdk diagnose {stack} --unstable=diagnose` names the cause"
    if status == "ROLLBACK_COMPLETE":
        return f"its first deploy failed and nothing of it is there: {cause}; correct it and run `{DEPLOY}`"
    if status == "REVIEW_IN_PROGRESS":
        return f"it has a change set and no resources yet: run `{DEPLOY}`"
    if status.endswith("_IN_PROGRESS"):
        return "wait until it has ended, and ask again"
    if status == "UPDATE_ROLLBACK_FAILED":
        return f"{cause}; then `cdk rollback {stack}`, and deploy again"
    return cause
