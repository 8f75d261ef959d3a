"""How long AWS takes to make a thing, in minutes: what was published, and estimates where nothing was."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Duration:
    """Minutes from the request to the answer that it is done."""

    minutes: float
    source: str


_WORKSHOP = "AWS's workshop on HyperPod with EKS, read November 2026"
_ESTIMATE = "estimate; not published"

DURATIONS = {
    # Published together as 15 minutes; the share of the add-ons is an estimate.
    "AWS::EKS::Cluster": Duration(12, f"{_WORKSHOP}: EKS with add-ons 15"),
    "AWS::EKS::Addon": Duration(3, f"{_WORKSHOP}: EKS with add-ons 15"),
    "AWS::FSx::FileSystem": Duration(10, f"{_WORKSHOP}: FSx for Lustre 10"),
    "Custom::Chart": Duration(5, f"{_WORKSHOP}: Helm 5"),
    # Published together as 15 to 25 minutes. Nodes come after the cluster calls itself created.
    "AWS::SageMaker::Cluster": Duration(2, f"{_WORKSHOP}: HyperPod 15 to 25, the middle"),
    "Custom::NodesJoined": Duration(18, f"{_WORKSHOP}: HyperPod 15 to 25, the middle"),
    "AWS::SageMaker::Endpoint": Duration(5, _ESTIMATE),
    "AWS::SageMaker::InferenceComponent": Duration(10, "estimate for the base; adapters take less"),
    "AWS::FSx::DataRepositoryAssociation": Duration(5, _ESTIMATE),
    "AWS::Grafana::Workspace": Duration(3, _ESTIMATE),
    "AWS::SageMaker::Domain": Duration(3, _ESTIMATE),
    "Custom::ComputeQuota": Duration(3, _ESTIMATE),
    "AWS::EC2::NatGateway": Duration(2, _ESTIMATE),
    "AWS::EC2::VPCEndpoint": Duration(2, _ESTIMATE),
    "AWS::APS::Workspace": Duration(1, _ESTIMATE),
}
OTHER = Duration(0.25, _ESTIMATE)
STACK = Duration(0.5, "estimate: change set, and the CLI's look every five seconds")


def of(resource_type: str) -> Duration:
    """The duration of a CloudFormation resource type; a quarter of a minute for what is quick."""
    return DURATIONS.get(resource_type, OTHER)
