"""FSx for Lustre, where runs are written, and its export of them to S3."""

import aws_cdk as cdk
from aws_cdk import aws_fsx as fsx
from constructs import Construct

from stacks.base import SkypodStack
from stacks.environment import Environment
from stacks.names import RUNS_PREFIX, Names
from stacks.network import NetworkStack
from stacks.storage import StorageStack


class LustreStack(SkypodStack):
    """Runs are exported to S3 by the file system itself, adapters included.

    It reads the bucket's name from the storage stack, so on destroy the export ends before the bucket is
    emptied; otherwise it could write into it afterwards.
    """

    part = "lustre"
    summary = "FSx for Lustre with export to S3, and the data key"

    def __init__(
        self,
        scope: Construct,
        environment: Environment,
        names: Names,
        *,
        network: NetworkStack,
        storage: StorageStack,
    ):
        super().__init__(scope, environment, names)
        settings = environment.storage
        key = self.key("Key", "file system", self.data_removal)
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
            kms_key_id=key.key_arn,
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
            data_repository_path=f"s3://{storage.artifacts.bucket_name}/{RUNS_PREFIX}",
            s3=fsx.CfnDataRepositoryAssociation.S3Property(
                auto_export_policy=fsx.CfnDataRepositoryAssociation.AutoExportPolicyProperty(
                    events=["NEW", "CHANGED"]
                )
            ),
        )
        export.apply_removal_policy(self.data_removal)
        self.emit(
            file_system_id=self.file_system.ref,
            file_system_dns=self.file_system.attr_dns_name,
            file_system_mount_name=self.file_system.attr_lustre_mount_name,
        )
