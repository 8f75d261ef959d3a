"""What our Guard rules (`stacks/rules`) cannot say: it joins two resources, or belongs to one setting."""

import json


def test_every_bucket_and_topic_refuses_plain_http(both):
    for synthesized in both:
        for kind, policy, key in (
            ("AWS::S3::Bucket", "AWS::S3::BucketPolicy", "Bucket"),
            ("AWS::SNS::Topic", "AWS::SNS::TopicPolicy", "Topics"),
        ):
            refusing = [
                json.dumps(found["Properties"][key])
                for _, _, found in synthesized.resources(policy)
                if any(
                    statement["Effect"] == "Deny"
                    and statement.get("Condition") == {"Bool": {"aws:SecureTransport": "false"}}
                    for statement in found["Properties"]["PolicyDocument"]["Statement"]
                )
            ]
            assert refusing, kind
            for _, logical_id, _ in synthesized.resources(kind):
                assert any(logical_id in named for named in refusing), logical_id


def test_productions_control_plane_answers_inside_the_vpc_only(production):
    access = production.one("AWS::EKS::Cluster")["Properties"]["ResourcesVpcConfig"]
    assert (access["EndpointPublicAccess"], access["EndpointPrivateAccess"]) == (False, True)


def test_no_address_of_a_rehearsal_is_in_any_template(both):
    """Guard rules look into functions and builds; this into what is applied in the cluster as well."""
    for synthesized in both:
        for part, template in synthesized.templates.items():
            text = json.dumps(template)
            assert not [name for name in ("127.0.0.1", "localhost", "[::1]") if name in text], part
