"""What cdk-nag's AwsSolutions rules find in the stacks and why it stays: the security reviewer's list.

`tests/policies/test_cdk_nag.py` fails for a finding that is not here, and for a line here without a finding.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Acknowledged:
    """A finding of `rule` at the constructs `where`, both as shell patterns, and why it is accepted.

    `where` starts with the stack's short name. `detail` is what rules on IAM put in brackets.
    """

    rule: str
    where: str
    reason: str
    detail: str = ""

    def covers(self, rule: str, where: str, detail: str) -> bool:
        return (
            rule == self.rule
            and fnmatchcase(where, self.where)
            and (fnmatchcase(detail, self.detail) if self.detail else not detail)
        )


_NO_RESOURCES = "AWS has no narrower resource for these actions; tests/policies/test_iam.py holds the list"
_BUILD_OWN = "CDK's own grant to a build: its sources in the bootstrap bucket, its log, its reports"
_PREFIX = "Objects of one bucket, by prefix where the role is a pod's; object names are not known before"
_MADE_LATER = "Names that AWS gives when the thing is made; account, region and kind are fixed"

ACKNOWLEDGED = (
    Acknowledged(
        "AwsSolutions-VPC7",
        "network/Vpc/Resource",
        "network.flow_logs turns them on, and production has them; experiments need not pay by the gigabyte",
    ),
    Acknowledged(
        "AwsSolutions-EKS1",
        "eks/Cluster",
        "The API asks for IAM authentication; eks.public_access_cidrs narrows it and "
        "eks.public_access = false, as in production, closes it",
    ),
    Acknowledged(
        "AwsSolutions-S1",
        "storage/*/Resource",
        "Only this account's roles reach the buckets, over TLS. CloudTrail's data events record who "
        "read what; a bucket of access logs would need one of its own and outlive the environment",
    ),
    Acknowledged(
        "AwsSolutions-CB4",
        "*",
        "The builds have no artifacts and no cache in S3, which is all that the key would encrypt",
    ),
    Acknowledged(
        "AwsSolutions-L1",
        "*",
        "Functions run on the Python that their tests run on; 3.12 is supported by Lambda until 2028",
    ),
    Acknowledged(
        "AwsSolutions-IAM4",
        "*/ServiceRole/Resource",
        "Lambda's own policy for writing its log, and for the network interfaces of a function in the VPC",
        "Policy::arn:<AWS::Partition>:iam::aws:policy/service-role/AWSLambda*ExecutionRole",
    ),
    Acknowledged(
        "AwsSolutions-IAM4",
        "eks/ClusterRole/Resource",
        "EKS asks for this policy by name and extends it with its releases",
        "*/AmazonEKSClusterPolicy",
    ),
    Acknowledged(
        "AwsSolutions-IAM4",
        "hyperpod/NodeRole/Resource",
        "HyperPod asks for this policy by name; the nodes' further rights are ours and narrow",
        "*/AmazonSageMakerClusterInstanceRolePolicy",
    ),
    Acknowledged(
        "AwsSolutions-IAM4",
        "endpoint/Spaces*Role/Resource",
        "The add-on asks for these policies by name, and does not publish what is in them",
        "*/AmazonSageMakerSpaces*Policy",
    ),
    Acknowledged("AwsSolutions-IAM5", "*", _NO_RESOURCES, "Resource::[*]"),
    Acknowledged("AwsSolutions-IAM5", "images/*Build/Role/*", _BUILD_OWN, "Action::s3:*"),
    Acknowledged("AwsSolutions-IAM5", "*", _BUILD_OWN, "Resource::arn:aws:codebuild:*:report-group/<*>-[*]"),
    Acknowledged("AwsSolutions-IAM5", "*", _BUILD_OWN, "Resource::arn:aws:logs:*:/aws/codebuild/<*>:[*]"),
    Acknowledged(
        "AwsSolutions-IAM5",
        "eks/Charts/BuildRole/*",
        "CDK's own grant to a build in the VPC; its condition names the subnets",
        "Resource::arn:<AWS::Partition>:ec2:*:network-interface/[*]",
    ),
    Acknowledged(
        "AwsSolutions-IAM5",
        "access/*",
        "A stack's ARN ends with an id that CloudFormation gives; the stack's name is fixed",
        "Resource::arn:aws:cloudformation:*:stack/skypod-*/[*]",
    ),
    *(
        Acknowledged("AwsSolutions-IAM5", where, _PREFIX, f"Resource::*{bucket}*.Arn>/[*]")
        for where, bucket in (
            ("storage/BucketObjects/*", "Artifacts"),
            ("storage/BucketObjects/*", "Lifecycle"),
        )
    ),
    *(
        Acknowledged("AwsSolutions-IAM5", where, _PREFIX, "Resource::skypod-*-storage:Exports*/*[*]")
        for where in ("access/*", "operators/TrainingRole/*", "serving/*", "hyperpod/NodeRole/*")
    ),
    Acknowledged(
        "AwsSolutions-IAM5",
        "serving/Promote/*",
        "A base has a group of its own, named after its digest, and a version for each adapter",
        "Resource::arn:aws:sagemaker:*:model-package*/skypod-*-base-[*]*",
    ),
    Acknowledged(
        "AwsSolutions-IAM5",
        "serving/Promote/*",
        "Components are named after adapters, and a stack's ARN ends with an id that CloudFormation gives",
        "Resource::arn:aws:*:*skypod-*-inference*[*]",
    ),
    Acknowledged("AwsSolutions-IAM5", "inference/Role/*", _PREFIX, "Resource::*/[*]*"),
    Acknowledged(
        "AwsSolutions-IAM5",
        "inference/Role/*",
        "Components are named after adapters and streams by SageMaker; the endpoint's name is fixed",
        "Resource::arn:aws:logs:*skypod-*-inference*[*]",
    ),
    Acknowledged("AwsSolutions-IAM5", "hyperpod/NodeRole/*", _MADE_LATER, "Resource::arn:aws:ec2:*/[*]"),
    Acknowledged(
        "AwsSolutions-IAM5",
        "hyperpod/NodeRole/*",
        "Health agent and device plugins come from AWS's own accounts, one for each region; pulling only",
        "Resource::arn:aws:ecr:*:[*]:repository/[*]",
    ),
    Acknowledged(
        "AwsSolutions-IAM5",
        "hyperpod/NodeWait/*",
        "The function hands a long wait on to itself, and a role cannot refer to the function that has it",
        "Resource::arn:aws:lambda:*:function:skypod-*-hyperpod-NodeWait[*]",
    ),
    Acknowledged(
        "AwsSolutions-IAM5",
        "collector/CollectorRole/*",
        "HyperPod names the cluster's log groups by an id that it gives; the add-on makes them",
        "Resource::arn:aws:logs:*:log-group:/aws/sagemaker/Clusters/[*]",
    ),
    *(
        Acknowledged(
            "AwsSolutions-IAM5", "endpoint/LoadBalancingRole/*", _MADE_LATER, f"Resource::arn:aws:{of}:*"
        )
        for of in ("ec2", "elasticloadbalancing")
    ),
    Acknowledged("AwsSolutions-IAM5", "governance/ComputeQuota/*", _MADE_LATER, "*:compute-quota/[*]"),
    *(
        Acknowledged("AwsSolutions-IAM5", where, _MADE_LATER, detail)
        for where, detail in (
            ("studio/Users/*", "Resource::arn:aws:eks:*:addon/skypod-*/[*]/[*]"),
            ("studio/Users/*", "Resource::arn:aws:sagemaker:*/[*]"),
            ("studio/OpenStudio/*", "Resource::arn:aws:sagemaker:*:user-profile/<*>/[*]"),
        )
    ),
)
