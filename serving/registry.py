"""Adapters in SageMaker's Model Registry: a group per base, a version per adapter, and what speaks for it.

A version says where the adapter lies, which run and evaluation it came from, and whether the gate let it
pass. Its approval may be taken back by whoever the account lets do that; a rollout asks before it goes on.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from serving.aliases import ALIASES, Aliases
from serving.manifest import Adapter
from training.errors import DataError, SubstrateError

APPROVED, REJECTED, PENDING = "Approved", "Rejected", "PendingManualApproval"
LINEAGE_PREFIX = "lineage"
_GATE = "the gate"


@dataclass(frozen=True)
class Version:
    """One registered adapter; `alias` is one of live, canary, previous or empty."""

    arn: str
    adapter: str
    status: str
    alias: str
    metadata: Mapping[str, str]


@dataclass(frozen=True)
class Registry:
    """`sagemaker` and `s3` are boto3 clients, `image` is what serves the adapter. Adapters lie below
    s3://bucket/`adapters`/, run manifests below s3://bucket/lineage/. All methods may be called again after
    an interruption.

    Raises SubstrateError where AWS does not answer or refuses.
    """

    sagemaker: Any
    s3: Any
    bucket: str
    image: str
    prefix: str = "skypod"
    adapters: str = "adapters"

    def group(self, base_digest: str) -> str:
        """The model package group of a base."""
        return f"{self.prefix}-base-{base_digest[:16]}"

    def register(self, adapter: Adapter, uri: str, run_manifest: bytes, passed: bool) -> Version:
        """Enter an adapter that lies at s3 `uri`, approved or rejected as the gate decided.

        `run_manifest` is run.json, which is kept by content. An adapter that is there already gets the new
        evidence, and a rejection by hand stands: only a person takes that back. So the metadata says who
        rejected it, and an approval is written only where it changes: it may be taken back at any moment.
        """
        digest = hashlib.sha256(run_manifest).hexdigest()
        kept = f"{LINEAGE_PREFIX}/{adapter.name}/{digest[:16]}.json"
        metadata = {
            "adapter": adapter.name,
            "digest": adapter.digest,
            "base": adapter.base_digest,
            "rank": str(adapter.rank),
            "uri": uri,
            "run": adapter.lineage["run_id"],
            "evaluation": adapter.lineage["evaluation_digest"],
            "licence": adapter.lineage["licence"],
            "manifest": f"s3://{self.bucket}/{kept}",
            "manifest_digest": digest,
            "gate": "passed" if passed else "refused",
            "rejected_by": "nobody" if passed else _GATE,
            "alias": "none",
        }
        metadata = {key: value for key, value in metadata.items() if value}
        status, group = APPROVED if passed else REJECTED, self.group(adapter.base_digest)
        _call(self.s3, "put_object", Bucket=self.bucket, Key=kept, Body=run_manifest)
        self._make_group(group, adapter.base_digest)
        found = next((one for one in self.versions(adapter.base_digest) if one.adapter == adapter.name), None)
        if found is None:
            _call(
                self.sagemaker,
                "create_model_package",
                ModelPackageGroupName=group,
                ModelPackageDescription=f"LoRA adapter {adapter.name}",
                # A repeat of a call whose answer was lost makes no second version.
                ClientToken=adapter.digest[:36],
                InferenceSpecification={"Containers": [self._container(uri)]},
                ModelApprovalStatus=status,
                CustomerMetadataProperties=metadata,
            )
        else:
            if found.status == REJECTED and found.metadata.get("rejected_by") != _GATE:
                status, metadata["rejected_by"] = REJECTED, "hand"
            metadata["alias"] = found.alias or "none"
            self._update(found, metadata, status if status != found.status else None)
        return self.version(adapter.base_digest, adapter.name)

    def version(self, base_digest: str, name: str) -> Version:
        """DataError when there is none of that name."""
        for found in self.versions(base_digest):
            if found.adapter == name:
                return found
        raise DataError(
            f"{self.group(base_digest)} has no adapter {name}", "promote its run, which registers it"
        )

    def require_approved(self, base_digest: str, name: str) -> None:
        """DataError unless the adapter may be served."""
        found = self.version(base_digest, name)
        if found.status != APPROVED:
            raise DataError(
                f"{name} is {found.status} in {self.group(base_digest)}",
                "its gate refused it or a person took its approval back; only an approved one is served",
            )

    def point(self, base_digest: str, aliases: Aliases) -> None:
        """Write the aliases into the versions, for readers of the registry; the file is what counts."""
        held = {getattr(aliases, alias): alias for alias in ALIASES}
        for version in self.versions(base_digest):
            alias = held.get(version.adapter, "")
            if version.alias != alias:
                self._update(version, {**version.metadata, "alias": alias or "none"})

    def versions(self, base_digest: str) -> list[Version]:
        """All adapters of a base, the oldest first; none before the first was registered."""
        group = self.group(base_digest)
        return [self._describe(arn) for arn in self._arns(group)]

    def _arns(self, group: str) -> Iterator[str]:
        options = {"ModelPackageGroupName": group, "SortBy": "CreationTime", "SortOrder": "Ascending"}
        try:
            for entry in _pages(self.sagemaker, "list_model_packages", "ModelPackageSummaryList", **options):
                yield entry["ModelPackageArn"]
        except SubstrateError as error:
            if "does not exist" not in error.problem:
                raise

    def _describe(self, arn: str) -> Version:
        found = _call(self.sagemaker, "describe_model_package", ModelPackageName=arn)
        metadata = found.get("CustomerMetadataProperties") or {}
        alias = metadata.get("alias", "none")
        return Version(
            arn,
            metadata.get("adapter", ""),
            found.get("ModelApprovalStatus", PENDING),
            "" if alias == "none" else alias,
            metadata,
        )

    def _update(self, version: Version, metadata: Mapping[str, str], status: str | None = None) -> None:
        """Without a status the approval stays as it is by then."""
        _call(
            self.sagemaker,
            "update_model_package",
            ModelPackageArn=version.arn,
            CustomerMetadataProperties=dict(metadata),
            **({"ModelApprovalStatus": status} if status else {}),
        )

    def _make_group(self, group: str, base_digest: str) -> None:
        try:
            _call(
                self.sagemaker,
                "create_model_package_group",
                ModelPackageGroupName=group,
                ModelPackageGroupDescription=f"LoRA adapters of the base with digest {base_digest}",
            )
        except SubstrateError as error:
            if "already exist" not in error.problem:
                raise

    def _container(self, uri: str) -> dict[str, Any]:
        folder = {"S3Uri": f"{uri}/", "S3DataType": "S3Prefix", "CompressionType": "None"}
        return {"Image": self.image, "ModelDataSource": {"S3DataSource": folder}}


def forget(sagemaker: Any, prefix: str) -> list[str]:
    """Remove every adapter and group that registries of a prefix made; the groups' names. S3 stays as it is.

    May be called again after an interruption. SubstrateError where AWS does not answer or refuses.
    """
    groups = [
        group["ModelPackageGroupName"]
        for group in _pages(sagemaker, "list_model_package_groups", "ModelPackageGroupSummaryList")
        if group["ModelPackageGroupName"].startswith(f"{prefix}-base-")
    ]
    for group in groups:
        options = {"ModelPackageGroupName": group}
        for entry in list(_pages(sagemaker, "list_model_packages", "ModelPackageSummaryList", **options)):
            _call(sagemaker, "delete_model_package", ModelPackageName=entry["ModelPackageArn"])
        _call(sagemaker, "delete_model_package_group", **options)
    return groups


def _pages(client: Any, operation: str, key: str, **options: Any) -> Iterator[dict[str, Any]]:
    while True:
        page = _call(client, operation, **options)
        yield from page[key]
        if not page.get("NextToken"):
            return
        options["NextToken"] = page["NextToken"]


def _call(client: Any, operation: str, **options: Any) -> dict[str, Any]:
    try:
        return getattr(client, operation)(**options)
    except (ClientError, BotoCoreError) as error:
        raise SubstrateError(
            f"{operation}: {error}",
            "check the region and your rights; who may approve is in docs/how-to/promote.md",
        ) from error
