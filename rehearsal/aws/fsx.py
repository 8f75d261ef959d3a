"""FSx for Lustre file systems and their data repository associations."""

from __future__ import annotations

import time
from typing import Any

from ministack.core.responses import AccountRegionScopedDict, get_account_id, get_region
from ministack.services import ec2, kms, s3

from rehearsal.aws import cloudformation, models
from rehearsal.aws.models import ApiError
from rehearsal.aws.service import Service, arn, identifier, require_security_groups, require_subnets

_THROUGHPUT = {
    ("PERSISTENT_1", "SSD"): (50, 100, 200),
    ("PERSISTENT_1", "HDD"): (12, 40),
    ("PERSISTENT_2", "SSD"): (125, 250, 500, 1000),
}
"""MB/s per TiB that a deployment type and storage type accept."""

_EFA_MINIMUM_GIB = {1000: 4800, 500: 9600, 250: 19200, 125: 38400}
"""Smallest file system with EFA for each throughput per TiB."""


class Fsx(Service):
    """File system operations; a file system is available at once and holds no files."""

    model = signing = "fsx"

    def __init__(self) -> None:
        self.file_systems = AccountRegionScopedDict()
        self.associations = AccountRegionScopedDict()

    def create_file_system(self, params: dict[str, Any]) -> dict[str, Any]:
        if params["FileSystemType"] != "LUSTRE":
            raise ApiError(
                "BadRequest", f"The emulated AWS makes LUSTRE file systems, not {params['FileSystemType']}"
            )
        require_subnets(params["SubnetIds"], "InvalidNetworkSettings")
        require_security_groups(params.get("SecurityGroupIds", []), "InvalidNetworkSettings")
        if len(params["SubnetIds"]) != 1:
            raise ApiError(
                "BadRequest", f"A Lustre file system needs 1 subnet, not {len(params['SubnetIds'])}"
            )
        _check_key(params.get("KmsKeyId"))
        lustre = dict(params.get("LustreConfiguration", {}))
        _check_lustre(params, lustre)
        number = identifier("fs-")
        lustre.setdefault("DeploymentType", "SCRATCH_1")
        lustre["MountName"] = "fsx" if lustre["DeploymentType"] == "SCRATCH_1" else identifier("", 8)
        file_system = {
            **{
                key: params[key]
                for key in ("FileSystemType", "StorageCapacity", "SubnetIds", "KmsKeyId")
                if key in params
            },
            "FileSystemId": number,
            "OwnerId": get_account_id(),
            "CreationTime": time.time(),
            "Lifecycle": "AVAILABLE",
            "StorageType": params.get("StorageType", "SSD"),
            "FileSystemTypeVersion": params.get("FileSystemTypeVersion", "2.10"),
            "VpcId": ec2._subnets[params["SubnetIds"][0]]["VpcId"],
            "DNSName": f"{number}.fsx.{get_region()}.amazonaws.com",
            "ResourceARN": arn("fsx", f"file-system/{number}"),
            "NetworkInterfaceIds": [identifier("eni-")],
            "Tags": params.get("Tags", []),
            "LustreConfiguration": lustre,
        }
        self.file_systems[number] = file_system
        return {"FileSystem": file_system}

    def describe_file_systems(self, params: dict[str, Any]) -> dict[str, Any]:
        if "FileSystemIds" in params:
            return {"FileSystems": [self._find(number) for number in params["FileSystemIds"]]}
        return {"FileSystems": list(self.file_systems.values())}

    def update_file_system(self, params: dict[str, Any]) -> dict[str, Any]:
        file_system = self._find(params["FileSystemId"])
        if params.get("StorageCapacity", file_system["StorageCapacity"]) < file_system["StorageCapacity"]:
            raise ApiError("BadRequest", "StorageCapacity of a Lustre file system cannot shrink")
        file_system.update(
            {k: v for k, v in params.items() if k in ("StorageCapacity", "FileSystemTypeVersion")}
        )
        file_system["LustreConfiguration"].update(params.get("LustreConfiguration", {}))
        return {"FileSystem": file_system}

    def delete_file_system(self, params: dict[str, Any]) -> dict[str, Any]:
        number = params["FileSystemId"]
        self._find(number)
        del self.file_systems[number]
        for key, association in list(self.associations.items()):
            if association["FileSystemId"] == number:
                del self.associations[key]
        return {"FileSystemId": number, "Lifecycle": "DELETING"}

    def create_data_repository_association(self, params: dict[str, Any]) -> dict[str, Any]:
        file_system = self._find(params["FileSystemId"])
        deployment = file_system["LustreConfiguration"]["DeploymentType"]
        if deployment not in ("PERSISTENT_2", "SCRATCH_2"):
            raise ApiError(
                "BadRequest", f"Data repository associations need PERSISTENT_2 or SCRATCH_2, not {deployment}"
            )
        bucket = params["DataRepositoryPath"].removeprefix("s3://").partition("/")[0]
        if bucket not in s3._buckets:
            raise ApiError("BadRequest", f"The bucket {bucket} does not exist")
        number = identifier("dra-")
        self.associations[number] = {
            **params,
            "AssociationId": number,
            "ResourceARN": arn("fsx", f"association/{params['FileSystemId']}/{number}"),
            "Lifecycle": "AVAILABLE",
            "CreationTime": time.time(),
        }
        return {"Association": self.associations[number]}

    def describe_data_repository_associations(self, params: dict[str, Any]) -> dict[str, Any]:
        found = list(self.associations.values())
        for wanted in params.get("Filters", []):
            if wanted["Name"] == "file-system-id":
                found = [a for a in found if a["FileSystemId"] in wanted["Values"]]
        if "AssociationIds" in params:
            found = [self._association(number) for number in params["AssociationIds"]]
        return {"Associations": found}

    def update_data_repository_association(self, params: dict[str, Any]) -> dict[str, Any]:
        association = self._association(params["AssociationId"])
        association.update({k: v for k, v in params.items() if k in ("S3", "ImportedFileChunkSize")})
        return {"Association": association}

    def delete_data_repository_association(self, params: dict[str, Any]) -> dict[str, Any]:
        self._association(params["AssociationId"])
        del self.associations[params["AssociationId"]]
        return {"AssociationId": params["AssociationId"], "Lifecycle": "DELETING"}

    def list_tags_for_resource(self, params: dict[str, Any]) -> dict[str, Any]:
        for owned in [*self.file_systems.values(), *self.associations.values()]:
            if owned["ResourceARN"] == params["ResourceARN"]:
                return {"Tags": owned.get("Tags", [])}
        raise ApiError("ResourceNotFound", f"{params['ResourceARN']} does not exist")

    def _find(self, number: str) -> dict[str, Any]:
        if number not in self.file_systems:
            raise ApiError("FileSystemNotFound", f"File system '{number}' does not exist.")
        return self.file_systems[number]

    def _association(self, number: str) -> dict[str, Any]:
        if number not in self.associations:
            raise ApiError("DataRepositoryAssociationNotFound", f"Association '{number}' does not exist.")
        return self.associations[number]


