"""Rules of our own on what holds data: sealed, private, over TLS only.

Plain tests rather than Guard rules: most join two resources (a bucket and its policy), which Guard cannot.
"""

import json

# Of data and of what leads to it.
PUBLIC = {"PubliclyAccessible", "AssociatePublicIpAddress", "MapPublicIpOnLaunch"}


def test_nothing_that_holds_data_can_be_reached_from_the_internet(both):
    for synthesized in both:
        for part, template in synthesized.templates.items():
            for logical_id, resource in template["Resources"].items():
                properties = resource.get("Properties", {})
                assert not any(properties.get(name) for name in PUBLIC), (part, logical_id)
        for kind in ("AWS::EC2::SecurityGroup", "AWS::EC2::SecurityGroupIngress"):
            for _, logical_id, group in synthesized.resources(kind):
                rules = [*group["Properties"].get("SecurityGroupIngress", []), group["Properties"]]
                open_to_all = [rule for rule in rules if rule.get("CidrIp") == "0.0.0.0/0"]
                assert not open_to_all, logical_id
    assert (
        both[1].one("AWS::EKS::Cluster")["Properties"]["ResourcesVpcConfig"]["EndpointPublicAccess"] is False
    )


def test_everything_at_rest_is_encrypted(both):
    for synthesized in both:
        for kind, name in (
            ("AWS::S3::Bucket", "BucketEncryption"),
            ("AWS::FSx::FileSystem", "KmsKeyId"),
            ("AWS::SNS::Topic", "KmsMasterKeyId"),
            ("AWS::EKS::Cluster", "EncryptionConfig"),
        ):
            found = synthesized.resources(kind)
            assert found, kind
            assert all(resource["Properties"].get(name) for _, _, resource in found), kind
        assert all(
            key["Properties"]["EnableKeyRotation"] for _, _, key in synthesized.resources("AWS::KMS::Key")
        )


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
            for _, logical_id, _ in synthesized.resources(kind):
                assert any(logical_id in named for named in refusing), logical_id
