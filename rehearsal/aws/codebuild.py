"""CodeBuild builds: all that can be checked without docker is checked, and each says that nothing ran."""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Callable
from typing import Any

import yaml
from ministack.services import codebuild, s3
from ministack.services.cloudformation import provisioners

from rehearsal.aws import cloudformation
from rehearsal.aws.models import ApiError
from rehearsal.aws.service import Service

NOT_EXECUTED = (
    "Emulated build: the source, the buildspec and the environment were checked. "
    "No command of the buildspec was executed and no image was built or pushed."
)
"""Said in every build's phase context and in its log."""

_PHASES = ("install", "pre_build", "build", "post_build")


class CodeBuild(Service):
    """StartBuild with checks; the other operations are ministack's."""

    model = signing = "codebuild"

    def start_build(self, params: dict[str, Any]) -> dict[str, Any]:
        name = params["projectName"]
        project = codebuild._projects.get(name)
        if project is None:
            raise ApiError("ResourceNotFoundException", f"Project cannot be found: {name}")
        problems = _problems(project, params)
        number = codebuild._build_id(name)
        build = codebuild._make_build_record(project, number, params.get("sourceVersion"))
        _finish(build, problems)
        group = project.get("logsConfig", {}).get("cloudWatchLogs", {}).get("groupName")
        if group:
            build["logs"]["groupName"] = group
        codebuild._builds[number] = build
        emit = codebuild._log_sink(build)
        for line in problems or [NOT_EXECUTED]:
            emit(f"[Container] {line}")
        return {"build": build}


def register() -> None:
    """Let projects keep their log group, which ministack drops."""
    cloudformation.wrap("AWS::CodeBuild::Project", "create", _with_logs(1))
    cloudformation.wrap("AWS::CodeBuild::Project", "update", _with_logs(2))


def _with_logs(position: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrapper(handler: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> tuple[str, dict[str, Any]]:
            name, attributes = handler(*args)
            logs = provisioners._pascal_to_camel(args[position].get("LogsConfig", {}))
            codebuild._projects[name]["logsConfig"] = logs
            return name, attributes

        return run

    return wrapper


def _problems(project: dict[str, Any], params: dict[str, Any]) -> list[str]:
    """Everything that would stop the build before its first command."""
    try:
        document = yaml.safe_load(_buildspec(project, params))
    except yaml.YAMLError as error:
        return [f"YAML_FILE_ERROR: the buildspec is not YAML: {error}"]
    except ApiError as error:
        return [f"DOWNLOAD_SOURCE: {error.message}"]
    problems = []
    phases = document.get("phases") if isinstance(document, dict) else None
    if not isinstance(phases, dict) or not phases:
        problems.append("YAML_FILE_ERROR: the buildspec has no phases")
    else:
        unknown = sorted(set(phases) - set(_PHASES))
        if unknown:
            problems.append(f"YAML_FILE_ERROR: unknown phases {unknown}; CodeBuild knows {list(_PHASES)}")
        for phase in set(phases) & set(_PHASES):
            commands = (phases[phase] or {}).get("commands")
            if not commands or not all(isinstance(command, str) for command in commands):
                problems.append(f"YAML_FILE_ERROR: phase {phase} needs a list of commands, each a string")
    return problems + _missing_environment(project, params)


def _buildspec(project: dict[str, Any], params: dict[str, Any]) -> str:
    source = project.get("source", {})
    inline = params.get("buildspecOverride") or source.get("buildspec", "")
    if "\n" in inline:
        if source.get("type") == "S3":
            _archive(params.get("sourceLocationOverride") or source.get("location", ""))
        return inline
    if source.get("type") != "S3":
        raise ApiError("InvalidInputException", f"source type {source.get('type')} carries no buildspec")
    location = params.get("sourceLocationOverride") or source.get("location", "")
    archive = _archive(location)
    member = inline or "buildspec.yml"
    if member not in archive.namelist():
        raise ApiError(
            "InvalidInputException", f"{location} holds no {member}, only {sorted(archive.namelist())[:10]}"
        )
    return archive.read(member).decode()


def _archive(location: str) -> zipfile.ZipFile:
    bucket, _, key = location.removeprefix("arn:aws:s3:::").partition("/")
    if bucket not in s3._buckets:
        raise ApiError("InvalidInputException", f"the source bucket {bucket} does not exist")
    body = s3._get_object_data(bucket, key)
    if body is None:
        raise ApiError("InvalidInputException", f"the source s3://{bucket}/{key} does not exist")
    try:
        return zipfile.ZipFile(io.BytesIO(body))
    except zipfile.BadZipFile:
        raise ApiError("InvalidInputException", f"the source s3://{bucket}/{key} is not a zip file") from None


def _missing_environment(project: dict[str, Any], params: dict[str, Any]) -> list[str]:
    variables = {
        v["name"]: v.get("value") for v in project.get("environment", {}).get("environmentVariables") or []
    }
    variables |= {v["name"]: v.get("value") for v in params.get("environmentVariablesOverride", [])}
    return [
        f"CLIENT_ERROR: environment variable {name} is empty"
        for name, value in variables.items()
        if not value
    ]


def _finish(build: dict[str, Any], problems: list[str]) -> None:
    failed = "DOWNLOAD_SOURCE" if problems else None
    reached = True
    phases = []
    for phase in build["phases"]:
        if not reached and phase["phaseType"] != "COMPLETED":
            continue
        if phase["phaseType"] == failed:
            context = [{"statusCode": "CLIENT_ERROR", "message": problem} for problem in problems]
            phase = {**phase, "phaseStatus": "FAILED", "contexts": context}
            reached = False
        elif phase["phaseType"] in ("INSTALL", "PRE_BUILD", "BUILD", "POST_BUILD"):
            phase = {**phase, "contexts": [{"statusCode": "", "message": NOT_EXECUTED}]}
        phases.append(phase)
    build.update(phases=phases, endTime=time.time(), buildStatus="FAILED" if problems else "SUCCEEDED")
