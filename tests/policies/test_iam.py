"""Every action of a policy exists, and is allowed on all resources only where AWS knows no narrower ones."""

import botocore.session
import pytest
from policy_sentry.querying.actions import get_action_data
from policy_sentry.querying.all import get_all_actions

from tests.policies.conftest import statements

# CDK's own grant on the bucket of assets, and the refusal of plain http.
WILDCARDS = {"s3:GetBucket*", "s3:GetObject*", "s3:List*", "s3:*"}
# Not in the authorization reference of April 2026; operations of AWS's API that are authorized by their name.
BY_OPERATION = {"sagemaker:BatchRebootClusterNodes", "sagemaker:BatchReplaceClusterNodes"}
# Narrower ones exist. CDK grants these to a build in a VPC, and CodeBuild documents them so: the network
# interface has no name yet, and its subnets are in the condition of the permission that follows.
BUILD_IN_VPC = {"ec2:CreateNetworkInterface", "ec2:DeleteNetworkInterface"}


@pytest.fixture(scope="module")
def known() -> set[str]:
    return {action.lower() for action in get_all_actions()}


def test_every_action_exists(both, known):
    for synthesized in both:
        for statement in statements(synthesized):
            for action in set(statement.actions) - WILDCARDS - BY_OPERATION - {"kms:*"}:
                if action.endswith("*"):
                    assert any(one.startswith(action[:-1].lower()) for one in known), (
                        statement.where,
                        action,
                    )
                else:
                    assert action.lower() in known, (statement.where, action)


@pytest.mark.parametrize("action", sorted(BY_OPERATION))
def test_an_exception_is_an_operation_and_still_needed(action, known):
    service, _, operation = action.partition(":")
    assert operation in botocore.session.get_session().get_service_model(service).operation_names
    assert action.lower() not in known, "the reference knows it now: take it off the list"


def test_all_resources_only_where_aws_knows_no_narrower_ones(both):
    seen = 0
    for synthesized in both:
        for statement in statements(synthesized):
            if statement.on_resource or "*" not in statement.resources:
                continue
            for action in statement.actions:
                if action in BUILD_IN_VPC and statement.where.startswith("eks/ChartsProjectPolicyDocument"):
                    continue
                service, _, name = action.partition(":")
                rows = get_action_data(service, name)[service]
                narrower = {row["resource_arn_format"] for row in rows} - {"*"}
                assert not narrower, (statement.where, action, narrower)
                seen += 1
    assert seen > 30


def test_no_statement_allows_by_exclusion_or_passes_a_role_to_anything(both):
    for synthesized in both:
        for statement in statements(synthesized):
            assert not {"NotAction", "NotResource", "NotPrincipal"} & statement.body.keys(), statement.where
            if "iam:PassRole" in statement.actions:
                assert "*" not in statement.resources, statement.where
