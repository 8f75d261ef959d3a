"""serving.registry against the emulated AWS, as against the real one."""

from dataclasses import replace

import pytest

from rehearsal.aws.process import EmulatedAws
from serving.aliases import Aliases
from serving.manifest import Adapter
from serving.registry import APPROVED, REJECTED, Registry, forget
from training.errors import DataError

pytestmark = pytest.mark.emulator
BASE = "b" * 64


def adapter(digit: str) -> Adapter:
    lineage = {"run_id": "r", "evaluation_digest": "e", "licence": "MIT"}
    files = {"adapter_model.safetensors": digit * 64, "adapter_config.json": digit * 64}
    return Adapter(BASE, 4, 8, ("q_proj",), 10, lineage, files).named("maze")


@pytest.fixture(scope="module")
def registry(aws: EmulatedAws) -> Registry:
    session = aws.session()
    s3 = session.client("s3")
    options = {"CreateBucketConfiguration": {"LocationConstraint": session.region_name}}
    s3.create_bucket(Bucket="kept", **({} if session.region_name == "us-east-1" else options))
    return Registry(session.client("sagemaker"), s3, "kept", "serve@sha256:1")


def test_adapters_are_entered_pointed_at_and_refused(registry):
    first, second = adapter("1"), adapter("2")
    assert registry.versions(BASE) == []
    version = registry.register(first, "s3://kept/adapters/1", b"{}", passed=True)
    assert registry.register(first, "s3://kept/adapters/1", b"{}", passed=True) == version
    assert registry.register(second, "s3://kept/adapters/2", b"{}", passed=False).status == REJECTED
    assert [one.arn.rpartition("/")[2] for one in registry.versions(BASE)] == ["1", "2"]
    registry.point(BASE, Aliases(1, live=first.name, canary=second.name, canary_share=0.1))
    assert [one.alias for one in registry.versions(BASE)] == ["live", "canary"]
    registry.point(BASE, Aliases(2, live=first.name))
    assert [one.alias for one in registry.versions(BASE)] == ["live", ""]
    registry.require_approved(BASE, first.name)
    registry.sagemaker.update_model_package(ModelPackageArn=version.arn, ModelApprovalStatus=REJECTED)
    assert registry.register(first, "s3://kept/adapters/1", b"{}", passed=True).status == REJECTED
    with pytest.raises(DataError, match="is Rejected"):
        registry.require_approved(BASE, first.name)
    assert registry.register(second, "s3://kept/adapters/2", b"{}", passed=True).status == APPROVED


def test_a_group_goes_after_its_packages(registry):
    api, name = registry.sagemaker, registry.group("c" * 64)
    other = Adapter("c" * 64, 4, 8, ("q_proj",), 10, adapter("1").lineage, adapter("1").files).named("maze")
    version = registry.register(other, "s3://kept/adapters/3", b"{}", passed=True)
    with pytest.raises(api.exceptions.ClientError, match="has model packages"):
        api.delete_model_package_group(ModelPackageGroupName=name)
    api.delete_model_package(ModelPackageName=version.arn)
    api.delete_model_package_group(ModelPackageGroupName=name)
    groups = api.list_model_package_groups()["ModelPackageGroupSummaryList"]
    assert name not in [group["ModelPackageGroupName"] for group in groups]
    assert registry.versions("c" * 64) == []


def test_an_environment_is_forgotten_with_all_its_groups_and_no_other_is(registry):
    api = registry.sagemaker
    other = replace(registry, prefix="skypod-else")
    for digit in "12":
        registry.register(adapter(digit), f"s3://kept/adapters/{digit}", b"{}", passed=True)
    other.register(adapter("1"), "s3://kept/adapters/1", b"{}", passed=True)
    assert forget(api, registry.prefix) == [registry.group(BASE)]
    assert registry.versions(BASE) == []
    assert [one.adapter for one in other.versions(BASE)] == [adapter("1").name]
    assert forget(api, registry.prefix) == []
    assert forget(api, other.prefix) == [other.group(BASE)]
