"""SageMaker endpoints with inference components: what may be made of what, and in which order it goes.

No container is started, so nothing answers an invocation.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

from ministack.core.responses import AccountRegionScopedDict
from ministack.services import s3

from rehearsal.aws import cloudformation, models
from rehearsal.aws.models import ApiError
from rehearsal.aws.service import arn, require_role, wait_until

SETTLE_S = 0.2
"""Seconds that a component stays in Creating, Updating or Deleting."""


class Inference:
    """Operations of models, endpoints and inference components; an endpoint is in service at once."""

    def __init__(self) -> None:
        self.models = AccountRegionScopedDict()
        self.endpoint_configs = AccountRegionScopedDict()
        self.endpoints = AccountRegionScopedDict()
        self.components = AccountRegionScopedDict()

    def create_model(self, params: dict[str, Any]) -> dict[str, Any]:
        require_role(params["ExecutionRoleArn"])
        return _make(self.models, "Model", params)

    def describe_model(self, params: dict[str, Any]) -> dict[str, Any]:
        return _find(self.models, "Model", params["ModelName"])

    def list_models(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"Models": list(self.models.values())}

    def delete_model(self, params: dict[str, Any]) -> dict[str, Any]:
        _find(self.models, "Model", params["ModelName"])
        del self.models[params["ModelName"]]
        return {}

    def create_endpoint_config(self, params: dict[str, Any]) -> dict[str, Any]:
        role = params.get("ExecutionRoleArn")
        for variant in params["ProductionVariants"]:
            if (role is None) is ("ModelName" not in variant):
                raise ApiError(
                    "ValidationException",
                    "A variant has a ModelName, or the configuration an ExecutionRoleArn for its components",
                )
        if role:
            require_role(role)
        return _make(self.endpoint_configs, "EndpointConfig", params)

    def describe_endpoint_config(self, params: dict[str, Any]) -> dict[str, Any]:
        return _find(self.endpoint_configs, "EndpointConfig", params["EndpointConfigName"])

    def list_endpoint_configs(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"EndpointConfigs": list(self.endpoint_configs.values())}

    def delete_endpoint_config(self, params: dict[str, Any]) -> dict[str, Any]:
        _find(self.endpoint_configs, "EndpointConfig", params["EndpointConfigName"])
        del self.endpoint_configs[params["EndpointConfigName"]]
        return {}

    def create_endpoint(self, params: dict[str, Any]) -> dict[str, Any]:
        _find(self.endpoint_configs, "EndpointConfig", params["EndpointConfigName"])
        return _make(self.endpoints, "Endpoint", {**params, "EndpointStatus": "InService"})

    def describe_endpoint(self, params: dict[str, Any]) -> dict[str, Any]:
        return _find(self.endpoints, "Endpoint", params["EndpointName"])

    def update_endpoint(self, params: dict[str, Any]) -> dict[str, Any]:
        _find(self.endpoint_configs, "EndpointConfig", params["EndpointConfigName"])
        endpoint = _find(self.endpoints, "Endpoint", params["EndpointName"])
        endpoint["EndpointConfigName"] = params["EndpointConfigName"]
        return endpoint

    def list_endpoints(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"Endpoints": list(self.endpoints.values())}

    def delete_endpoint(self, params: dict[str, Any]) -> dict[str, Any]:
        name = _find(self.endpoints, "Endpoint", params["EndpointName"])["EndpointName"]
        if any(component["EndpointName"] == name for component in self._components()):
            raise ApiError("ValidationException", f"Endpoint {name} still has inference components")
        del self.endpoints[name]
        return {}

    def create_inference_component(self, params: dict[str, Any]) -> dict[str, Any]:
        _find(self.endpoints, "Endpoint", params["EndpointName"])
        specification = params["Specification"]
        self._check_component(params)
        made = {
            **params,
            "InferenceComponentStatus": "Creating",
            "_settles_at": time.time() + SETTLE_S,
            "_failure": self._missing_data(specification),
        }
        return _make(self.components, "InferenceComponent", made)

    def describe_inference_component(self, params: dict[str, Any]) -> dict[str, Any]:
        return self._component(params["InferenceComponentName"])

    def update_inference_component(self, params: dict[str, Any]) -> dict[str, Any]:
        component = self._component(params["InferenceComponentName"])
        changed = {key: params[key] for key in ("Specification", "RuntimeConfig") if key in params}
        self._check_component({**component, **changed})
        component.update(changed, InferenceComponentStatus="Updating", _settles_at=time.time() + SETTLE_S)
        component["_failure"] = self._missing_data(component["Specification"])
        return component

    def delete_inference_component(self, params: dict[str, Any]) -> dict[str, Any]:
        component = self._component(params["InferenceComponentName"])
        name = component["InferenceComponentName"]
        if any(_base(other) == name for other in self._components()):
            raise ApiError("ValidationException", f"Inference component {name} still has adapters")
        component.update(InferenceComponentStatus="Deleting", _settles_at=time.time() + SETTLE_S)
        return {}

    def list_inference_components(self, params: dict[str, Any]) -> dict[str, Any]:
        of, status = params.get("EndpointNameEquals"), params.get("StatusEquals")
        return {
            "InferenceComponents": [
                component
                for component in self._components()
                if of in (None, component["EndpointName"])
                and status in (None, component["InferenceComponentStatus"])
            ]
        }

    def _components(self) -> list[dict[str, Any]]:
        return [found for name in list(self.components) if (found := self._known_component(name)) is not None]

    def _component(self, name: str) -> dict[str, Any]:
        found = self._known_component(name)
        if found is None:
            raise ApiError("ValidationException", f"Could not find inference component {name}.")
        return found

    def _known_component(self, name: str) -> dict[str, Any] | None:
        component = self.components.get(name)
        if component is None or time.time() < component["_settles_at"]:
            return component
        if component["InferenceComponentStatus"] == "Deleting":
            del self.components[name]
            return None
        failure = component["_failure"]
        component["InferenceComponentStatus"] = "Failed" if failure else "InService"
        component["FailureReason"] = failure
        return component

    def _check_component(self, params: dict[str, Any]) -> None:
        specification = params["Specification"]
        base = specification.get("BaseInferenceComponentName")
        if base is None:
            _find(self.models, "Model", specification["ModelName"])
            if not {"VariantName", "RuntimeConfig"} <= params.keys():
                raise ApiError("ValidationException", "A component needs a VariantName and a RuntimeConfig")
            return
        if self._component(base)["InferenceComponentStatus"] != "InService":
            raise ApiError("ValidationException", f"The base inference component {base} is not in service")
        if "ComputeResourceRequirements" in specification or "RuntimeConfig" in params:
            raise ApiError("ValidationException", "An adapter has the resources and copies of its base")

    def _missing_data(self, specification: dict[str, Any]) -> str | None:
        """Why a component that would start has to fail: its data are not there."""
        if "BaseInferenceComponentName" in specification:
            url = specification["Container"]["ArtifactUrl"]
        else:
            container = _find(self.models, "Model", specification["ModelName"])["PrimaryContainer"]
            url = container["ModelDataSource"]["S3DataSource"]["S3Uri"]
        bucket, _, key = url.removeprefix("s3://").partition("/")
        objects = s3._buckets.get(bucket, {}).get("objects", {})
        there = key in objects or (key.endswith("/") and any(name.startswith(key) for name in objects))
        return None if there else f"There is nothing at {url}"


def _base(component: dict[str, Any]) -> str | None:
    return component["Specification"].get("BaseInferenceComponentName")


def _make(held: AccountRegionScopedDict, kind: str, params: dict[str, Any]) -> dict[str, Any]:
    name = params[f"{kind}Name"]
    if name in held:
        raise ApiError("ValidationException", f"Cannot create already existing {kind} {name}")
    resource = "inference-component" if kind == "InferenceComponent" else kind.lower()
    made = arn("sagemaker", f"{resource}/{name}")
    held[name] = {**params, f"{kind}Arn": made, "CreationTime": time.time()}
    return {f"{kind}Arn": made}


def _find(held: AccountRegionScopedDict, kind: str, name: str) -> dict[str, Any]:
    if name not in held:
        raise ApiError("ValidationException", f'Could not find {kind} "{name}".')
    return held[name]


class _SageMaker(Protocol):
    """What the resource types need of the service."""

    def call(self, name: str, params: dict[str, Any]) -> dict[str, Any]: ...

    def _component(self, name: str) -> dict[str, Any]: ...

    def _known_component(self, name: str) -> dict[str, Any] | None: ...


def register(sagemaker: _SageMaker) -> None:
    """AWS::SageMaker::Model, EndpointConfig, Endpoint and InferenceComponent."""
    for kind in ("Model", "EndpointConfig", "Endpoint"):
        _register_named(sagemaker, kind)

    def settle(name: str) -> None:
        def done() -> bool:
            found = sagemaker._component(name)
            if found["InferenceComponentStatus"] == "Failed":
                raise ApiError("NotStabilized", found["FailureReason"])
            return found["InferenceComponentStatus"] == "InService"

        wait_until(done, 60, name)

    def create(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
        params = models.from_template("sagemaker", "CreateInferenceComponent", properties)
        made = sagemaker.call("CreateInferenceComponent", params)
        try:
            settle(params["InferenceComponentName"])
        except ApiError:
            delete(made["InferenceComponentArn"], properties)
            raise
        return made["InferenceComponentArn"], made

    def update(
        component_arn: str, old: dict[str, Any], new: dict[str, Any], stack: str
    ) -> tuple[str, dict[str, Any]]:
        name = old["InferenceComponentName"]
        if new["InferenceComponentName"] != name:
            # What AWS does here is not known; CloudFormation's reference only says that nothing is replaced.
            raise ApiError("ValidationException", f"Inference component {name} cannot be renamed")
        changed = {
            key: new[key] for key in ("Specification", "RuntimeConfig") if new.get(key) != old.get(key)
        }
        if changed:
            params = models.from_template("sagemaker", "UpdateInferenceComponent", changed)
            sagemaker.call("UpdateInferenceComponent", {**params, "InferenceComponentName": name})
            settle(name)
        return component_arn, {"InferenceComponentArn": component_arn}

    def delete(component_arn: str, properties: dict[str, Any]) -> None:
        name = component_arn.rpartition("/")[2]
        sagemaker.call("DeleteInferenceComponent", {"InferenceComponentName": name})
        wait_until(lambda: sagemaker._known_component(name) is None, 60, name)

    cloudformation.register("AWS::SageMaker::InferenceComponent", create, delete, update)


def _register_named(sagemaker: _SageMaker, kind: str) -> None:
    """A type that is known by a name, which CloudFormation makes where the template gives none."""

    def create(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
        params = models.from_template("sagemaker", f"Create{kind}", properties)
        params.setdefault(f"{kind}Name", cloudformation.physical_name(stack, logical_id, 63))
        made = sagemaker.call(f"Create{kind}", params)
        return made[f"{kind}Arn"], {**made, f"{kind}Name": params[f"{kind}Name"]}

    def update(
        made_arn: str, old: dict[str, Any], new: dict[str, Any], stack: str
    ) -> tuple[str, dict[str, Any]]:
        name = made_arn.rpartition("/")[2]
        params = {"EndpointName": name, "EndpointConfigName": new["EndpointConfigName"]}
        sagemaker.call("UpdateEndpoint", params)
        return made_arn, {"EndpointArn": made_arn, "EndpointName": name}

    def delete(made_arn: str, properties: dict[str, Any]) -> None:
        sagemaker.call(f"Delete{kind}", {f"{kind}Name": made_arn.rpartition("/")[2]})

    if kind == "Endpoint":
        cloudformation.register(
            "AWS::SageMaker::Endpoint", create, delete, update, replace_on=("EndpointName",)
        )
    else:
        replaced = {
            "Model": ("ModelName", "PrimaryContainer", "ExecutionRoleArn"),
            "EndpointConfig": ("ProductionVariants", "ExecutionRoleArn", "EnableNetworkIsolation"),
        }
        cloudformation.register(f"AWS::SageMaker::{kind}", create, delete, replace_on=replaced[kind])
