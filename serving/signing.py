"""Requests to a SageMaker endpoint: signed, and addressed to one of its inference components."""

from collections.abc import Generator
from typing import Any

import httpx
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError

from training.errors import SubstrateError

COMPONENT_HEADER = "X-Amzn-SageMaker-Inference-Component"


class SignedFor(httpx.Auth):
    """`credentials` are a botocore session's; they are asked at each request, because they expire."""

    requires_request_body = True

    def __init__(self, credentials: Any, region: str, component: str):
        self._credentials, self._region, self._component = credentials, region, component

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response]:
        signed = AWSRequest(
            request.method,
            str(request.url),
            data=request.content,
            headers={"Content-Type": request.headers["Content-Type"], COMPONENT_HEADER: self._component},
        )
        try:
            SigV4Auth(self._credentials.get_frozen_credentials(), "sagemaker", self._region).add_auth(signed)
        except BotoCoreError as error:
            raise SubstrateError(f"there are no AWS credentials to sign with ({error})", "log in") from error
        request.headers.update(dict(signed.headers.items()))
        yield request
