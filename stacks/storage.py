"""What outlives pods: the artifacts bucket, FSx for Lustre, the nodes' lifecycle scripts and the key."""

import json
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_fsx as fsx
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from stacks.base import SkypodStack
from stacks.environment import Environment
from stacks.names import RUNS_PREFIX, Names
from stacks.network import NetworkStack

_LIFECYCLE_SCRIPTS = Path(__file__).parent / "lifecycle"
LIFECYCLE_PREFIX = "lifecycle"


class StorageStack(SkypodStack):
    """Runs are written to Lustre and exported to S3 by the file system itself, adapters included."""

    part = "storage"
    summary = "Artifacts bucket, FSx for Lustre with export to S3, lifecycle scripts and the data key"

    def __init__(self, scope: Construct, environment: Environment, names: Names, *, network: NetworkStack):
        super().__init__(scope, environment, names)
        settings = environment.storage
        self.key = kms.Key(
            self,
            "Key",
            description=f"{names.prefix}: file system",
            enable_key_rotation=True,
            pending_window=cdk.Duration.days(7),
            removal_policy=self.data_removal,
        )
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
        artifacts_contents = self._contents(
            "ArtifactsContents", self.artifacts, {}, empty=not settings.keep_data
        )
        self.lifecycle = self._bucket("Lifecycle", names.lifecycle_bucket)
        scripts = {
            f"{LIFECYCLE_PREFIX}/{path.name}": path.read_text() for path in _LIFECYCLE_SCRIPTS.iterdir()
        }
        self.lifecycle_contents = self._contents(
            "LifecycleContents", self.lifecycle, scripts, empty=not settings.keep_data
        )

        self.file_system = fsx.CfnFileSystem(
            self,
            "Lustre",
            file_system_type="LUSTRE",
            # PERSISTENT_2 is refused with the older default.
            file_system_type_version="2.15",
            storage_type="SSD",
            storage_capacity=settings.lustre_capacity_gib,
            subnet_ids=[network.node_subnet.subnet_id],
            security_group_ids=[network.cluster_group.security_group_id],
            kms_key_id=self.key.key_arn,
            lustre_configuration=fsx.CfnFileSystem.LustreConfigurationProperty(
                deployment_type="PERSISTENT_2",
                per_unit_storage_throughput=settings.lustre_throughput_mib_s_per_tib,
                data_compression_type="LZ4",
            ),
            tags=[cdk.CfnTag(key="Name", value=names.prefix)],
        )
        self.file_system.apply_removal_policy(self.data_removal)
        export = fsx.CfnDataRepositoryAssociation(
            self,
            "RunsExport",
            file_system_id=self.file_system.ref,
            file_system_path=f"/{RUNS_PREFIX}",
            data_repository_path=f"s3://{self.artifacts.bucket_name}/{RUNS_PREFIX}",
            s3=fsx.CfnDataRepositoryAssociation.S3Property(
                auto_export_policy=fsx.CfnDataRepositoryAssociation.AutoExportPolicyProperty(
                    events=["NEW", "CHANGED"]
                )
            ),
        )
        export.apply_removal_policy(self.data_removal)
        # On destroy the export ends first; otherwise it could write into the bucket that was just emptied.
        export.node.add_dependency(artifacts_contents)
        self.emit(
            artifacts_bucket=self.artifacts.bucket_name,
            lifecycle_bucket=self.lifecycle.bucket_name,
            file_system_id=self.file_system.ref,
            file_system_dns=self.file_system.attr_dns_name,
            file_system_mount_name=self.file_system.attr_lustre_mount_name,
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
