"""Bearer tokens: the stand-in's own one and EKS tokens, which the emulated STS judges.

An EKS token is `k8s-aws-v1.` plus the base64 of a presigned sts:GetCallerIdentity URL whose signature covers
the header x-k8s-aws-id. As EKS does, the URL's form is checked here and then STS is asked whose it is.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import re
import time
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import httpx

from rehearsal.kube.status import ApiError

PREFIX = "k8s-aws-v1."
CLUSTER_HEADER = "x-k8s-aws-id"
LIFETIME_S = 15 * 60
_STS_HOST = re.compile(r"^sts(\.[a-z0-9-]+)?\.amazonaws\.com$")


class Authenticator:
    """Turns an Authorization header into a user name, or raises a 401.

    Verdicts are kept until the token expires, so that STS is asked once per token.
    """

    def __init__(self, aws_url: str, own_token: str, cluster_name: str = ""):
        self._aws_url = aws_url.rstrip("/")
        self._own_token = own_token
        self._cluster_name = cluster_name
        self._verdicts: dict[str, tuple[float, str]] = {}
        self._client = httpx.AsyncClient(timeout=10, trust_env=False)

    async def user(self, header: str) -> str:
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise _refusal("no bearer token")
        if hmac.compare_digest(token.encode(), self._own_token.encode()):
            return "system:rehearsal"
        expires, user = self._verdicts.get(token, (0.0, ""))
        if expires > time.time():
            return user
        expires, query = self._inspect(token)
        user = await self._ask_sts(query)
        self._verdicts = {t: v for t, v in self._verdicts.items() if v[0] > time.time()}
        self._verdicts[token] = expires, user
        return user

    def _inspect(self, token: str) -> tuple[float, str]:
        """The time at which the token ends (Unix seconds) and the presigned query to send to STS."""
        if not token.startswith(PREFIX):
            raise _refusal("not an EKS token")
        encoded = token.removeprefix(PREFIX)
        try:
            url = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
            parts = urlsplit(url)
            query = {key.lower(): values for key, values in parse_qs(parts.query).items()}
            signed_at = datetime.strptime(query["x-amz-date"][0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            validity = int(query["x-amz-expires"][0])
            signed_headers = query["x-amz-signedheaders"][0].lower().split(";")
            action = query["action"][0]
        except (binascii.Error, UnicodeDecodeError, KeyError, ValueError) as error:
            raise _refusal("malformed EKS token") from error
        emulated = parts.netloc == urlsplit(self._aws_url).netloc
        if not emulated and not (parts.scheme == "https" and _STS_HOST.match(parts.netloc)):
            raise _refusal(f"the token was signed for {parts.netloc}, which is not STS")
        if parts.path not in ("", "/") or action != "GetCallerIdentity":
            raise _refusal(f"the token asks STS for {action}, not GetCallerIdentity")
        if any(len(values) > 1 for values in query.values()):
            raise _refusal("the token repeats a query parameter")
        if CLUSTER_HEADER not in signed_headers:
            raise _refusal(f"the header {CLUSTER_HEADER} is not signed")
        if not 0 < validity <= LIFETIME_S:
            raise _refusal(f"a validity of {validity} s is out of range (1 to {LIFETIME_S})")
        # As in EKS, the token lives for 15 minutes from its signing; X-Amz-Expires only bounds its first use.
        expires = signed_at.timestamp() + LIFETIME_S
        if not time.time() - LIFETIME_S < signed_at.timestamp() < time.time() + LIFETIME_S:
            raise _refusal("the token has expired")
        return expires, parts.query

    async def _ask_sts(self, query: str) -> str:
        headers = {CLUSTER_HEADER: self._cluster_name, "accept": "application/xml"}
        for attempt in range(3):
            try:
                answer = await self._client.get(f"{self._aws_url}/?{query}", headers=headers)
                break
            except httpx.TransportError as error:
                if attempt == 2:
                    raise ApiError(
                        500, f"the emulated STS at {self._aws_url} does not answer: {error!r}"
                    ) from error
                await asyncio.sleep(0.2)
        if answer.status_code != 200:
            raise _refusal(f"STS answered {answer.status_code}")
        return _arn(answer.text)


def _arn(text: str) -> str:
    try:
        # The answer comes from our own emulator on loopback.
        root = ElementTree.fromstring(text)  # noqa: S314
    except ElementTree.ParseError as error:
        raise _refusal("STS did not answer in XML") from error
    arn = next((node.text for node in root.iter() if node.tag.endswith("Arn") and node.text), None)
    if not arn:
        raise _refusal("STS named no caller")
    return arn


def _refusal(why: str) -> ApiError:
    return ApiError(401, f"Unauthorized: {why}")
