"""What Ray links need outside of the stacks: a public zone of the domain, and a certificate for it."""

from dataclasses import dataclass

from botocore.exceptions import ClientError

from cdk_app.doctor.aws import Aws
from cdk_app.doctor.finding import Finding, Unknown, judge, unknown
from stacks.optional import Domain

AREA = "domain"


@dataclass(frozen=True)
class Zone:
    """A hosted zone; its name has no dot at the end."""

    name: str
    private: bool


@dataclass(frozen=True)
class Certificate:
    """`names` are those that it covers, with wildcards as they are."""

    status: str
    names: tuple[str, ...]


def zone(aws: Aws, domain: Domain) -> Zone | Unknown | None:
    """None when there is no such zone."""

    def question() -> Zone | None:
        try:
            found = aws.client("route53").get_hosted_zone(Id=domain.hosted_zone_id)["HostedZone"]
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchHostedZone":
                return None
            raise
        return Zone(found["Name"].rstrip("."), found.get("Config", {}).get("PrivateZone", False))

    return aws.ask("route53:GetHostedZone", question)


def certificate(aws: Aws, domain: Domain) -> Certificate | Unknown | None:
    """None when there is no such certificate."""

    def question() -> Certificate | None:
        try:
            found = aws.client("acm").describe_certificate(CertificateArn=domain.certificate_arn)
        except ClientError as error:
            if error.response["Error"]["Code"] == "ResourceNotFoundException":
                return None
            raise
        held = found["Certificate"]
        names = held.get("SubjectAlternativeNames") or [held["DomainName"]]
        return Certificate(held["Status"], tuple(names))

    return aws.ask("acm:DescribeCertificate", question)


def check(domain: Domain, held: Zone | Unknown | None, proof: Certificate | Unknown | None) -> list[Finding]:
    return [_zone(domain, held), _certificate(domain, proof)]


def _zone(domain: Domain, held: Zone | Unknown | None) -> Finding:
    what, needed = f"zone {domain.hosted_zone_id}", f"a public zone that {domain.name} lies in"
    if isinstance(held, Unknown):
        return unknown(AREA, what, held, needed)
    inside = held is not None and (domain.name == held.name or domain.name.endswith(f".{held.name}"))
    found = f"{'private' if held.private else 'public'}, {held.name}" if held else "there is no such zone"
    good = held is not None and inside and not held.private
    remedy = "set domain.hosted_zone_id: `aws route53 list-hosted-zones` lists yours"
    return judge(AREA, what, good, found, needed=needed, remedy=remedy)


def _certificate(domain: Domain, proof: Certificate | Unknown | None) -> Finding:
    what, wanted = "certificate", (domain.name, f"*.{domain.name}")
    needed = f"issued for {' and '.join(wanted)}"
    if isinstance(proof, Unknown):
        return unknown(AREA, what, proof, needed)
    parent = f"*.{domain.name.partition('.')[2]}"
    covered = proof is not None and wanted[1] in proof.names and {wanted[0], parent} & {*proof.names}
    found = f"{proof.status}, for {', '.join(proof.names)}" if proof else "there is no such certificate"
    good = proof is not None and proof.status == "ISSUED" and bool(covered)
    remedy = f"request one: `aws acm request-certificate --domain-name {wanted[0]} --validation-method DNS "
    remedy += f"--subject-alternative-names '{wanted[1]}'`, and set domain.certificate_arn"
    return judge(AREA, what, good, found, needed=needed, remedy=remedy)
