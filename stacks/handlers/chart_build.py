"""Custom::Chart: installs a Helm chart by running the chart build project, and waits for the result.

Properties: Project, and Variables (JSON: environment variables of the build). A delete runs the same build
with ACTION=uninstall.
"""

import json
import time
from typing import Any

import boto3
from botocore.exceptions import ClientError

from .reply import Done, answer

_POLL_S = 5
# The function itself may run for 15 minutes.
_PATIENCE_S = 840


def handler(event: dict[str, Any], context: Any) -> None:
    answer(event, context, _work)


def _work(event: dict[str, Any], context: Any) -> Done:
    properties = event["ResourceProperties"]
    variables: dict[str, str] = json.loads(properties["Variables"])
    project, release = properties["Project"], variables["RELEASE"]
    deleting = event["RequestType"] == "Delete"
    variables["ACTION"] = "uninstall" if deleting else "install"
    client = boto3.client("codebuild")
    try:
        build = client.start_build(
            projectName=project,
            environmentVariablesOverride=[
                {"name": name, "value": value, "type": "PLAINTEXT"} for name, value in variables.items()
            ],
        )["build"]
    except ClientError as error:
        if deleting and error.response["Error"]["Code"] == "ResourceNotFoundException":
            return Done(event["PhysicalResourceId"])
        raise
    try:
        _wait(client, build["id"], f"{variables['ACTION']} of chart {release}")
    except RuntimeError:
        # What kept the chart from being installed may well keep it from being removed, and must not keep
        # the stack from rolling back.
        if not (deleting and event["PhysicalResourceId"].startswith("failed-")):
            raise
    name = event["PhysicalResourceId"] if deleting else f"{project}/{release}"
    return Done(name, {"BuildId": build["id"]})


def _wait(client: Any, build_id: str, what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        build = client.batch_get_builds(ids=[build_id])["builds"][0]
        if build["buildStatus"] == "SUCCEEDED":
            return
        if build["buildStatus"] != "IN_PROGRESS":
            raise RuntimeError(f"{what} ended {build['buildStatus']}; read the log of build {build_id}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} still runs after {_PATIENCE_S} s; read the log of build {build_id}")
        time.sleep(_POLL_S)
