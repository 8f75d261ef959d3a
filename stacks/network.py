"""The VPC: two small private subnets for the EKS control plane and one large one for the nodes and Lustre."""

from ipaddress import IPv4Network
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from stacks.base import SkypodStack
from stacks.environment import Environment
from stacks.names import Names

# Lustre's own ports; the rule for all traffic covers them, but FSx looks for them by number.
_LUSTRE_PORTS = (ec2.Port.tcp(988), ec2.Port.tcp_range(1018, 1023))
# What nodes, pods and our own tools call all day: images, roles, logs, the control planes, metrics.
_ENDPOINTS = {
    "EcrApi": "ecr.api",
    "EcrDocker": "ecr.dkr",
    "Sts": "sts",
    "Logs": "logs",
    "Ec2": "ec2",
    "Eks": "eks",
    "EksAuth": "eks-auth",
    "SageMakerApi": "sagemaker.api",
    "Prometheus": "aps-workspaces",
}


class NetworkStack(SkypodStack):
    """Nodes and file system share one zone: EFA and Lustre traffic must not cross zones."""

    part = "network"
    summary = "VPC, subnets, one NAT gateway, S3 endpoint and the cluster's security groups"

    def __init__(self, scope: Construct, environment: Environment, names: Names):
        super().__init__(scope, environment, names)
        network = environment.network
        nat = ec2.NatProvider.gateway()
        self.vpc = ec2.Vpc(
            self,
            "Vpc",
            vpc_name=names.prefix,
            ip_addresses=ec2.IpAddresses.cidr(network.cidr),
            availability_zones=list(network.zones),
            nat_gateways=1,
            nat_gateway_provider=nat,
            # The restriction would need one of CDK's own functions; nothing here uses that group.
            restrict_default_security_group=False,
            subnet_configuration=[
                ec2.SubnetConfiguration(
                    name="public",
                    subnet_type=ec2.SubnetType.PUBLIC,
                    cidr_mask=network.control_plane_prefix_bits,
                    map_public_ip_on_launch=False,
                ),
                ec2.SubnetConfiguration(
                    name="control-plane",
                    subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS,
                    cidr_mask=network.control_plane_prefix_bits,
                ),
            ],
        )
        self.control_plane_subnets = self.vpc.private_subnets
        # The VPC hands out its small subnets from the front, so the nodes take the last block.
        node_block = list(IPv4Network(network.cidr).subnets(new_prefix=network.node_prefix_bits))[-1]
        self.node_subnet = ec2.PrivateSubnet(
            self,
            "Nodes",
            vpc_id=self.vpc.vpc_id,
            availability_zone=network.zones[0],
            cidr_block=str(node_block),
            map_public_ip_on_launch=False,
        )
        self.node_subnet.add_default_nat_route(nat.configured_gateways[0].gateway_id)
        self.vpc.add_gateway_endpoint(
            "S3",
            service=ec2.GatewayVpcEndpointAwsService.S3,
            subnets=[ec2.SubnetSelection(subnets=[self.node_subnet, *self.control_plane_subnets])],
        )
        for subnet in (self.node_subnet, *self.control_plane_subnets):
            cdk.Tags.of(subnet).add("kubernetes.io/role/internal-elb", "1")
            cdk.Tags.of(subnet).add(f"kubernetes.io/cluster/{names.cluster}", "shared")
        if environment.domain and environment.domain.scheme == "internet-facing":
            for subnet in self.vpc.public_subnets:
                cdk.Tags.of(subnet).add("kubernetes.io/role/elb", "1")

        self.cluster_group = ec2.SecurityGroup(
            self,
            "ClusterGroup",
            vpc=self.vpc,
            description="Nodes, control plane and Lustre among themselves",
            allow_all_outbound=False,
        )
        for port in (ec2.Port.all_traffic(), *_LUSTRE_PORTS):
            self.cluster_group.add_ingress_rule(self.cluster_group, port, "from the cluster")
            self.cluster_group.add_egress_rule(self.cluster_group, port, "to the cluster")
        if environment.domain:
            # The load balancer controller opens the one group of a pod that has this tag.
            cdk.Tags.of(self.cluster_group).add(f"kubernetes.io/cluster/{names.cluster}", "shared")
        # Apart from the cluster's own group: EFA's health check may fail on a group open to 0.0.0.0/0.
        self.egress_group = ec2.SecurityGroup(
            self,
            "EgressGroup",
            vpc=self.vpc,
            description="Nodes to the internet through NAT",
            allow_all_outbound=True,
        )
        if network.interface_endpoints:
            self._interface_endpoints()
        if network.flow_logs:
            self._flow_logs()
        self.emit(vpc_id=self.vpc.vpc_id)

    @property
    def cluster_placement(self) -> dict[str, Any]:
        """Where a function or build must be to reach a control plane that answers inside the VPC only."""
        return {
            "vpc": self.vpc,
            "subnets": ec2.SubnetSelection(subnets=self.control_plane_subnets),
            "security_groups": [self.cluster_group, self.egress_group],
        }

    def _interface_endpoints(self) -> None:
        group = ec2.SecurityGroup(
            self,
            "EndpointGroup",
            vpc=self.vpc,
            description="Endpoints of AWS services, for whoever may go out",
            allow_all_outbound=False,
        )
        group.add_ingress_rule(self.egress_group, ec2.Port.tcp(443), "from nodes and tools")
        for construct_id, service in _ENDPOINTS.items():
            self.vpc.add_interface_endpoint(
                construct_id,
                service=ec2.InterfaceVpcEndpointAwsService(service),
                subnets=ec2.SubnetSelection(subnets=self.control_plane_subnets),
                security_groups=[group],
                open=False,
            )

    def _flow_logs(self) -> None:
        log_group = self.log_group("FlowLog", self.names.log_group("flow-logs"))
        self.vpc.add_flow_log("Flows", destination=ec2.FlowLogDestination.to_cloud_watch_logs(log_group))
