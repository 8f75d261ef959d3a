"""Adapters on a SageMaker endpoint, each an inference component on top of the base's."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from serving.rollout.stack_slots import StackSlots
from serving.signing import SignedFor
from training.errors import ConfigError, SubstrateError

BASE = "base"
_INVOCATION_S = 60.0
"""SageMaker ends an invocation after this time."""


def component(endpoint: str, name: str | None) -> str:
    """The inference component of an adapter, or of the base (None)."""
    return f"{endpoint}-{name or BASE}"


class SageMakerEndpoint:
    """The endpoint's stack makes and removes the components; `slots` are its parameters. `upload` puts a
    packaged adapter where the stack looks for it, and returns that address.
    """

    def __init__(
        self,
        session: boto3.Session,
        endpoint: str,
        model_id: str,
        slots: StackSlots,
        upload: Callable[[Path], str],
    ):
        self._credentials, self._region = session.get_credentials(), session.region_name
        if self._credentials is None:
            raise ConfigError("requests to an endpoint are signed, and there are no credentials", "log in")
        self._sagemaker = session.client("sagemaker")
        runtime = session.client("sagemaker-runtime").meta.endpoint_url
        self.url, self.model_id = f"{runtime}/endpoints/{endpoint}/invocations", model_id
        self._endpoint, self._slots, self._upload = endpoint, slots, upload

    def access(self, name: str | None) -> SignedFor:
        return SignedFor(self._credentials, self._region, component(self._endpoint, name))

    def load(self, folder: Path) -> None:
        name = folder.name
        if name in self.loaded():
            return
        address = self._upload(folder)
        self._slots.fill(name)
        made = self._call(
            "describe_inference_component", InferenceComponentName=component(self._endpoint, name)
        )
        status, found = made["InferenceComponentStatus"], made["Specification"]["Container"]["ArtifactUrl"]
        if status != "InService" or found != address:
            raise SubstrateError(
                f"{made['InferenceComponentName']} is {status}, from {found} "
                f"({made.get('FailureReason', 'no reason is given')})",
                f"it should serve {address}: empty its parameter by a deploy, then start again",
            )

    def unload(self, name: str) -> None:
        self._slots.clear(name)

    def loaded(self) -> set[str]:
        try:
            pages = self._sagemaker.get_paginator("list_inference_components").paginate(
                EndpointNameEquals=self._endpoint, StatusEquals="InService"
            )
            found = {one["InferenceComponentName"] for page in pages for one in page["InferenceComponents"]}
        except (ClientError, BotoCoreError) as error:
            raise self._unanswered("list_inference_components", error) from error
        return {name.removeprefix(f"{self._endpoint}-") for name in found} - {BASE}

    def drain(self, name: str, timeout_s: float) -> bool:
        """SageMaker counts no requests under way, but none is longer than an invocation may take."""
        threading.Event().wait(min(timeout_s, _INVOCATION_S))
        return timeout_s >= _INVOCATION_S

    def _call(self, operation: str, **options: Any) -> dict[str, Any]:
        try:
            return getattr(self._sagemaker, operation)(**options)
        except (ClientError, BotoCoreError) as error:
            raise self._unanswered(operation, error) from error

    def _unanswered(self, operation: str, error: Exception) -> SubstrateError:
        return SubstrateError(
            f"{operation} of {self._endpoint}: {error}",
            "is the stack deployed, and have you the rights of docs/how-to/promote.md?",
        )
