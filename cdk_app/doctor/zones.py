"""Whether the chosen zone offers the instance types, compared by zone *id*.

Zone names are shuffled per account: us-west-2a of one account is not that of another. Offers say that a type
exists in a zone, not that capacity is free; only the deploy's own wait for nodes shows that.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from cdk_app.doctor.aws import Aws
from cdk_app.doctor.finding import Finding, Status, Unknown, judge, unknown
from cdk_app.doctor.instances import groups
from stacks.environment import Environment

AREA = "zones"
# https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html: no control plane in these.
WITHOUT_CONTROL_PLANE = frozenset({"use1-az3", "usw1-az2", "cac1-az3"})


@dataclass(frozen=True)
class Zone:
    name: str
    zone_id: str
    available: bool = True


Offers = frozenset[tuple[str, str]]
"""(EC2 instance type, zone id) of every offer."""


def zones(aws: Aws) -> tuple[Zone, ...] | Unknown:
    def question() -> tuple[Zone, ...]:
        answer = aws.client("ec2").describe_availability_zones()["AvailabilityZones"]
        return tuple(
            Zone(zone["ZoneName"], zone["ZoneId"], zone["State"] == "available")
            for zone in answer
            if zone.get("ZoneType", "availability-zone") == "availability-zone"
        )

    return aws.ask("ec2:DescribeAvailabilityZones", question)


def offers(aws: Aws, instance_types: Iterable[str]) -> Offers | Unknown:
    wanted = sorted({instance_type.removeprefix("ml.") for instance_type in instance_types})

    def question() -> Offers:
        listed = aws.pages(
            "ec2",
            "describe_instance_type_offerings",
            "InstanceTypeOfferings",
            LocationType="availability-zone-id",
            Filters=[{"Name": "instance-type", "Values": wanted}],
        )
        return frozenset((offer["InstanceType"], offer["Location"]) for offer in listed)

    return aws.ask("ec2:DescribeInstanceTypeOfferings", question)


def check(
    environment: Environment, found: tuple[Zone, ...] | Unknown, offered: Offers | Unknown
) -> list[Finding]:
    """The zones of the settings, and each instance type in the zone of the nodes."""
    chosen = environment.network.zones
    if isinstance(found, Unknown):
        return [unknown(AREA, "zones", found, ", ".join(chosen))]
    by_name = {zone.name: zone for zone in found if zone.available}
    usable = sorted(n for n, zone in by_name.items() if zone.zone_id not in WITHOUT_CONTROL_PLANE)
    bad = [name for name in chosen if name not in usable]
    named = ", ".join(f"{n} = {by_name[n].zone_id if n in by_name else 'none'}" for n in chosen)
    findings = [
        judge(
            AREA,
            "zones",
            not bad,
            named,
            needed="zones of this account that can hold an EKS control plane",
            remedy=f"set network.zones to two of {', '.join(usable)} instead of {', '.join(bad)}",
        )
    ]
    node_zone = by_name.get(chosen[0])
    if node_zone is None:
        return findings
    together = f"{node_zone.name} ({node_zone.zone_id}), the first of network.zones, holds both"
    findings.append(Finding(AREA, "nodes and Lustre in one zone", Status.OK, together))
    types = sorted({group.instance_type for group in groups(environment).values() if group.count})
    if isinstance(offered, Unknown):
        return [*findings, *(unknown(AREA, f"{t} offered", offered, node_zone.name) for t in types)]
    complete = [name for name in usable if all((t[3:], by_name[name].zone_id) in offered for t in types)]
    return [*findings, *(_offered(t, node_zone, offered, complete, found) for t in types)]


def _offered(
    instance_type: str, node_zone: Zone, offered: Offers, complete: list[str], all_zones: tuple[Zone, ...]
) -> Finding:
    ids = {zone_id for name, zone_id in offered if name == instance_type.removeprefix("ml.")}
    here = sorted(f"{zone.name} ({zone.zone_id})" for zone in all_zones if zone.zone_id in ids)
    move = f"put {' or '.join(complete)} first in network.zones: all types are offered there"
    return judge(
        AREA,
        f"{instance_type} offered",
        node_zone.zone_id in ids,
        f"in {', '.join(here)}" if here else "in no zone of this region",
        needed=f"in {node_zone.name} ({node_zone.zone_id})",
        remedy=move if complete else "choose another region (`region`, `network.zones`) or instance type",
    )