def _check_key(key: str | None) -> None:
    if key and key.rpartition("/")[2] not in kms._keys:
        raise ApiError("BadRequest", f"The KMS key {key} does not exist")


def _check_lustre(params: dict[str, Any], lustre: dict[str, Any]) -> None:
    deployment = lustre.get("DeploymentType", "SCRATCH_1")
    storage = params.get("StorageType", "SSD")
    capacity = params.get("StorageCapacity", 0)
    if storage == "SSD" and capacity != 1200 and (capacity < 2400 or capacity % 2400):
        raise ApiError(
            "BadRequest", f"StorageCapacity must be 1200 GiB or a multiple of 2400 GiB, not {capacity}"
        )
    allowed = _THROUGHPUT.get((deployment, storage))
    throughput = lustre.get("PerUnitStorageThroughput")
    if allowed and throughput not in allowed:
        raise ApiError(
            "BadRequest",
            f"PerUnitStorageThroughput of {deployment} must be one of {allowed}, not {throughput}",
        )
    if not allowed and throughput:
        raise ApiError("BadRequest", f"PerUnitStorageThroughput does not apply to {deployment} {storage}")
    if lustre.get("EfaEnabled"):
        if deployment != "PERSISTENT_2" or "MetadataConfiguration" not in lustre:
            raise ApiError("BadRequest", "EFA needs PERSISTENT_2 with a metadata configuration")
        if capacity < _EFA_MINIMUM_GIB[throughput]:
            raise ApiError(
                "BadRequest", f"EFA at {throughput} MB/s/TiB needs {_EFA_MINIMUM_GIB[throughput]} GiB or more"
            )


