"""EC2 types that ministack's CloudFormation lacks: addresses, NAT gateways, flow logs, group rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ministack.services import ec2
from ministack.services.cloudformation import provisioners

from rehearsal.aws import cloudformation
from rehearsal.aws.models import ApiError
from rehearsal.aws.service import identifier, require_role, require_security_groups, require_subnets


def register() -> None:
    """All EC2 types, and the attributes that ministack's VPC leaves out."""
    cloudformation.register("AWS::EC2::EIP", _address_create, _address_delete, _keep_address)
    cloudformation.register(
        "AWS::EC2::NatGateway",
        _nat_create,
        _nat_delete,
        _keep_nat,
        replace_on=("SubnetId", "AllocationId", "ConnectivityType"),
    )
    cloudformation.register(
        "AWS::EC2::FlowLog",
        _flow_log_create,
        _flow_log_delete,
        _keep_flow_log,
        replace_on=("ResourceId", "TrafficType", "LogGroupName", "DeliverLogsPermissionArn"),
    )
    cloudformation.wrap("AWS::EC2::VPCEndpoint", "create", _placed_endpoint)
    for direction in ("Ingress", "Egress"):
        create, delete = _rule(direction)
        resource_type = f"AWS::EC2::SecurityGroup{direction}"
        cloudformation.register(resource_type, create, delete, replace_on=_RULE_PROPERTIES)
    for action in ("create", "update"):
        cloudformation.wrap("AWS::EC2::VPC", action, _with_cidr)
    cloudformation.wrap("AWS::EC2::Subnet", "create", _in_known_vpc)
    cloudformation.wrap("AWS::EC2::SecurityGroup", "create", _in_known_vpc)


_RULE_PROPERTIES = (
    "GroupId",
    "IpProtocol",
    "FromPort",
    "ToPort",
    "CidrIp",
    "CidrIpv6",
    "SourceSecurityGroupId",
    "DestinationSecurityGroupId",
)


def _field(answer: tuple[int, dict[str, str], Any], name: str) -> str:
    status, _, body = answer
    text = body.decode() if isinstance(body, bytes) else str(body)
    if status >= 300:
        code, message = (re.search(rf"<{tag}>(.*?)</{tag}>", text, re.S) for tag in ("Code", "Message"))
        raise ApiError(code[1] if code else "InternalError", message[1] if message else text, status)
    found = re.search(rf"<{name}>(.*?)</{name}>", text)
    if found is None:
        raise ApiError("InternalError", f"EC2 answered without {name}: {text[:200]}", 500)
    return found[1]


