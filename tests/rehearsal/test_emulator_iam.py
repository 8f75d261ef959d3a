"""The whole environment deployed with every caller's policies evaluated, over TLS."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from cdk_app import names, outputs, readback, residue, settings
from rehearsal import deploy
from rehearsal.aws.process import EmulatedAws, EmulatedSession
from stacks.environment import Environment
from tests.rehearsal.conftest import free_port
from tests.rehearsal.kube_api import KubeApi

pytestmark = pytest.mark.emulator
NAME = "dev"


@dataclass
class Enforced:
    """The deployed environment, and the app arguments that it was deployed with."""

    aws: EmulatedAws
    kube: KubeApi
    environment: Environment
    app: list[str]

    def role(self, stack: str, logical: str) -> Any:
        """A session of the one role of a stack whose logical id begins so."""
        resources = (
            self.aws.session()
            .client("cloudformation")
            .describe_stack_resources(StackName=f"skypod-{NAME}-{stack}")["StackResources"]
        )
        (name,) = [
            resource["PhysicalResourceId"]
            for resource in resources
            if resource["ResourceType"] == "AWS::IAM::Role"
            and resource["LogicalResourceId"].startswith(logical)
        ]
        arn = f"arn:aws:iam::{self.aws.account}:role/{name}"
        given = self.aws.session().client("sts").assume_role(RoleArn=arn, RoleSessionName="test")
        return EmulatedSession(
            self.aws.url,
            ca_pem=self.aws.ca_pem,
            aws_access_key_id=given["Credentials"]["AccessKeyId"],
            aws_secret_access_key=given["Credentials"]["SecretAccessKey"],
            aws_session_token=given["Credentials"]["SessionToken"],
            region_name=self.aws.region,
        )


@pytest.fixture(scope="module")
def enforced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Enforced]:
    folder: Path = tmp_path_factory.mktemp("enforced")
    port, environment = free_port(), settings.load(settings.FOLDER / f"{NAME}.toml")
    authority = folder / "aws" / "tls" / "ca.pem"
    kube = KubeApi(folder / "kube", f"https://127.0.0.1:{port}", authority, f"skypod-{NAME}")
    with EmulatedAws(
        folder / "aws", port=port, kube_endpoint=kube.endpoint, kube_ca_pem=kube.ca_pem, enforce_iam=True
    ) as aws:
        assert aws.ca_pem == authority
        deploy.bootstrap(aws.env, lambda event: None)
        deploy.synth(aws.env, ["-c", f"environment={NAME}"], folder / "app", lambda event: None)
        app = deploy.assembly_args(folder / "app")
        deploy.deploy(aws.env, app, lambda event: None)
        yield Enforced(aws, kube, environment, app)
    kube.close()


def refused(call: Any, **parameters: Any) -> str:
    with pytest.raises(ClientError) as error:
        call(**parameters)
    return error.value.response["Error"]["Code"]


def test_every_role_of_a_deploy_may_do_its_part(enforced: Enforced):
    session = enforced.aws.session()
    found = outputs.read(session, enforced.environment)
    checks = readback.compare(session, enforced.environment, found)
    assert [check for check in checks if not check.ok] == []
    assert enforced.kube.objects
    assert enforced.kube.refused == 0


def test_a_node_reads_its_lifecycle_scripts_and_changes_none(enforced: Enforced):
    named = outputs.read(enforced.aws.session(), enforced.environment).hyperpod_cluster_name
    sagemaker = enforced.aws.session().client("sagemaker")
    group = sagemaker.describe_cluster(ClusterName=named)["InstanceGroups"][0]["LifeCycleConfig"]
    bucket, _, prefix = group["SourceS3Uri"].removeprefix("s3://").partition("/")
    key = f"{prefix.rstrip('/')}/{group['OnCreate']}"
    s3 = enforced.role("hyperpod", "NodeRole").client("s3")
    assert s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    assert refused(s3.put_object, Bucket=bucket, Key=key, Body=b"") == "AccessDenied"


def test_strangers_are_refused_by_every_service(enforced: Enforced):
    stranger = EmulatedSession(
        enforced.aws.url,
        ca_pem=enforced.aws.ca_pem,
        aws_access_key_id="AKIAIOSFODNN7EXAMPLE",
        aws_secret_access_key="none",
        region_name=enforced.aws.region,
    )
    assert refused(stranger.client("s3").list_buckets) == "InvalidAccessKeyId"
    for service, call in (("fsx", "describe_file_systems"), ("sagemaker", "list_clusters")):
        assert refused(getattr(stranger.client(service), call)) == "UnrecognizedClientException"


def test_nothing_answers_without_tls(enforced: Enforced):
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(f"http://127.0.0.1:{enforced.aws.port}/", timeout=5)


def test_a_change_by_hand_is_detected(enforced: Enforced):
    assert deploy.drift(enforced.aws.env, enforced.app, lambda event: None) == ()
    s3, bucket = (
        enforced.aws.session().client("s3"),
        names.of(enforced.environment, enforced.aws.account).artifacts_bucket,
    )
    for status, drifted in (("Suspended", (f"skypod-{NAME}-storage",)), ("Enabled", ())):
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": status})
        assert deploy.drift(enforced.aws.env, enforced.app, lambda event: None) == drifted


def test_destroy_leaves_nothing(enforced: Enforced):
    deploy.destroy(enforced.aws.env, enforced.app, lambda event: None)
    assert residue.sweep(enforced.aws.session(), enforced.environment) == []
    assert enforced.kube.objects == {}
