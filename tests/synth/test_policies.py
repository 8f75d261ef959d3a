"""Removal policies, and what the roles may do."""

import json
from collections.abc import Iterator

import pytest

from tests.synth.conftest import Synthesized

STATEFUL = {
    "AWS::APS::RuleGroupsNamespace",
    "AWS::APS::Workspace",
    "AWS::ECR::Repository",
    "AWS::FSx::DataRepositoryAssociation",
    "AWS::FSx::FileSystem",
    "AWS::Grafana::Workspace",
    "AWS::KMS::Key",
    "AWS::Logs::LogGroup",
    "AWS::S3::Bucket",
}
DATA = {
    "AWS::FSx::DataRepositoryAssociation",
    "AWS::FSx::FileSystem",
    "AWS::KMS::Key",
    "AWS::S3::Bucket",
}


@pytest.mark.parametrize("resource_type", sorted(STATEFUL))
def test_every_stateful_resource_states_what_happens_to_it(paper: Synthesized, resource_type):
    found = paper.resources(resource_type)
    assert found
    for part, logical_id, resource in found:
        assert resource.get("DeletionPolicy") == "Delete", f"{part}/{logical_id}"
        assert resource.get("UpdateReplacePolicy") == "Delete", f"{part}/{logical_id}"


@pytest.mark.parametrize("resource_type", sorted(DATA))
def test_data_can_be_kept(keeping: Synthesized, resource_type):
    for part, logical_id, resource in keeping.resources(resource_type):
        if part in ("guardrails", "eks"):  # keys of alerts and of the cluster's secrets, which end with it
            continue
        assert resource["DeletionPolicy"] == "Retain", logical_id
    for _, logical_id, contents in keeping.resources("Custom::BucketObjects"):
        assert contents["Properties"]["EmptyOnDelete"] == "false", logical_id


def test_buckets_are_emptied_before_they_are_deleted_and_after_the_export_ended(paper: Synthesized):
    contents = {
        logical_id: json.dumps(resource["Properties"]["Bucket"])
        for _, logical_id, resource in paper.resources("Custom::BucketObjects")
    }
    for _, logical_id, _ in paper.resources("AWS::S3::Bucket"):
        assert any(logical_id in bucket for bucket in contents.values()), logical_id
    ((part, _, _),) = paper.resources("AWS::FSx::DataRepositoryAssociation")
    assert {part for part, _, _ in paper.resources("Custom::BucketObjects")} == {"storage"}
    assert "storage" in paper.after[part]


def test_buckets_are_private_versioned_and_refuse_plain_http(paper: Synthesized):
    for _, logical_id, bucket in paper.resources("AWS::S3::Bucket"):
        properties = bucket["Properties"]
        assert all(properties["PublicAccessBlockConfiguration"].values()), logical_id
        assert properties["VersioningConfiguration"] == {"Status": "Enabled"}, logical_id
    policies = json.dumps([p for _, _, p in paper.resources("AWS::S3::BucketPolicy")])
    assert policies.count("aws:SecureTransport") == len(paper.resources("AWS::S3::Bucket"))


def _statements(paper: Synthesized) -> Iterator[tuple[str, dict]]:
    for kind in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"):
        for part, logical_id, resource in paper.resources(kind):
            for statement in resource["Properties"]["PolicyDocument"]["Statement"]:
                yield f"{part}/{logical_id}", statement


def _list(value) -> list:
    return value if isinstance(value, list) else [value]


def test_no_role_may_do_everything_of_a_service(paper: Synthesized):
    # What the CDK itself grants on the bucket of assets and for log groups.
    own = ("s3:GetObject*", "s3:GetBucket*", "s3:List*")
    for where, statement in _statements(paper):
        for action in _list(statement["Action"]):
            assert "*" not in action or action in own, f"{where}: {action}"


def test_serving_reads_only_the_prefix_of_adapters(paper: Synthesized):
    # The right to promote is a policy that no role holds.
    mine = [(where, s) for where, s in _statements(paper) if where.startswith("serving/")]
    statements = [s for where, s in mine if not where.startswith("serving/Promote")]
    (objects,) = [s for s in statements if s["Action"] == "s3:GetObject"]
    (listing,) = [s for s in statements if s["Action"] == "s3:ListBucket"]
    assert len(statements) == 2
    assert json.dumps(objects["Resource"]).endswith('"/adapters/*"]]}')
    assert listing["Condition"] == {"StringLike": {"s3:prefix": ["adapters", "adapters/*"]}}


def test_pod_roles_belong_to_this_cluster_only(paper: Synthesized):
    roles = [
        role["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        for _, _, role in paper.resources("AWS::IAM::Role")
        if "pods.eks.amazonaws.com" in json.dumps(role)
    ]
    assert len(roles) == 4
    for statements in roles:
        for statement in statements:
            assert statement["Condition"]["StringEquals"] == {"aws:SourceAccount": "123456789012"}
            assert "aws:SourceArn" in statement["Condition"]["ArnEquals"]


def test_researchers_are_no_cluster_administrators(paper: Synthesized):
    entries = {
        logical_id: entry["Properties"]["AccessPolicies"]
        for part, logical_id, entry in paper.resources("AWS::EKS::AccessEntry")
        if part == "access"
    }
    for policy in entries["ResearcherEntry"]:
        arn = policy["PolicyArn"]
        assert "ClusterAdmin" not in arn
        if not arn.endswith("AmazonSagemakerHyperpodUserClusterPolicy"):
            assert policy["AccessScope"] == {"Type": "namespace", "Namespaces": ["skypod"]}