def _address_create(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
    allocation = _field(ec2._allocate_address({"Domain": ["vpc"]}), "allocationId")
    provisioners._ec2_apply_tags(allocation, properties)
    address = ec2._addresses[allocation]["PublicIp"]
    return address, {"AllocationId": allocation, "PublicIp": address}


def _keep_address(
    address: str, old: dict[str, Any], new: dict[str, Any], stack: str
) -> tuple[str, dict[str, Any]]:
    allocation = next(key for key, record in ec2._addresses.items() if record["PublicIp"] == address)
    provisioners._ec2_apply_tags(allocation, new, old)
    return address, {"AllocationId": allocation, "PublicIp": address}


def _address_delete(address: str, properties: dict[str, Any]) -> None:
    for allocation, record in list(ec2._addresses.items()):
        if record["PublicIp"] == address:
            ec2._release_address({"AllocationId": [allocation]})
            ec2._tags.pop(allocation, None)


def _nat_create(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
    require_subnets([properties["SubnetId"]], "InvalidSubnetID.NotFound")
    allocation = properties.get("AllocationId", "")
    if properties.get("ConnectivityType", "public") == "public" and allocation not in ec2._addresses:
        raise ApiError("InvalidAllocationID.NotFound", f"The allocation ID '{allocation}' does not exist")
    query = {"SubnetId": [properties["SubnetId"]], "AllocationId": [allocation]}
    gateway = _field(ec2._create_nat_gateway(query), "natGatewayId")
    provisioners._ec2_apply_tags(gateway, properties)
    return gateway, {"NatGatewayId": gateway}


def _keep_nat(
    gateway: str, old: dict[str, Any], new: dict[str, Any], stack: str
) -> tuple[str, dict[str, Any]]:
    provisioners._ec2_apply_tags(gateway, new, old)
    return gateway, {"NatGatewayId": gateway}


def _nat_delete(gateway: str, properties: dict[str, Any]) -> None:
    ec2._nat_gateways.pop(gateway, None)
    ec2._tags.pop(gateway, None)


def _flow_log_create(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
    if properties["ResourceId"] not in ec2._vpcs:
        raise ApiError("InvalidVpcID.NotFound", f"The vpc ID '{properties['ResourceId']}' does not exist")
    require_role(properties["DeliverLogsPermissionArn"], "InvalidParameter")
    query = {"ResourceId.1": [properties["ResourceId"]], "ResourceType": [properties["ResourceType"]]}
    query |= {key: [properties[key]] for key in ("TrafficType", "LogDestinationType", "LogGroupName")}
    number = _field(ec2._create_flow_logs(query), "item")
    provisioners._ec2_apply_tags(number, properties)
    return number, {"Id": number}


def _keep_flow_log(
    number: str, old: dict[str, Any], new: dict[str, Any], stack: str
) -> tuple[str, dict[str, Any]]:
    provisioners._ec2_apply_tags(number, new, old)
    return number, {"Id": number}


def _flow_log_delete(number: str, properties: dict[str, Any]) -> None:
    ec2._delete_flow_logs({"FlowLogId.1": [number]})


def _placed_endpoint(create: Callable[..., Any]) -> Callable[..., Any]:
    def run(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
        if properties.get("VpcEndpointType") == "Interface":
            require_subnets(properties["SubnetIds"], "InvalidSubnetId.NotFound")
            require_security_groups(properties["SecurityGroupIds"], "InvalidSecurityGroupId.NotFound")
        return create(logical_id, properties, stack)

    return run


def _rule(direction: str) -> tuple[cloudformation.Create, cloudformation.Delete]:
    side = "IpPermissions" if direction == "Ingress" else "IpPermissionsEgress"

    def create(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
        peer = properties.get("SourceSecurityGroupId") or properties.get("DestinationSecurityGroupId")
        require_security_groups([properties["GroupId"], *([peer] if peer else [])], "InvalidGroup.NotFound")
        permissions = ec2._security_groups[properties["GroupId"]][side]
        added = provisioners._ec2_sg_permissions([properties])
        if any(permission in permissions for permission in added):
            raise ApiError(
                "InvalidPermission.Duplicate", f"The rule exists already in {properties['GroupId']}"
            )
        permissions.extend(added)
        number = identifier("sgr-")
        return number, {"Id": number}

    def delete(number: str, properties: dict[str, Any]) -> None:
        group = ec2._security_groups.get(properties["GroupId"])
        if group is None:
            return
        for permission in provisioners._ec2_sg_permissions([properties]):
            if permission in group[side]:
                group[side].remove(permission)

    return create, delete


def _with_cidr(handler: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> tuple[str, dict[str, Any]]:
        vpc, attributes = handler(*args)
        record = ec2._vpcs[vpc]
        extra = {"CidrBlock": record["CidrBlock"], "CidrBlockAssociations": [], "VpcId": vpc}
        return vpc, {**extra, **(attributes or {})}

    return run


def _in_known_vpc(handler: Callable[..., Any]) -> Callable[..., Any]:
    def run(
        logical_id: str, properties: dict[str, Any], stack: str, *rest: Any
    ) -> tuple[str, dict[str, Any]]:
        vpc = properties.get("VpcId")
        if vpc is not None and vpc not in ec2._vpcs:
            raise ApiError("InvalidVpcID.NotFound", f"The vpc ID '{vpc}' does not exist")
        return handler(logical_id, properties, stack, *rest)

    return run
