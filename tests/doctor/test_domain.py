"""The domain of Ray links against accounts that have it, lack it, or do not tell."""

import pytest

from cdk_app.doctor import domain
from cdk_app.doctor.finding import Status
from stacks.optional import Domain
from tests.doctor.accounts import DENIED, Account, refused

ARN = "arn:aws:acm:us-west-2:123456789012:certificate/01234567-89ab-cdef-0123-456789abcdef"
WANTED = Domain(name="ray.example.com", hosted_zone_id="Z0123456789ABC", certificate_arn=ARN)


def _zone(name: str = "example.com.", *, private: bool = False) -> dict:
    return {"HostedZone": {"Id": "Z", "Name": name, "Config": {"PrivateZone": private}}}


def _certificate(status: str = "ISSUED", *names: str) -> dict:
    return {"Certificate": {"Status": status, "DomainName": names[0], "SubjectAlternativeNames": list(names)}}


GOOD = _certificate("ISSUED", "ray.example.com", "*.ray.example.com")


@pytest.mark.parametrize(
    ("zone", "certificate", "expected", "said"),
    [
        (_zone(), GOOD, (Status.OK, Status.OK), "public, example.com"),
        (_zone(), _certificate("ISSUED", "*.example.com", "*.ray.example.com"), (Status.OK, Status.OK), ""),
        (_zone(private=True), GOOD, (Status.FAILED, Status.OK), "private, example.com"),
        (_zone("ample.com."), GOOD, (Status.FAILED, Status.OK), "ample.com"),
        (refused("NoSuchHostedZone"), GOOD, (Status.FAILED, Status.OK), "no such zone"),
        (
            _zone(),
            _certificate("PENDING_VALIDATION", "ray.example.com", "*.ray.example.com"),
            (Status.OK, Status.FAILED),
            "PENDING",
        ),
        (_zone(), _certificate("ISSUED", "ray.example.com"), (Status.OK, Status.FAILED), "for ray.example"),
        (_zone(), refused("ResourceNotFoundException"), (Status.OK, Status.FAILED), "no such certificate"),
        (refused("AccessDenied"), DENIED, (Status.UNKNOWN, Status.UNKNOWN), "acm:DescribeCertificate"),
    ],
)
def test_zone_and_certificate(zone, certificate, expected, said):
    account = Account()
    account.answer("route53.GetHostedZone", zone)
    account.answer("acm.DescribeCertificate", certificate)
    found = domain.check(WANTED, domain.zone(account.aws, WANTED), domain.certificate(account.aws, WANTED))
    assert tuple(finding.status for finding in found) == expected
    assert said in " ".join(finding.found for finding in found)
    assert all(finding.remedy for finding in found if finding.status is not Status.OK)