def register(fsx: Fsx) -> None:
    """AWS::FSx::FileSystem and AWS::FSx::DataRepositoryAssociation."""

    def attributes(number: str) -> dict[str, Any]:
        file_system = fsx._find(number)
        return {
            "DNSName": file_system["DNSName"],
            "LustreMountName": file_system["LustreConfiguration"]["MountName"],
            "ResourceARN": file_system["ResourceARN"],
        }

    def create(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
        params = models.from_template("fsx", "CreateFileSystem", properties)
        number = fsx.call("CreateFileSystem", params)["FileSystem"]["FileSystemId"]
        return number, attributes(number)

    def update(
        number: str, old: dict[str, Any], new: dict[str, Any], stack: str
    ) -> tuple[str, dict[str, Any]]:
        shape = models.operation("fsx", "UpdateFileSystem").input_shape
        changed = {k: v for k, v in new.items() if old.get(k) != v and k in shape.members}
        if "LustreConfiguration" in changed:
            known = shape.members["LustreConfiguration"].members
            changed["LustreConfiguration"] = {
                key: value for key, value in new["LustreConfiguration"].items() if key in known
            }
        params = models.from_template("fsx", "UpdateFileSystem", changed)
        fsx.call("UpdateFileSystem", {**params, "FileSystemId": number})
        return number, attributes(number)

    def delete(number: str, properties: dict[str, Any]) -> None:
        fsx.call("DeleteFileSystem", {"FileSystemId": number})

    cloudformation.register(
        "AWS::FSx::FileSystem",
        create,
        delete,
        update,
        replace_on=("FileSystemType", "KmsKeyId", "SecurityGroupIds", "StorageType", "SubnetIds"),
    )

    def associate(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
        params = models.from_template("fsx", "CreateDataRepositoryAssociation", properties)
        association = fsx.call("CreateDataRepositoryAssociation", params)["Association"]
        return association["AssociationId"], {k: association[k] for k in ("AssociationId", "ResourceARN")}

    def reassociate(
        number: str, old: dict[str, Any], new: dict[str, Any], stack: str
    ) -> tuple[str, dict[str, Any]]:
        changed = {key: new[key] for key in ("S3", "ImportedFileChunkSize") if key in new}
        params = models.from_template("fsx", "UpdateDataRepositoryAssociation", changed)
        association = fsx.call("UpdateDataRepositoryAssociation", {**params, "AssociationId": number})[
            "Association"
        ]
        return number, {k: association[k] for k in ("AssociationId", "ResourceARN")}

    def dissociate(number: str, properties: dict[str, Any]) -> None:
        fsx.call("DeleteDataRepositoryAssociation", {"AssociationId": number})

    cloudformation.register(
        "AWS::FSx::DataRepositoryAssociation",
        associate,
        dissociate,
        reassociate,
        replace_on=("FileSystemId", "FileSystemPath", "DataRepositoryPath", "BatchImportMetaDataOnCreate"),
    )
