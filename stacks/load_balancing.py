"""What the AWS Load Balancer Controller may do: its published policy, narrowed to this account and VPC.

Left out is what the chart's values switch off (Shield, WAF) and what we do not use (Cognito, address pools).
"""

from aws_cdk import aws_iam as iam

from stacks.names import Names

# The controller marks what it makes with this tag, and may change only what carries it.
_TAG = "elbv2.k8s.aws/cluster"
_DESCRIBE = (
    "ec2:DescribeAccountAttributes",
    "ec2:DescribeAvailabilityZones",
    "ec2:DescribeInstances",
    "ec2:DescribeInternetGateways",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeRouteTables",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeTags",
    "ec2:DescribeVpcs",
    "elasticloadbalancing:DescribeListenerAttributes",
    "elasticloadbalancing:DescribeListenerCertificates",
    "elasticloadbalancing:DescribeListeners",
    "elasticloadbalancing:DescribeLoadBalancerAttributes",
    "elasticloadbalancing:DescribeLoadBalancers",
    "elasticloadbalancing:DescribeRules",
    "elasticloadbalancing:DescribeSSLPolicies",
    "elasticloadbalancing:DescribeTags",
    "elasticloadbalancing:DescribeTargetGroupAttributes",
    "elasticloadbalancing:DescribeTargetGroups",
    "elasticloadbalancing:DescribeTargetHealth",
)
_CHANGE = (
    "elasticloadbalancing:DeleteLoadBalancer",
    "elasticloadbalancing:DeleteTargetGroup",
    "elasticloadbalancing:ModifyLoadBalancerAttributes",
    "elasticloadbalancing:ModifyTargetGroup",
    "elasticloadbalancing:ModifyTargetGroupAttributes",
    "elasticloadbalancing:SetIpAddressType",
    "elasticloadbalancing:SetSecurityGroups",
    "elasticloadbalancing:SetSubnets",
)
_LISTENERS = (
    "elasticloadbalancing:AddListenerCertificates",
    "elasticloadbalancing:CreateListener",
    "elasticloadbalancing:CreateRule",
    "elasticloadbalancing:DeleteListener",
    "elasticloadbalancing:DeleteRule",
    "elasticloadbalancing:ModifyListener",
    "elasticloadbalancing:ModifyListenerAttributes",
    "elasticloadbalancing:ModifyRule",
    "elasticloadbalancing:RemoveListenerCertificates",
    "elasticloadbalancing:SetRulePriorities",
)
_TAGGING = ("elasticloadbalancing:AddTags", "elasticloadbalancing:RemoveTags")
_RULES = ("ec2:AuthorizeSecurityGroupIngress", "ec2:RevokeSecurityGroupIngress")


def controller_statements(names: Names, vpc_id: str) -> list[iam.PolicyStatement]:
    """The statements of the controller's role."""
    ec2 = f"arn:aws:ec2:{names.region}:{names.account}"
    elb = f"arn:aws:elasticloadbalancing:{names.region}:{names.account}"
    group = f"{ec2}:security-group/*"
    balancers = [f"{elb}:loadbalancer/app/*", f"{elb}:loadbalancer/net/*", f"{elb}:targetgroup/*"]
    listeners = [f"{elb}:listener/*", f"{elb}:listener-rule/*", *balancers[:2]]
    asked = {"Null": {f"aws:RequestTag/{_TAG}": "false"}}
    owned = {"Null": {f"aws:ResourceTag/{_TAG}": "false"}}
    in_vpc = {"ArnEquals": {"ec2:Vpc": f"{ec2}:vpc/{vpc_id}"}}
    statements = [
        (_DESCRIBE, ["*"], {}),
        # Rules on the nodes' own group, which the controller did not make.
        (_RULES, [group], in_vpc),
        (["ec2:CreateSecurityGroup"], [group, f"{ec2}:vpc/{vpc_id}"], {}),
        (["ec2:CreateTags"], [group], {**asked, "StringEquals": {"ec2:CreateAction": "CreateSecurityGroup"}}),
        (["ec2:CreateTags", "ec2:DeleteTags", "ec2:DeleteSecurityGroup"], [group], owned),
        (
            ["elasticloadbalancing:CreateLoadBalancer", "elasticloadbalancing:CreateTargetGroup"],
            balancers,
            asked,
        ),
        (_TAGGING, balancers, owned),
        (
            ["elasticloadbalancing:AddTags"],
            balancers,
            {
                **asked,
                "StringEquals": {
                    "elasticloadbalancing:CreateAction": ["CreateTargetGroup", "CreateLoadBalancer"]
                },
            },
        ),
        (_CHANGE, balancers, owned),
        ((*_LISTENERS, *_TAGGING), listeners, {}),
        (
            ["elasticloadbalancing:RegisterTargets", "elasticloadbalancing:DeregisterTargets"],
            balancers[2:],
            {},
        ),
        (
            ["iam:CreateServiceLinkedRole"],
            [
                f"arn:aws:iam::{names.account}:role/aws-service-role/elasticloadbalancing.amazonaws.com/"
                "AWSServiceRoleForElasticLoadBalancing"
            ],
            {"StringEquals": {"iam:AWSServiceName": "elasticloadbalancing.amazonaws.com"}},
        ),
    ]
    return [
        iam.PolicyStatement(actions=list(actions), resources=resources, conditions=conditions)
        for actions, resources, conditions in statements
    ]
