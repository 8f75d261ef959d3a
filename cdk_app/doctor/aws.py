"""Questions to AWS whose refusal is an answer too: it says why, and never ends the doctor."""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from cdk_app.doctor.finding import Unknown
from cdk_app.paging import pages

_DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AuthorizationError")
_NOT_OFFERED = ("InvalidAction", "UnknownOperationException", "NotImplemented", "400", "404", "501")
_PATIENCE = Config(
    connect_timeout=5,
    read_timeout=30,
    retries={"mode": "standard", "max_attempts": 4},
    user_agent_extra="doctor",
)


class Aws:
    """One account and region, asked with the caller's own credentials."""

    def __init__(self, session: boto3.Session, region: str):
        self.session = session
        self.region = region
        self._clients: dict[tuple[str, str], Any] = {}

    def client(self, service: str, region: str | None = None) -> Any:
        key = (service, region or self.region)
        if key not in self._clients:
            self._clients[key] = self.session.client(service, region_name=key[1], config=_PATIENCE)
        return self._clients[key]

    @property
    def endpoint(self) -> str:
        """The address that answers for sts: AWS itself, or an emulator."""
        return self.client("sts").meta.endpoint_url

    @property
    def emulated(self) -> bool:
        host = urlsplit(self.endpoint).hostname or ""
        return not host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))

    def ask[Answer](self, action: str, question: Callable[[], Answer]) -> Answer | Unknown:
        """The answer, or why there is none; `action` is the IAM action that the question needs."""
        try:
            return question()
        except ClientError as error:
            return refusal(action, error)
        except (BotoCoreError, ResponseParserError) as error:
            return Unknown(f"{action} was not answered: {error}", "check network, region and AWS endpoint")

    def pages(self, service: str, operation: str, key: str, **params: Any) -> Iterator[Any]:
        """All items of a listing."""
        yield from pages(self.client(service), operation, key, **params)


def refusal(action: str, error: ClientError) -> Unknown:
    code, message = error.response["Error"].get("Code", ""), error.response["Error"].get("Message", "")
    if code in _DENIED:
        return Unknown(
            f"these credentials may not call {action}", f"allow {action} to the caller, and ask again"
        )
    if code in _NOT_OFFERED or message.startswith("No route for"):
        return Unknown(
            f"the endpoint does not offer {action}", "ask AWS itself: an emulator cannot know this"
        )
    return Unknown(f"{action}: {code}: {message}"[:300], f"see what {code} means for {action}, and ask again")
