import json
from pathlib import Path

import boto3
import pytest
from botocore.stub import Stubber

from serving.adapter import Adapter, package
from serving.aliases import Aliases
from serving.registry import APPROVED, REJECTED, Registry
from tests.serving.artifacts import language_weights, write_export
from training.errors import DataError, SubstrateError

RUN = json.dumps({"run": "r", "gate": {"decision": "passed"}}).encode()
URI = "s3://artifacts/adapters/x"


@pytest.fixture
def kept(s3) -> Registry:
    sagemaker = boto3.client("sagemaker", region_name="us-east-1")
    return Registry(sagemaker, s3, "artifacts", image="serve@sha256:1", prefix="skypod-test")


@pytest.fixture
def adapter(export: Path, base_dir: Path, tmp_path: Path) -> Adapter:
    return package(export, tmp_path / "out", base_dir=base_dir, run_id="r", evaluation_digest="e")


@pytest.fixture
def other(base, base_dir: Path, tmp_path: Path) -> Adapter:
    export = write_export(tmp_path / "other", language_weights(base, seed=1))
    return package(export, tmp_path / "out", base_dir=base_dir, run_id="s", evaluation_digest="")


def test_an_adapter_is_entered_once_with_all_that_speaks_for_it(kept, adapter, base):
    version = kept.register(adapter, URI, RUN, passed=True)
    assert kept.register(adapter, URI, RUN, passed=True) == version
    assert kept.versions(base.digest) == [version]
    assert (version.adapter, version.status, version.alias) == (adapter.name, APPROVED, "")
    assert f"model-package/{kept.group(base.digest)}/1" in version.arn
    assert version.metadata["digest"] == adapter.digest
    assert (version.metadata["run"], version.metadata["evaluation"]) == ("r", "e")
    place = version.metadata["manifest"].removeprefix("s3://artifacts/")
    assert kept.s3.get_object(Bucket="artifacts", Key=place)["Body"].read() == RUN
    container = kept.sagemaker.describe_model_package(ModelPackageName=version.arn)
    (container,) = container["InferenceSpecification"]["Containers"]
    assert container["Image"] == "serve@sha256:1"
    assert container["ModelDataSource"]["S3DataSource"]["S3Uri"] == f"{URI}/"
    kept.require_approved(base.digest, adapter.name)


def test_what_the_gate_refused_is_on_record_and_is_not_served(kept, adapter, base):
    assert kept.register(adapter, URI, RUN, passed=False).status == REJECTED
    with pytest.raises(DataError, match=r"is Rejected in skypod-test-base-"):
        kept.require_approved(base.digest, adapter.name)
    assert kept.register(adapter, URI, RUN, passed=True).status == APPROVED


def reject(kept, version):
    """What a person does in the console."""
    kept.sagemaker.update_model_package(
        ModelPackageArn=version.arn,
        ModelApprovalStatus=REJECTED,
        CustomerMetadataProperties=dict(version.metadata),
    )


def test_a_rejection_by_hand_stands(kept, adapter, base):
    reject(kept, kept.register(adapter, URI, RUN, passed=True))
    assert kept.register(adapter, URI, RUN, passed=True).status == REJECTED
    with pytest.raises(DataError, match="took its approval back"):
        kept.require_approved(base.digest, adapter.name)


def test_a_rejection_by_hand_stands_over_a_gate_that_refuses_and_passes_again(kept, adapter):
    version = kept.register(adapter, URI, RUN, passed=True)
    reject(kept, version)
    for passed in (False, True, True):
        assert kept.register(adapter, URI, RUN, passed=passed).status == REJECTED
    kept.sagemaker.update_model_package(
        ModelPackageArn=version.arn,
        ModelApprovalStatus=APPROVED,
        CustomerMetadataProperties=dict(kept.versions(adapter.base_digest)[0].metadata),
    )
    for passed, status in ((True, APPROVED), (False, REJECTED), (True, APPROVED)):
        assert kept.register(adapter, URI, RUN, passed=passed).status == status


@pytest.mark.parametrize("act", ["point", "register"])
def test_a_rejection_made_while_the_registry_is_written_to_stands(kept, adapter, act):
    kept.register(adapter, URI, RUN, passed=True)
    events, rejected = kept.sagemaker.meta.events, []

    def between(**_):
        if not rejected:
            rejected.append(True)
            reject(kept, kept.versions(adapter.base_digest)[0])

    events.register("before-call.sagemaker.UpdateModelPackage", between)
    if act == "point":
        kept.point(adapter.base_digest, Aliases(1, live=adapter.name))
    else:
        kept.register(adapter, URI, RUN, passed=True)
    events.unregister("before-call.sagemaker.UpdateModelPackage", between)
    assert kept.version(adapter.base_digest, adapter.name).status == REJECTED


def test_aliases_move_and_change_nothing_else(kept, adapter, other, base):
    kept.register(adapter, URI, RUN, passed=True)
    kept.register(other, URI, RUN, passed=True)
    kept.point(base.digest, Aliases(1, live=adapter.name, canary=other.name, canary_share=0.1))
    assert {one.adapter: one.alias for one in kept.versions(base.digest)} == {
        adapter.name: "live",
        other.name: "canary",
    }
    kept.point(base.digest, Aliases(2, live=other.name))
    found = {one.adapter: one for one in kept.versions(base.digest)}
    assert (found[adapter.name].alias, found[other.name].alias) == ("", "live")
    assert {one.status for one in found.values()} == {APPROVED}
    assert found[other.name].metadata["run"] == "s"
    assert "evaluation" not in found[other.name].metadata


def test_what_is_not_there_is_named(kept, adapter, base):
    assert kept.versions(base.digest) == []
    with pytest.raises(DataError, match=f"has no adapter {adapter.name}"):
        kept.version(base.digest, adapter.name)


@pytest.mark.parametrize(
    ("code", "message", "raises"),
    [("ValidationException", "Model Package Group already exists: arn", None), ("AccessDenied", "no", "no")],
)
def test_a_group_that_exists_is_no_error_and_a_refusal_is(code, message, raises, kept, base):
    with Stubber(kept.sagemaker) as stub:
        stub.add_client_error("create_model_package_group", code, message)
        if raises is None:
            kept._make_group("g", base.digest)
        else:
            with pytest.raises(SubstrateError, match=r"create_model_package_group: .*AccessDenied"):
                kept._make_group("g", base.digest)


def test_all_pages_are_read(kept, base):
    with Stubber(kept.sagemaker) as stub:
        for token, number in (("more", 1), (None, 2)):
            page = {
                "ModelPackageSummaryList": [
                    {
                        "ModelPackageArn": f"arn:aws:sagemaker:us-east-1:1:model-package/g/{number}",
                        "CreationTime": 0,
                        "ModelPackageStatus": "Completed",
                    }
                ]
            }
            stub.add_response("list_model_packages", page | ({"NextToken": token} if token else {}))
        assert [arn[-1] for arn in kept._arns("g")] == ["1", "2"]
