"""The namespace, its shared volume and its network policies against Kubernetes' own schemas."""

import pytest

from stacks.manifests import storage


@pytest.fixture
def manifests(outputs):
    return storage.build(
        namespace=outputs.namespace,
        file_system_id=outputs.file_system_id,
        file_system_dns=outputs.file_system_dns,
        file_system_mount_name=outputs.file_system_mount_name,
        capacity_gib=1200,
        service_accounts=("skypod-training", "skypod-serving"),
    )


def test_kubernetes_accepts_every_object(manifests, core_faults):
    for manifest in manifests:
        assert core_faults(manifest) == [], manifest["kind"]


def test_a_mistyped_field_would_be_found(manifests, core_faults):
    wrong = {**manifests[1], "spec": {**manifests[1]["spec"], "accessMode": ["ReadWriteMany"]}}
    assert core_faults(wrong)


def test_the_namespace_comes_before_what_is_in_it(manifests):
    assert manifests[0]["kind"] == "Namespace"
    namespaced = [m for m in manifests[1:] if "namespace" in m["metadata"]]
    assert {m["metadata"]["namespace"] for m in namespaced} == {"skypod"}


def test_volume_and_claim_find_each_other_and_no_others(manifests):
    by_kind = {m["kind"]: m for m in manifests}
    volume, claim = by_kind["PersistentVolume"], by_kind["PersistentVolumeClaim"]
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    assert volume["spec"]["claimRef"] == {"namespace": "skypod", "name": claim["metadata"]["name"]}
    assert claim["spec"]["storageClassName"] == volume["spec"]["storageClassName"] == ""
    assert claim["spec"]["resources"]["requests"] == volume["spec"]["capacity"] == {"storage": "1200Gi"}
    assert volume["spec"]["csi"]["volumeHandle"].startswith("fs-")
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"


def test_only_the_operator_and_the_collector_reach_the_pods_from_outside(manifests):
    rules = [rule for m in manifests if m["kind"] == "NetworkPolicy" for rule in m["spec"]["ingress"]]
    outside = {
        source["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]: {
            port["port"] for port in rule["ports"]
        }
        for rule in rules
        for source in rule["from"]
        if "namespaceSelector" in source
    }
    assert outside == {"kuberay-operator": {8265, 52365, 8000}, "hyperpod-observability": {8080}}
    inside = [rule for rule in rules if "namespaceSelector" not in rule["from"][0]]
    ray, model = inside
    assert ray == {"from": [{"podSelector": {"matchLabels": {"ray.io/is-ray-node": "yes"}}}]}
    assert model["from"] == [
        {"podSelector": {"matchLabels": {"app.kubernetes.io/component": name}}}
        for name in ("gateway", "rollout")
    ]
    assert [port["port"] for port in model["ports"]] == [8000]


def test_every_policy_selects_every_pod_so_that_what_none_names_is_refused(manifests):
    policies = [m["spec"] for m in manifests if m["kind"] == "NetworkPolicy"]
    assert all(spec["podSelector"] == {} and spec["policyTypes"] == ["Ingress"] for spec in policies)


def test_the_proxy_of_ray_links_reaches_dashboards_only_when_there_is_one():
    def reached(ray_endpoints: bool) -> dict[str, list[int]]:
        return {
            policy["metadata"]["name"]: [p["port"] for p in policy["spec"]["ingress"][0].get("ports", [])]
            for policy in storage.network_policies("skypod", ray_endpoints=ray_endpoints)
        }

    assert "ray-links" not in reached(False)
    assert reached(True)["ray-links"] == [8265]
