"""Application Auto Scaling: scalable targets and their policies; nothing is ever scaled."""

from __future__ import annotations

import time
from typing import Any

from ministack.core.responses import AccountRegionScopedDict

from rehearsal.aws import cloudformation, models
from rehearsal.aws.models import ApiError
from rehearsal.aws.service import Service, arn, identifier

_KEY = ("ResourceId", "ScalableDimension", "ServiceNamespace")


class Scaling(Service):
    """Target and policy operations; whether the target exists is not looked at."""

    model = signing = "application-autoscaling"

    def __init__(self) -> None:
        self.targets = AccountRegionScopedDict()
        self.policies = AccountRegionScopedDict()

    def register_scalable_target(self, params: dict[str, Any]) -> dict[str, Any]:
        if params["MinCapacity"] > params["MaxCapacity"]:
            raise ApiError("ValidationException", "MinCapacity is above MaxCapacity")
        made = arn("application-autoscaling", f"scalable-target/{identifier('', 24)}")
        service_role = arn("iam", "role/aws-service-role/AWSServiceRoleForApplicationAutoScaling")
        self.targets[_key(params)] = {
            "ScalableTargetARN": made,
            "RoleARN": service_role,
            "CreationTime": time.time(),
            **self.targets.get(_key(params), {}),
            **params,
        }
        return {"ScalableTargetARN": made}

    def describe_scalable_targets(self, params: dict[str, Any]) -> dict[str, Any]:
        of = params["ServiceNamespace"]
        return {"ScalableTargets": [t for t in self.targets.values() if t["ServiceNamespace"] == of]}

    def deregister_scalable_target(self, params: dict[str, Any]) -> dict[str, Any]:
        self._require_target(params)
        del self.targets[_key(params)]
        for name in [name for name, policy in self.policies.items() if _key(policy) == _key(params)]:
            del self.policies[name]
        return {}

    def put_scaling_policy(self, params: dict[str, Any]) -> dict[str, Any]:
        self._require_target(params)
        made = arn("autoscaling", f"scalingPolicy:policyName/{params['PolicyName']}")
        self.policies[made] = {**params, "PolicyARN": made, "CreationTime": time.time()}
        return {"PolicyARN": made, "Alarms": []}

    def delete_scaling_policy(self, params: dict[str, Any]) -> dict[str, Any]:
        self.policies.pop(arn("autoscaling", f"scalingPolicy:policyName/{params['PolicyName']}"), None)
        return {}

    def _require_target(self, params: dict[str, Any]) -> None:
        if _key(params) not in self.targets:
            raise ApiError("ObjectNotFoundException", f"No scalable target registered for {_key(params)}")


def _key(params: dict[str, Any]) -> str:
    return "|".join(params[name] for name in _KEY)


def register(scaling: Scaling) -> None:
    """AWS::ApplicationAutoScaling::ScalableTarget and ScalingPolicy."""

    def target(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
        params = models.from_template("application-autoscaling", "RegisterScalableTarget", properties)
        scaling.call("RegisterScalableTarget", params)
        return _key(params), {"Id": _key(params)}

    def target_update(
        key: str, old: dict[str, Any], new: dict[str, Any], stack: str
    ) -> tuple[str, dict[str, Any]]:
        return target("", new, stack)

    def target_delete(key: str, properties: dict[str, Any]) -> None:
        scaling.call("DeregisterScalableTarget", dict(zip(_KEY, key.split("|"), strict=True)))

    cloudformation.register(
        "AWS::ApplicationAutoScaling::ScalableTarget", target, target_delete, target_update, replace_on=_KEY
    )

    def policy(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
        of = dict(zip(_KEY, properties["ScalingTargetId"].split("|"), strict=True))
        given = {key: value for key, value in properties.items() if key != "ScalingTargetId"}
        params = models.from_template("application-autoscaling", "PutScalingPolicy", given) | of
        made = scaling.call("PutScalingPolicy", params)["PolicyARN"]
        return made, {"Arn": made}

    def policy_update(
        made: str, old: dict[str, Any], new: dict[str, Any], stack: str
    ) -> tuple[str, dict[str, Any]]:
        return policy("", new, stack)

    def policy_delete(made: str, properties: dict[str, Any]) -> None:
        of = dict(zip(_KEY, properties["ScalingTargetId"].split("|"), strict=True))
        scaling.call("DeleteScalingPolicy", {"PolicyName": properties["PolicyName"], **of})

    cloudformation.register(
        "AWS::ApplicationAutoScaling::ScalingPolicy",
        policy,
        policy_delete,
        policy_update,
        replace_on=("PolicyName", "ScalingTargetId"),
    )
