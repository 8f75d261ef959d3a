"""Accounts as the doctor meets them: moto, and answers by hand where moto has no such API."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import boto3
import botocore.loaders
import botocore.session

from cdk_app.doctor.aws import Aws

ACCOUNT = "123456789012"
MANAGEMENT = "210987654321"
EVERY_QUOTA = {
    "sagemaker": {
        "L-00000001": ("ml.g7e.12xlarge for cluster usage", 3),
        "L-00000002": ("ml.r5d.16xlarge for cluster usage", 1),
        "L-2CE978FC": ("Maximum number instances allowed per SageMaker HyperPod cluster", 20),
        "L-3308CCC7": ("Total number of instances allowed across SageMaker HyperPod clusters", 30),
        "L-E13DF72A": ("Maximum size of EBS volume in GB for a SageMaker HyperPod cluster instance", 1024),
    },
    "vpc": {"L-F678F1CE": ("VPCs per Region", 5)},
    "ec2": {"L-0263D0A3": ("EC2-VPC Elastic IPs", 5)},
    "fsx": {"L-8F1B9C74": ("Lustre Persistent_2 storage capacity", 100_800)},
    "codebuild": {"L-4DDC4A99": ("Concurrently running builds for Linux/Large environment", 1)},
}


def refused(code: str, message: str = "") -> dict[str, Any]:
    """An answer that boto3 raises as ClientError."""
    return {"Error": {"Code": code, "Message": message}}


# Reading a service's model takes longer than asking it.
_LOADER = botocore.loaders.create_loader()
DENIED = refused("AccessDeniedException", "not authorized")


class Account:
    """A boto3 session of which some operations have answers by hand; all others go to moto."""

    def __init__(self, region: str = "us-west-2"):
        core = botocore.session.Session()
        core.register_component("data_loader", _LOADER)
        self.session = boto3.Session("testing", "testing", region_name=region, botocore_session=core)
        self.aws = Aws(self.session, region)
        self._answers: dict[str, dict[str, Any]] = {}

    def answer(self, operation: str, answer: dict[str, Any]) -> None:
        """`operation` is for example "eks.DescribeClusterVersions"; `answer` what boto3 gets, or an error."""

        def handler(**_: Any) -> tuple[SimpleNamespace, dict[str, Any]]:
            status = 400 if "Error" in self._answers[operation] else 200
            return SimpleNamespace(status_code=status), {**self._answers[operation], "ResponseMetadata": {}}

        if operation not in self._answers:
            self.session.events.register_first(f"before-call.{operation}", handler)
        self._answers[operation] = answer

    def quotas(self, quotas: dict[str, dict[str, tuple[str, float]]], *, applied: bool = True) -> None:
        """Every service's quotas; not `applied` ones are found among the defaults only."""

        def handler(params: dict[str, Any], model: Any, **_: Any) -> tuple[SimpleNamespace, dict[str, Any]]:
            listed = []
            if (model.name == "ListServiceQuotas") == applied:
                service = json.loads(params["body"])["ServiceCode"]
                listed = [
                    {"QuotaCode": code, "QuotaName": name, "Value": float(value)}
                    for code, (name, value) in quotas.get(service, {}).items()
                ]
            return SimpleNamespace(status_code=200), {"Quotas": listed, "ResponseMetadata": {}}

        for operation in ("ListServiceQuotas", "ListAWSDefaultServiceQuotas"):
            self.session.events.register(f"before-call.service-quotas.{operation}", handler)


def good(region: str = "us-west-2") -> Account:
    """One that lacks nothing: quotas, an organization's Identity Center, a bootstrap stack, a current EKS."""
    account = Account(region)
    account.quotas(EVERY_QUOTA)
    account.answer("ssm.GetParameter", {"Parameter": {"Value": "31"}})
    account.answer(
        "eks.DescribeClusterVersions",
        {
            "clusterVersions": [
                {
                    "clusterVersion": "1.35",
                    "versionStatus": "STANDARD_SUPPORT",
                    "endOfStandardSupportDate": datetime(2099, 1, 1, tzinfo=UTC),
                }
            ]
        },
    )
    account.answer("organizations.DescribeOrganization", {"Organization": {"MasterAccountId": MANAGEMENT}})
    instance = {"InstanceArn": "arn:aws:sso:::instance/ssoins-1", "OwnerAccountId": MANAGEMENT}
    account.answer("sso-admin.ListInstances", {"Instances": [instance]})
    return account
