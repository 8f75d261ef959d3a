"""What the deployed stacks tell the rest of the project, field by field, and which stack says it.

One table serves both directions: the stacks emit their CloudFormation outputs from it and
`cdk_app.outputs.read` fills the dataclass from it, so neither can drift from the other.
"""

from dataclasses import dataclass, field


def _from(stack: str, default: str | None = None):
    """A field that comes from `stack`; with a default, the stack may leave it out."""
    if default is None:
        return field(metadata={"stack": stack})
    return field(default=default, metadata={"stack": stack})


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Names and addresses of one deployed environment; optional parts are empty strings when off."""

    region: str
    account: str
    namespace: str
    vpc_id: str = _from("network")
    artifacts_bucket: str = _from("storage")
    lifecycle_bucket: str = _from("storage")
    file_system_id: str = _from("lustre")
    file_system_dns: str = _from("lustre")
    file_system_mount_name: str = _from("lustre")
    train_repository_uri: str = _from("images")
    serve_repository_uri: str = _from("images")
    train_build_project: str = _from("images")
    serve_build_project: str = _from("images")
    train_image_tag: str = _from("images")
    serve_image_tag: str = _from("images")
    eks_cluster_name: str = _from("eks")
    eks_cluster_arn: str = _from("eks")
    hyperpod_cluster_name: str = _from("hyperpod")
    hyperpod_cluster_arn: str = _from("hyperpod")
    chart_build_project: str = _from("eks")
    training_service_account: str = _from("operators")
    ray_domain: str = _from("endpoint", "")
    admin_role_arn: str = _from("access")
    researcher_role_arn: str = _from("access")
    prometheus_workspace_id: str = _from("observability")
    prometheus_endpoint: str = _from("observability")
    grafana_workspace_id: str = _from("observability", "")
    grafana_endpoint: str = _from("observability", "")
    dashboards_folder: str = _from("observability", "")
    idle_alarm_name: str = _from("collector")
    studio_domain_id: str = _from("studio", "")
    alerts_topic_arn: str = _from("guardrails")
    budget_name: str = _from("guardrails")
    serving_service_account: str = _from("serving")
    adapters_uri: str = _from("serving")
    inference_endpoint_name: str = _from("inference", "")

    @property
    def adapters_at(self) -> tuple[str, str]:
        """Bucket and prefix of `adapters_uri`."""
        bucket, _, prefix = self.adapters_uri.removeprefix("s3://").partition("/")
        return bucket, prefix


def cloudformation_name(field_name: str) -> str:
    """What a field is called as an output or a parameter: `file_system_id` -> `FileSystemId`."""
    return "".join(part.capitalize() for part in field_name.split("_"))
