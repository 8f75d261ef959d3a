"""IAM enforcement: who called, and the resources that ministack does not find in a request."""

from __future__ import annotations

import json
from typing import Any

from ministack.core import iam_actions, iam_evaluator

from rehearsal.aws.models import ApiError


def register() -> None:
    """Let a build be judged by its project, as CodeBuild does."""
    found = iam_actions.extract_resource_arn

    def extract(service: str, *request: Any) -> str:
        arn, (_, _, _, body, _, region, account) = found(service, *request), request
        if service == "codebuild" and arn == "*" and (project := _project_of_builds(body)):
            return f"arn:aws:codebuild:{region}:{account}:project/{project}"
        return arn

    iam_actions.extract_resource_arn = extract


def check_caller(access_key: str) -> None:
    """Raises ApiError for credentials that nobody gave out."""
    if failure := iam_evaluator.check_credentials(access_key):
        raise ApiError(failure.code, failure.message, 403)


def _project_of_builds(body: bytes) -> str | None:
    """The project whose builds a request names, when it is one: a build's id is `project:number`."""
    try:
        projects = {number.rpartition(":")[0] for number in json.loads(body)["ids"]}
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return projects.pop() if len(projects) == 1 else None
