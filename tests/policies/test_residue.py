"""The sweep after a destroy looks for every type in the templates, or for what that type ends with."""

from cdk_app import residue

# What ends with another thing that the sweep looks for, and cannot exist without it.
ENDS_WITH = {
    "AWS::APS::RuleGroupsNamespace": "AWS::APS::Workspace",
    "AWS::ApplicationAutoScaling::ScalingPolicy": "AWS::ApplicationAutoScaling::ScalableTarget",
    "AWS::EC2::Route": "AWS::EC2::RouteTable",
    "AWS::EC2::SecurityGroupEgress": "AWS::EC2::SecurityGroup",
    "AWS::EC2::SecurityGroupIngress": "AWS::EC2::SecurityGroup",
    "AWS::EC2::SubnetRouteTableAssociation": "AWS::EC2::Subnet",
    "AWS::EC2::VPCGatewayAttachment": "AWS::EC2::InternetGateway",
    "AWS::EKS::AccessEntry": "AWS::EKS::Cluster",
    "AWS::EKS::Addon": "AWS::EKS::Cluster",
    "AWS::EKS::PodIdentityAssociation": "AWS::EKS::Cluster",
    "AWS::FSx::DataRepositoryAssociation": "AWS::FSx::FileSystem",
    "AWS::IAM::Policy": "AWS::IAM::Role",
    "AWS::Lambda::Permission": "AWS::Lambda::Function",
    "AWS::S3::BucketPolicy": "AWS::S3::Bucket",
    "AWS::SNS::Subscription": "AWS::SNS::Topic",
    "AWS::SNS::TopicPolicy": "AWS::SNS::Topic",
    # Objects of the bucket, releases and objects in the cluster; the wait leaves nothing.
    "Custom::BucketObjects": "AWS::S3::Bucket",
    "Custom::Chart": "AWS::EKS::Cluster",
    "Custom::KubeObjects": "AWS::EKS::Cluster",
    "Custom::NodesJoined": "AWS::SageMaker::Cluster",
    # On a Grafana that is not ours the sweep asks for folder and data source.
    "Custom::GrafanaDashboards": "AWS::Grafana::Workspace",
}


def test_every_type_of_the_templates_is_swept_or_ends_with_one_that_is(both):
    types = {
        resource["Type"]
        for synthesized in both
        for template in synthesized.templates.values()
        for resource in template["Resources"].values()
    }
    assert types - residue.SWEPT.keys() - ENDS_WITH.keys() == set()
    assert residue.SWEPT.keys() | ENDS_WITH.keys() == types, "types that no template has any more"
    assert set(ENDS_WITH.values()) <= residue.SWEPT.keys()


def test_each_swept_type_has_a_finder_that_is_run():
    assert set(residue.SWEPT.values()) <= set(residue._FINDERS)
