"""Requests to a SageMaker endpoint, as they come in at a server that checks the signature itself."""

import json
import re

import httpx
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import CredentialRetrievalError

from serving.client import ChatPolicy
from serving.endpoint import Endpoint, NoRoom, Retries
from serving.signing import COMPONENT_HEADER, SignedFor
from tests.serving.scripted_server import ScriptedServer
from tests.serving.test_client import conversation
from training.errors import ConfigError, SubstrateError

CREDENTIALS = Credentials("AKIDEXAMPLE", "secret", "token")
PATH = "/endpoints/skypod-paper-inference/invocations"
COMPONENT = "skypod-paper-inference-maze-6c576434edc8"
AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/\d{8}/us-west-2/sagemaker/aws4_request, "
    r"SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})"
)


@pytest.fixture
def server():
    with ScriptedServer({"maze:maze-6c576434edc8": lambda pictures, answers: "x"}) as running:
        yield running


@pytest.fixture
def access() -> SignedFor:
    return SignedFor(CREDENTIALS, "us-west-2", COMPONENT)


def signature(url: str, headers: dict[str, str], body: bytes, names: list[str]) -> str:
    """What AWS would compute from a request that came in."""
    request = AWSRequest("POST", url, data=body, headers={n: headers[n] for n in names if n != "host"})
    request.context["timestamp"] = headers["x-amz-date"]
    signer = SigV4Auth(CREDENTIALS, "sagemaker", "us-west-2")
    return signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)


def test_a_conversation_goes_signed_to_its_component(server, access):
    with ChatPolicy(f"{server.url}{PATH}", "maze:maze-6c576434edc8", access) as policy:
        assert policy.act([conversation()]) == ["x"]
    ((path, headers, body),) = server.received
    headers = {name.lower(): value for name, value in headers.items()}
    assert path == PATH
    assert headers[COMPONENT_HEADER.lower()] == COMPONENT
    assert headers["x-amz-security-token"] == "token"
    assert json.loads(body)["model"] == "maze:maze-6c576434edc8"
    assert len(json.loads(body)["messages"]) == 5
    names, given = AUTHORIZATION.fullmatch(headers["authorization"]).groups()
    assert {"host", "content-type", COMPONENT_HEADER.lower()} <= set(names.split(";"))
    assert given == signature(server.url + PATH, headers, body, names.split(";"))
    assert given != signature(server.url + PATH, headers, body + b" ", names.split(";"))


def test_every_try_is_signed_with_the_credentials_of_its_time(server):
    class Renewed:
        given = 0

        def get_frozen_credentials(self):
            self.given += 1
            return Credentials("AKIDEXAMPLE", "secret", f"token-{self.given}")

    server.fault = lambda count: 503 if count == 1 else None
    access = SignedFor(Renewed(), "us-west-2", COMPONENT)
    tries = Retries(first_wait_s=0.01)
    with ChatPolicy(f"{server.url}{PATH}", "maze:maze-6c576434edc8", access, retries=tries) as policy:
        assert policy.act([conversation()]) == ["x"]
    assert [headers["X-Amz-Security-Token"] for _, headers, _ in server.received] == ["token-1", "token-2"]


@pytest.mark.parametrize(
    ("original", "message", "kind"),
    [
        (400, "This model's maximum context length is 1024 tokens.", NoRoom),
        (404, "The model `maze:other` does not exist.", ConfigError),
        (500, "the engine is gone", SubstrateError),
    ],
)
def test_what_the_model_refuses_is_found_in_sagemakers_wrapping(server, access, original, message, kind):
    said = {"error": {"message": message}}
    wrapped = {
        "ErrorCode": "CLIENT_ERROR_FROM_MODEL",
        "Message": f"Received error ({original}) from primary",
        "OriginalStatusCode": original,
        "OriginalMessage": json.dumps(said),
    }
    server.fault = lambda count: (424, wrapped)
    endpoint = Endpoint(f"{server.url}{PATH}", access, retries=Retries(attempts=2, first_wait_s=0.01))
    with pytest.raises(kind, match=re.escape(message)) as refused:
        endpoint.complete({"model": "maze:other", "messages": []})
    assert type(refused.value) is kind


def test_a_wrapping_without_an_original_is_refused_as_it_is(server, access):
    server.fault = lambda count: (424, {"Message": "no container"})
    with pytest.raises(ConfigError, match="status 424, no container"):
        Endpoint(f"{server.url}{PATH}", access).complete({"model": "m", "messages": []})


def test_credentials_that_cannot_be_had_are_told():
    class Expired:
        def get_frozen_credentials(self):
            raise CredentialRetrievalError(provider="sso", error_msg="expired")

    request = httpx.Request("POST", f"https://runtime.example.com{PATH}", json={})
    with pytest.raises(SubstrateError, match=r"no AWS credentials .*expired"):
        next(SignedFor(Expired(), "us-west-2", COMPONENT).auth_flow(request))
