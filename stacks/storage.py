"""The buckets: artifacts, and the lifecycle scripts that nodes run when they start."""

import json

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from constructs import Construct

from stacks import scripts
from stacks.base import SkypodStack
from stacks.environment import Environment
from stacks.names import Names


class StorageStack(SkypodStack):
    """Apart from Lustre, which takes a quarter of an hour: nodes need the scripts, not the file system."""

    part = "storage"
    summary = "Artifacts bucket and lifecycle scripts"

    def __init__(self, scope: Construct, environment: Environment, names: Names):
        super().__init__(scope, environment, names)
        settings = environment.storage
        self._bucket_objects = self.handler("bucket_objects", timeout_s=840)
        # Not under our key: the file system's service role reads and writes here, and is made later by AWS.
        self.artifacts = self._bucket(
            "Artifacts",
            names.artifacts_bucket,
            lifecycle_rules=[
                s3.LifecycleRule(
                    prefix="scratch/", expiration=cdk.Duration.days(settings.scratch_expiry_days)
                ),
                s3.LifecycleRule(
                    abort_incomplete_multipart_upload_after=cdk.Duration.days(2),
                    noncurrent_version_expiration=cdk.Duration.days(30),
                ),
            ],
        )
        self._contents("ArtifactsContents", self.artifacts, {}, empty=not settings.keep_data)
        self.lifecycle = self._bucket("Lifecycle", names.lifecycle_bucket)
        self.lifecycle_contents = self._contents(
            "LifecycleContents", self.lifecycle, scripts.lifecycle(), empty=not settings.keep_data
        )
        self.emit(
            artifacts_bucket=self.artifacts.bucket_name,
            lifecycle_bucket=self.lifecycle.bucket_name,
        )

    def _bucket(self, construct_id: str, name: str, **kwargs) -> s3.Bucket:
        return s3.Bucket(
            self,
            construct_id,
            bucket_name=name,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            encryption=s3.BucketEncryption.S3_MANAGED,
            enforce_ssl=True,
            versioned=True,
            removal_policy=self.data_removal,
            **kwargs,
        )

    def _contents(
        self, construct_id: str, bucket: s3.Bucket, objects: dict[str, str], *, empty: bool
    ) -> cdk.CustomResource:
        """Objects of ours in the bucket; with `empty`, everything is deleted before the bucket is."""
        self._bucket_objects.add_to_role_policy(
            iam.PolicyStatement(
                actions=["s3:ListBucket", "s3:ListBucketVersions"], resources=[bucket.bucket_arn]
            )
        )
        self._bucket_objects.add_to_role_policy(
            iam.PolicyStatement(
                actions=["s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion"],
                resources=[bucket.arn_for_objects("*")],
            )
        )
        contents = cdk.CustomResource(
            self,
            construct_id,
            service_token=self._bucket_objects.function_arn,
            resource_type="Custom::BucketObjects",
            properties={
                "Bucket": bucket.bucket_name,
                "Objects": json.dumps(objects, sort_keys=True),
                "EmptyOnDelete": "true" if empty else "false",
            },
        )
        contents.node.add_dependency(self._bucket_objects)
        return contents
