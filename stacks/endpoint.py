"""Ray dashboards under a domain of your own: load balancer, DNS records, Spaces, and the endpoint operator.

Off unless the settings have a `[domain]`. The order is AWS's: each part needs those before it, and on destroy
the load balancer goes while its controller still runs.
"""

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.base import SkypodStack
from stacks.charts import chart
from stacks.cluster_access import pod_identity, pod_role
from stacks.eks import EksStack, addon
from stacks.environment import Environment
from stacks.load_balancing import controller_statements
from stacks.manifests.storage import ENDPOINT_NAMESPACE
from stacks.names import Names
from stacks.network import NetworkStack
from stacks.operators import OperatorsStack
from stacks.optional import Domain

_CONTROLLER = "aws-load-balancer-controller"
_SPACES_ROLES = {
    "jupyter-k8s-controller-manager": ("SpacesController", "AmazonSageMakerSpacesControllerPolicy"),
    "jupyter-k8s-authmiddleware": ("SpacesRouter", "AmazonSageMakerSpacesRouterPolicy"),
}


class EndpointStack(SkypodStack):
    """Signed links to dashboards and jobs for people outside the cluster, who need no port-forward then."""

    part = "endpoint"
    summary = "Ray endpoint operator with what it stands on: load balancer, DNS records and Spaces"

    def __init__(
        self,
        scope: Construct,
        environment: Environment,
        names: Names,
        *,
        domain: Domain,
        network: NetworkStack,
        eks_stack: EksStack,
        operators: OperatorsStack,
    ):
        super().__init__(scope, environment, names)
        self.add_stack_dependency(operators)
        self._eks_stack = eks_stack
        certificates = addon(self, "CertManager", "cert-manager", eks_stack.cluster)
        balancing = self._load_balancer_controller(network)
        records = self._external_dns(domain)
        spaces = self._spaces(domain)
        spaces.node.add_dependency(certificates, balancing, records)
        self._ray_endpoints(domain).node.add_dependency(spaces)
        self.emit(ray_domain=domain.name)

    def _load_balancer_controller(self, network: NetworkStack) -> cdk.CustomResource:
        vpc_id = network.vpc.vpc_id
        identity = pod_identity(
            self,
            "LoadBalancing",
            cluster=self._eks_stack.cluster,
            namespace="kube-system",
            service_account=_CONTROLLER,
            description="Load balancer controller: load balancers of this cluster and their groups",
            statements=controller_statements(self.names, vpc_id),
        )
        release = chart(
            self,
            "LoadBalancerController",
            self._eks_stack.charts,
            release=_CONTROLLER,
            namespace="kube-system",
            source=self.settings.charts.load_balancer_repository,
            chart_path=_CONTROLLER,
            version=self.settings.charts.load_balancer_version,
            values={
                "clusterName": self.names.cluster,
                # HyperPod nodes have no instance metadata for pods, and would answer for AWS's own account.
                "region": self.names.region,
                "vpcId": vpc_id,
                # Only what names the controller gets a load balancer; Ray's services do not.
                "enableServiceMutatorWebhook": False,
                "enableShield": False,
                "enableWaf": False,
                "enableWafv2": False,
                "serviceAccount": {"create": True, "name": _CONTROLLER},
            },
        )
        release.node.add_dependency(identity)
        return release

    def _external_dns(self, domain: Domain) -> Construct:
        role = pod_role(
            self,
            "RecordsRole",
            cluster_arn=self._eks_stack.cluster.attr_arn,
            description="external-dns: records of one zone",
        )
        zone = f"arn:aws:route53:::hostedzone/{domain.hosted_zone_id}"
        for actions, resource in (
            (["route53:ChangeResourceRecordSets", "route53:ListResourceRecordSets"], zone),
            (["route53:ListHostedZones"], "*"),
        ):
            role.add_to_policy(iam.PolicyStatement(actions=actions, resources=[resource]))
        return addon(
            self,
            "ExternalDns",
            "external-dns",
            self._eks_stack.cluster,
            values={
                "domainFilters": [domain.name],
                # Otherwise records outlive what they point at; the owner keeps others' records out of it.
                "policy": "sync",
                "txtOwnerId": self.names.cluster,
            },
            roles={"external-dns": role},
        )

    def _spaces(self, domain: Domain) -> Construct:
        key = self.key("SpacesKey", "signs links to Spaces")
        roles = {}
        for account, (who, policy) in _SPACES_ROLES.items():
            roles[account] = role = pod_role(
                self,
                f"{who}Role",
                cluster_arn=self._eks_stack.cluster.attr_arn,
                description=f"Spaces: {account}",
            )
            role.add_managed_policy(iam.ManagedPolicy.from_aws_managed_policy_name(policy))
        return addon(
            self,
            "Spaces",
            "amazon-sagemaker-spaces",
            self._eks_stack.cluster,
            values={
                "jupyter-k8s": {"workspacePodWatching": {"enable": True}},
                "jupyter-k8s-aws-hyperpod": {
                    "clusterWebUI": {
                        "enabled": True,
                        "domain": domain.name,
                        "awsCertificateArn": domain.certificate_arn,
                        "kmsEncryptionContext": {"enabled": True},
                        "traefik": {"shouldInstall": True},
                        "auth": {"kmsKeyId": key.key_arn},
                        "alb": {"scheme": domain.scheme},
                    }
                },
                "rayIntegration": {"enabled": True},
            },
            roles=roles,
        )

    def _ray_endpoints(self, domain: Domain) -> cdk.CustomResource:
        key = self.key("RayKey", "signs links to Ray dashboards")
        identity = pod_identity(
            self,
            "RayLinks",
            cluster=self._eks_stack.cluster,
            namespace=ENDPOINT_NAMESPACE,
            service_account="hyperpod-ray-endpoint-operator-jwt-rotator",
            description="Ray endpoint operator: keys that sign links",
            statements=[iam.PolicyStatement(actions=["kms:GenerateDataKey"], resources=[key.key_arn])],
        )
        charts = self.settings.charts
        release = chart(
            self,
            "RayEndpoints",
            self._eks_stack.charts,
            release="hyperpod-ray-endpoint-operator",
            namespace=ENDPOINT_NAMESPACE,
            source=charts.hyperpod_repository,
            chart_path="helm_chart/HyperPodHelmChart/charts/hyperpod-ray-endpoint-operator",
            version=charts.hyperpod_revision,
            values={
                "region": self.names.region,
                "domain": domain.name,
                # A text, which the chart insists on. Clusters ask for their link with an annotation.
                "manager": {"enableEndpointsByDefault": "false"},
                "kmsKeyArn": key.key_arn,
            },
        )
        release.node.add_dependency(identity)
        return release
