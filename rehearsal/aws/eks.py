"""EKS clusters that name the rehearsal's Kubernetes API, and the EKS types that ministack lacks."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from botocore import xform_name
from ministack.services import ec2, eks
from ministack.services.cloudformation import provisioners

from rehearsal.aws import cloudformation, models
from rehearsal.aws.models import ApiError
from rehearsal.aws.service import identifier, require_role, require_security_groups, require_subnets

_EXTRA_ENTRY_TYPES = ("HYBRID_LINUX", "EC2", "HYPERPOD_LINUX")


def register(kube_endpoint: str, kube_ca: Path) -> None:
    """Cluster repairs and the add-on, access entry and pod identity types.

    Every cluster reports `kube_endpoint` as its endpoint and the PEM in `kube_ca` as its certificate
    authority; the file is read when a cluster is made, so it may be written after the server has started.
    """
    # With a docker daemon at hand ministack would run k3s instead.
    eks._docker_available = False
    eks._VALID_ACCESS_ENTRY_TYPES = (*eks._VALID_ACCESS_ENTRY_TYPES, *_EXTRA_ENTRY_TYPES)
    cloudformation.wrap(
        "AWS::EKS::Cluster", "create", lambda create: _cluster_create(create, kube_endpoint, kube_ca)
    )
    eks._delete_cluster = _cluster_delete(eks._delete_cluster)  # CloudFormation calls it too
    cloudformation.register(
        "AWS::EKS::Addon",
        _addon_create,
        _addon_delete,
        _addon_update,
        replace_on=("ClusterName", "AddonName"),
    )
    cloudformation.register(
        "AWS::EKS::AccessEntry",
        _entry_create,
        _entry_delete,
        _entry_update,
        replace_on=("ClusterName", "PrincipalArn", "Type"),
    )
    cloudformation.register(
        "AWS::EKS::PodIdentityAssociation",
        _identity_create,
        _identity_delete,
        _identity_update,
        replace_on=("ClusterName", "Namespace", "ServiceAccount"),
    )


def _cluster_create(create: Callable[..., Any], endpoint: str, ca: Path) -> Callable[..., Any]:
    def run(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
        vpc = properties["ResourcesVpcConfig"]
        subnets = vpc["SubnetIds"]
        require_subnets(subnets, "InvalidParameterException")
        require_security_groups(vpc.get("SecurityGroupIds", []), "InvalidParameterException")
        require_role(properties["RoleArn"], "InvalidParameterException")
        zones = {ec2._subnets[subnet]["AvailabilityZone"] for subnet in subnets}
        if len(zones) < 2:
            raise ApiError(
                "InvalidParameterException",
                f"Subnets specified must be in at least two different AZs, not {sorted(zones)}",
            )
        name, _ = create(logical_id, properties, stack)
        cluster = eks._clusters[name]
        config = cluster["resourcesVpcConfig"]
        config["vpcId"] = ec2._subnets[subnets[0]]["VpcId"]
        config["clusterSecurityGroupId"] = _cluster_security_group(name, config["vpcId"])
        cluster.update(
            status="ACTIVE",
            endpoint=endpoint,
            certificateAuthority={"data": base64.b64encode(ca.read_bytes()).decode()},
        )
        return name, provisioners._eks_cluster_attrs(cluster)

    return run


def _cluster_delete(delete: Callable[..., Any]) -> Callable[..., Any]:
    def run(name: str) -> Any:
        cluster = eks._clusters.get(name)
        if cluster is not None:
            ec2._security_groups.pop(cluster["resourcesVpcConfig"]["clusterSecurityGroupId"], None)
        return delete(name)

    return run


def _cluster_security_group(name: str, vpc: str) -> str:
    # EKS makes this group itself; ministack only invents its id, so rules could not refer to it.
    group = identifier("sg-")
    ec2._security_groups[group] = {
        "GroupId": group,
        "GroupName": f"eks-cluster-sg-{name}-{group[-8:]}",
        "Description": "EKS created security group applied to the control plane's network interfaces",
        "VpcId": vpc,
        "OwnerId": provisioners.get_account_id(),
        "IpPermissions": provisioners._ec2_sg_permissions(
            [{"IpProtocol": "-1", "SourceSecurityGroupId": group}]
        ),
        "IpPermissionsEgress": provisioners._ec2_sg_egress_permissions([]),
    }
    return group


def _call(name: str, params: dict[str, Any], *in_path: str) -> dict[str, Any]:
    """Run one of ministack's own EKS operations after a check of its input against botocore's model.

    The members named in `in_path` go in front, the others are the body.
    """
    models.check("eks", name, params)
    body = {key: value for key, value in params.items() if key not in in_path}
    status, _, answer = getattr(eks, f"_{xform_name(name)}")(*(params[key] for key in in_path), body)
    document = json.loads(answer)
    if status >= 300:
        raise ApiError(document.get("__type", "EksError"), document.get("message", ""), status)
    return document


def _addon_params(operation: str, properties: dict[str, Any]) -> dict[str, Any]:
    ignored = ("PreserveOnDelete", *(("Tags",) if operation.startswith("Update") else ()))
    kept = {key: value for key, value in properties.items() if key not in ignored}
    return models.from_template("eks", operation, kept)


def _addon_create(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
    params = _addon_params("CreateAddon", properties)
    if "serviceAccountRoleArn" in params:
        require_role(params["serviceAccountRoleArn"], "InvalidParameterException")
    addon = _call("CreateAddon", params, "clusterName")["addon"]
    return f"{params['clusterName']}|{params['addonName']}", {"Arn": addon["addonArn"]}


def _addon_update(
    physical_id: str, old: dict[str, Any], new: dict[str, Any], stack: str
) -> tuple[str, dict[str, Any]]:
    params = _addon_params("UpdateAddon", new)
    cluster, addon = params["clusterName"], params["addonName"]
    _call("UpdateAddon", params, "clusterName", "addonName")
    return physical_id, {"Arn": eks._addons[f"{cluster}/{addon}"]["addonArn"]}


def _addon_delete(physical_id: str, properties: dict[str, Any]) -> None:
    eks._delete_addon(*physical_id.split("|"))


def _entry_create(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
    own = {key: value for key, value in properties.items() if key != "AccessPolicies"}
    params = models.from_template("eks", "CreateAccessEntry", own)
    cluster, principal = params["clusterName"], params["principalArn"]
    entry = _call("CreateAccessEntry", params, "clusterName")["accessEntry"]
    _associate(cluster, principal, properties.get("AccessPolicies", []))
    return f"{principal}|{cluster}", {"AccessEntryArn": entry["accessEntryArn"]}


def _entry_update(
    physical_id: str, old: dict[str, Any], new: dict[str, Any], stack: str
) -> tuple[str, dict[str, Any]]:
    principal, cluster = physical_id.split("|")
    kept = {policy["PolicyArn"] for policy in new.get("AccessPolicies", [])}
    for policy in old.get("AccessPolicies", []):
        if policy["PolicyArn"] not in kept:
            eks._disassociate_access_policy(cluster, principal, policy["PolicyArn"])
    _associate(cluster, principal, new.get("AccessPolicies", []))
    eks._update_access_entry(cluster, principal, {"kubernetesGroups": new.get("KubernetesGroups", [])})
    return physical_id, {
        "AccessEntryArn": eks._access_entries[eks._ae_key(cluster, principal)]["accessEntryArn"]
    }


def _entry_delete(physical_id: str, properties: dict[str, Any]) -> None:
    principal, cluster = physical_id.split("|")
    eks._delete_access_entry(cluster, principal)


def _associate(cluster: str, principal: str, policies: list[dict[str, Any]]) -> None:
    for policy in policies:
        params = models.from_template("eks", "AssociateAccessPolicy", policy)
        params.update(clusterName=cluster, principalArn=principal)
        _call("AssociateAccessPolicy", params, "clusterName", "principalArn")


def _identity_create(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
    params = models.from_template("eks", "CreatePodIdentityAssociation", properties)
    require_role(params["roleArn"], "InvalidParameterException")
    association = _call("CreatePodIdentityAssociation", params, "clusterName")["association"]
    return association["associationArn"], _identity_attributes(association)


def _identity_update(
    association_arn: str, old: dict[str, Any], new: dict[str, Any], stack: str
) -> tuple[str, dict[str, Any]]:
    require_role(new["RoleArn"], "InvalidParameterException")
    number = association_arn.rpartition("/")[2]
    params = {"clusterName": new["ClusterName"], "associationId": number, "roleArn": new["RoleArn"]}
    _call("UpdatePodIdentityAssociation", params, "clusterName", "associationId")
    association = eks._pod_identity_associations[eks._pia_key(new["ClusterName"], number)]
    return association_arn, _identity_attributes(association)


def _identity_delete(association_arn: str, properties: dict[str, Any]) -> None:
    eks._delete_pod_identity_association(properties["ClusterName"], association_arn.rpartition("/")[2])


def _identity_attributes(association: dict[str, Any]) -> dict[str, Any]:
    return {"AssociationArn": association["associationArn"], "AssociationId": association["associationId"]}
