"""Who gets in: EKS tokens that STS vouches for, and nobody else."""

import base64
import json
import ssl
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest
from kubernetes import client

from cdk_app import kube
from tests.kube.conftest import CLUSTER, Session, connect

pytestmark = pytest.mark.slow


def answer(stand_in, token):
    """(code, body) of a request with a token."""
    context = ssl.create_default_context(cafile=str(stand_in.ca_pem))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{stand_in.endpoint}/api/v1/namespaces", headers=headers)
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def altered(token, change):
    url = base64.urlsafe_b64decode(token.removeprefix(kube.TOKEN_PREFIX) + "===").decode()
    return kube.TOKEN_PREFIX + base64.urlsafe_b64encode(change(url).encode()).decode().rstrip("=")


def test_a_token_that_sts_vouches_for_is_asked_about_once(stand_in, sts):
    token = kube.token(Session(sts.url), CLUSTER)
    before = sts.asked
    assert [answer(stand_in, token)[0] for _ in range(3)] == [200, 200, 200]
    assert sts.asked == before + 1


@pytest.mark.parametrize("token", ["", "nonsense", "k8s-aws-v1.", "k8s-aws-v1.bm90IGEgdXJs"])
def test_no_token_or_no_eks_token_is_refused(stand_in, token):
    code, body = answer(stand_in, token)
    assert code == 401
    assert (body["kind"], body["reason"], body["code"]) == ("Status", "Unauthorized", 401)


def test_a_token_for_another_cluster_is_refused(stand_in, sts):
    code, body = answer(stand_in, kube.token(Session(sts.url), "another-cluster"))
    assert (code, body["message"]) == (401, "Unauthorized: STS answered 403")


def test_a_token_of_another_secret_is_refused(stand_in, sts, monkeypatch):
    monkeypatch.setattr("tests.kube.sts.SECRET", "guessed")
    token = kube.token(Session(sts.url), CLUSTER)
    monkeypatch.undo()
    assert answer(stand_in, token)[0] == 401


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda url: url.replace("GetCallerIdentity", "AssumeRole"), "AssumeRole"),
        (lambda url: url.replace("127.0.0.1", "sts.evil.example"), "not STS"),
        (lambda url: url.replace("x-k8s-aws-id", "x-other"), "x-k8s-aws-id is not signed"),
        (lambda url: url.replace("X-Amz-Expires=60", "X-Amz-Expires=86400"), "out of range"),
        (lambda url: url + "&Action=GetCallerIdentity", "repeats"),
    ],
)
def test_a_doctored_token_is_refused_before_sts_is_asked(stand_in, sts, change, words):
    before = sts.asked
    code, body = answer(stand_in, altered(kube.token(Session(sts.url), CLUSTER), change))
    assert code == 401
    assert words in body["message"]
    assert sts.asked == before


def test_an_old_token_has_expired(stand_in, sts):
    now = datetime.now(UTC)
    old = now - timedelta(minutes=16)

    def backdate(url):
        return url.replace(
            next(p for p in url.split("&") if p.startswith("X-Amz-Date=")),
            f"X-Amz-Date={old:%Y%m%dT%H%M%SZ}",
        )

    code, body = answer(stand_in, altered(kube.token(Session(sts.url), CLUSTER), backdate))
    assert (code, body["message"]) == (401, "Unauthorized: the token has expired")


def test_the_client_renews_its_token(stand_in, sts, monkeypatch):
    api = connect(stand_in, sts)
    monkeypatch.setattr(kube, "_RENEW_AFTER_S", -1)
    signed = []
    monkeypatch.setattr(kube, "token", lambda *a, real=kube.token: signed.append(1) or real(*a))
    for _ in range(2):
        client.CoreV1Api(api).list_namespace()
    assert len(signed) >= 2


def test_the_certificate_is_checked(stand_in):
    context = ssl.create_default_context()
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        ).open(f"{stand_in.endpoint}/healthz")
