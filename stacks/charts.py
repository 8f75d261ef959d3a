"""Helm charts, installed from inside the account by one build project.

Some charts exist only in a git repository; a build can fetch those at a pinned commit, a function cannot.
"""

import json
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_eks as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.base import SkypodStack
from stacks.cluster_access import cluster_admin_entry

_HELM_VERSION = "3.19.0"
_HELM = f"helm-v{_HELM_VERSION}-linux-amd64.tar.gz"

_BUILD_SPEC = {
    "version": "0.2",
    "env": {"shell": "bash"},
    "phases": {
        "install": {
            "commands": [
                f"curl -fsSLO https://get.helm.sh/{_HELM} -fsSLO https://get.helm.sh/{_HELM}.sha256sum",
                f"sha256sum --check {_HELM}.sha256sum",
                f"tar -xzf {_HELM} --strip-components 1 -C /usr/local/bin linux-amd64/helm",
                'aws eks update-kubeconfig --name "$CLUSTER" --region "$AWS_REGION"',
            ]
        },
        "build": {
            "commands": [
                'if [ "$ACTION" = uninstall ]; then'
                ' helm uninstall "$RELEASE" --namespace "$NAMESPACE" --ignore-not-found --wait --timeout 10m;'
                " exit $?; fi\n"
                "set -euo pipefail\n"
                'if [ "$SOURCE_KIND" = git ]; then'
                ' git clone --filter=blob:none "$SOURCE" chart-source;'
                ' git -C chart-source checkout --detach "$VERSION";'
                " git -C chart-source rev-parse HEAD;"
                ' helm dependency update "chart-source/$CHART";'
                ' set -- "chart-source/$CHART";'
                ' else set -- "$CHART" --repo "$SOURCE" --version "$VERSION"; fi\n'
                'printf %s "$VALUES" > values.json\n'
                'helm upgrade --install "$RELEASE" "$@" --namespace "$NAMESPACE" --create-namespace'
                " --values values.json --timeout 10m"
            ]
        },
    },
}


class ChartBuilds(Construct):
    """The build project and the function that runs it for `Custom::Chart` resources of any stack."""

    def __init__(self, stack: SkypodStack, *, cluster: eks.CfnCluster, reach: dict[str, Any]):
        super().__init__(stack, "Charts")
        names = stack.names
        role = iam.Role(self, "BuildRole", assumed_by=iam.ServicePrincipal("codebuild.amazonaws.com"))
        role.add_to_policy(
            iam.PolicyStatement(actions=["eks:DescribeCluster"], resources=[names.eks_cluster_arn])
        )
        entry = cluster_admin_entry(self, "BuildEntry", cluster_name=cluster.ref, principal_arn=role.role_arn)
        self.project = codebuild.Project(
            self,
            "Project",
            project_name=names.chart_build,
            description="Installs and removes Helm charts in the cluster",
            role=role,
            vpc=reach.get("vpc"),
            subnet_selection=reach.get("subnets"),
            security_groups=reach.get("security_groups"),
            build_spec=codebuild.BuildSpec.from_object(_BUILD_SPEC),
            environment=codebuild.BuildEnvironment(
                build_image=codebuild.LinuxBuildImage.STANDARD_7_0,
                compute_type=codebuild.ComputeType.SMALL,
            ),
            environment_variables={
                "CLUSTER": codebuild.BuildEnvironmentVariable(value=names.cluster),
            },
            timeout=cdk.Duration.minutes(20),
            logging=codebuild.LoggingOptions(
                cloud_watch=codebuild.CloudWatchLoggingOptions(
                    log_group=stack.log_group("ChartProjectLog", names.log_group("charts"))
                )
            ),
        )
        self.project.node.add_dependency(entry)
        if reach:
            rule = "CloudFormation-Validate::all_resources_only_where_nothing_is_narrower"
            reason = "CDK's grant to a build in a VPC: its network interface has no name yet"
            cdk.Validations.of(self.project).acknowledge(cdk.Acknowledgment(id=rule, reason=reason))
        function = stack.handler("chart_build", timeout_s=870)
        function.add_to_role_policy(
            iam.PolicyStatement(
                actions=["codebuild:StartBuild", "codebuild:BatchGetBuilds"],
                resources=[self.project.project_arn],
            )
        )
        self.service_token = function.function_arn


def chart(
    stack: SkypodStack,
    construct_id: str,
    builds: ChartBuilds,
    *,
    release: str,
    namespace: str,
    source: str,
    chart_path: str,
    version: str,
    values: dict[str, object],
) -> cdk.CustomResource:
    """A release of a chart at a pinned `version`: from a git repository (.git) or a chart repository."""
    variables = {
        "RELEASE": release,
        "NAMESPACE": namespace,
        "SOURCE_KIND": "git" if source.endswith(".git") else "repository",
        "SOURCE": source,
        "CHART": chart_path,
        "VERSION": version,
        "VALUES": json.dumps(values, sort_keys=True),
    }
    return cdk.CustomResource(
        stack,
        construct_id,
        service_token=builds.service_token,
        resource_type="Custom::Chart",
        properties={
            "Project": builds.project.project_name,
            "Variables": json.dumps(variables, sort_keys=True),
        },
    )
