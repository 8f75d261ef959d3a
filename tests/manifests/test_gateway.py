"""The gateway's objects against Kubernetes' own schemas, and its settings against the gateway itself."""

from pathlib import Path
from typing import Any

import pytest

from serving.gateway import settings
from stacks.manifests import gateway
from stacks.workloads import Gateway


@pytest.fixture
def build(outputs):
    def build(balanced: bool = True, **options: Any) -> dict[str, dict[str, Any]]:
        image = f"{outputs.serve_repository_uri}@sha256:{'0' * 64}"
        objects = gateway.build(
            Gateway(**options),
            namespace=outputs.namespace,
            region=outputs.region,
            image=image,
            model_id="qwen3-vl-8b",
            balanced=balanced,
        )
        return {each["kind"]: each for each in objects}

    return build


def test_kubernetes_accepts_every_object(build, core_faults):
    for options in ({}, {"mixes_safely": True}, {"balanced": False}):
        objects = build(**options)
        assert list(objects) == ["ServiceAccount", "NetworkPolicy", "ConfigMap", "Deployment", "Service"]
        for each in objects.values():
            assert core_faults(each) == []


def test_the_gateway_reads_its_settings_as_they_were_meant(build, outputs, tmp_path):
    for safe in (False, True):
        path = tmp_path / "gateway.toml"
        path.write_text(build(mixes_safely=safe)["ConfigMap"]["data"]["gateway.toml"])
        read = settings.read(path)
        assert read.upstream.url == f"http://skypod-serve-serve-svc.{outputs.namespace}.svc:8000"
        assert (read.upstream.model_id, read.upstream.mixes_safely) == ("qwen3-vl-8b", safe)
        assert read.tls is not None


def test_every_file_that_it_reads_is_mounted_and_none_is_in_its_environment(build, tmp_path):
    objects = build()
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    path = tmp_path / "gateway.toml"
    path.write_text(objects["ConfigMap"]["data"]["gateway.toml"])
    read = settings.read(path)
    mounted = [Path(mount["mountPath"]) for mount in container["volumeMounts"]]
    for file in (read.keys, read.aliases, read.tls.certificate, read.tls.key, Path(container["args"][1])):
        assert any(file.is_relative_to(folder) for folder in mounted)
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    assert all("valueFrom" not in entry for entry in container["env"])


def test_an_engine_that_must_not_mix_has_one_gateway_at_any_moment(build):
    spec = build()["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    spec = build(mixes_safely=True)["Deployment"]["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_kubernetes_waits_for_the_drain(build, tmp_path):
    objects = build()
    path = tmp_path / "gateway.toml"
    path.write_text(objects["ConfigMap"]["data"]["gateway.toml"])
    drain = settings.read(path).drain
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > drain.notice_s + drain.deadline_s


def test_the_balancer_is_internal_and_the_control_port_is_not_behind_it(build):
    objects = build()
    annotations = objects["Service"]["metadata"]["annotations"]
    assert annotations["service.beta.kubernetes.io/aws-load-balancer-scheme"] == "internal"
    (port,) = objects["Service"]["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (443, gateway.PORT)
    rules = objects["NetworkPolicy"]["spec"]["ingress"]
    open_ports = [port["port"] for rule in rules if "from" not in rule for port in rule["ports"]]
    assert open_ports == [gateway.PORT]


def test_without_a_controller_for_balancers_it_stays_inside_the_cluster(build):
    service = build(balanced=False)["Service"]
    assert service["spec"]["type"] == "ClusterIP"
    assert "annotations" not in service["metadata"] or service["metadata"]["annotations"] == {}
