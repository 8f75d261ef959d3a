"""The API server as the ordinary Kubernetes client sees it."""

import json
import threading
import time

import pytest
from kubernetes import client, dynamic, watch
from kubernetes.client.exceptions import ApiException

from tests.kube.conftest import crds_dir, eventually

pytestmark = pytest.mark.slow
needs_crds = pytest.mark.skipif(crds_dir() is None, reason="no CRD files on this machine")


def config_map(name, data=None, **metadata):
    return {"metadata": {"name": name, **metadata}, "data": data or {"a": "1"}}


def status_of(caught):
    return json.loads(caught.value.body)


def ray_cluster(name, **spec):
    pod = {"spec": {"containers": [{"name": "ray", "image": "x"}]}}
    # suspend: these tests are about the API, no Ray starts.
    body = {"rayVersion": "2.57.0", "suspend": True, "headGroupSpec": {"rayStartParams": {}, "template": pod}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name},
        "spec": body | spec,
    }


def test_an_object_lives_through_create_read_replace_patch_delete(core, namespace):
    made = core.create_namespaced_config_map(namespace, config_map("one"))
    assert made.metadata.uid
    assert made.metadata.creation_timestamp
    assert core.read_namespaced_config_map("one", namespace).data == {"a": "1"}
    made.data = {"a": "2"}
    replaced = core.replace_namespaced_config_map("one", namespace, made)
    assert int(replaced.metadata.resource_version) > int(made.metadata.resource_version)
    patched = core.patch_namespaced_config_map("one", namespace, {"data": {"b": "3", "a": None}})
    assert patched.data == {"b": "3"}
    core.delete_namespaced_config_map("one", namespace)
    with pytest.raises(ApiException) as caught:
        core.read_namespaced_config_map("one", namespace)
    assert status_of(caught)["reason"] == "NotFound"
    assert status_of(caught)["details"] == {"name": "one", "kind": "configmaps"}


def test_a_stale_replace_and_a_second_create_conflict(core, namespace):
    stale = core.create_namespaced_config_map(namespace, config_map("one"))
    core.patch_namespaced_config_map("one", namespace, {"data": {"a": "2"}})
    with pytest.raises(ApiException) as caught:
        core.replace_namespaced_config_map("one", namespace, stale)
    assert (caught.value.status, status_of(caught)["reason"]) == (409, "Conflict")
    with pytest.raises(ApiException) as caught:
        core.create_namespaced_config_map(namespace, config_map("one"))
    assert (caught.value.status, status_of(caught)["reason"]) == (409, "AlreadyExists")


def test_a_change_that_changes_nothing_keeps_the_version(core, namespace):
    first = core.create_namespaced_config_map(namespace, config_map("one"))
    second = core.patch_namespaced_config_map("one", namespace, {"data": {"a": "1"}})
    assert second.metadata.resource_version == first.metadata.resource_version


def test_generation_counts_changes_of_the_spec_only(api, namespace):
    pods = client.CoreV1Api(api)
    services = {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}}
    assert pods.create_namespaced_service(namespace, services).metadata.generation == 1
    labelled = pods.patch_namespaced_service("s", namespace, {"metadata": {"labels": {"x": "y"}}})
    assert labelled.metadata.generation == 1
    changed = pods.patch_namespaced_service("s", namespace, {"spec": {"selector": {"a": "c"}}})
    assert changed.metadata.generation == 2


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({"spec": {"ports": [{"port": 80}], "sellector": {}}}, 400, 'unknown field "spec.sellector"'),
        ({"spec": {"ports": [{"port": "http"}]}}, 422, "spec.ports[0].port"),
        ({"spec": {"ports": [{}]}}, 422, "spec.ports[0].port: Required value"),
        ({"metadata": {"name": "Upper"}, "spec": {}}, 422, "metadata.name"),
        ({"metadata": {"name": "s", "labels": {"k": "not ok"}}, "spec": {}}, 422, "label k"),
        ({"metadata": {"name": "s", "lables": {}}, "spec": {}}, 400, 'unknown field "metadata.lables"'),
    ],
)
def test_bad_objects_are_refused_with_the_field(core, namespace, body, code, words):
    with pytest.raises(ApiException) as caught:
        core.create_namespaced_service(namespace, {"metadata": {"name": "s"}} | body)
    assert caught.value.status == code
    assert words in status_of(caught)["message"]
    if code == 422:
        assert status_of(caught)["details"]["causes"][0]["field"]


@needs_crds
@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"workerGroupSpec": []}, 400, 'unknown field "spec.workerGroupSpec"'),
        ({"headGroupSpec": {"rayStartParams": {}}}, 422, "spec.headGroupSpec.template: Required value"),
        ({"authOptions": {"mode": "tokens"}}, 422, "spec.authOptions.mode"),
        ({"rayVersion": 2.57}, 422, "spec.rayVersion"),
    ],
)
def test_ray_objects_are_held_against_kuberays_schema(api, namespace, change, code, words):
    rays = client.CustomObjectsApi(api)
    with pytest.raises(ApiException) as caught:
        rays.create_namespaced_custom_object(
            "ray.io", "v1", namespace, "rayclusters", ray_cluster("r", **change)
        )
    assert caught.value.status == code
    assert words in status_of(caught)["message"]


def test_objects_need_their_namespace(core):
    with pytest.raises(ApiException) as caught:
        core.create_namespaced_config_map("nowhere", config_map("one"))
    assert (caught.value.status, status_of(caught)["message"]) == (404, 'namespaces "nowhere" not found')


def test_selectors_pick_by_label_and_field(core, namespace):
    for name, labels in (("a", {"app": "x"}), ("b", {"app": "y"}), ("c", None)):
        core.create_namespaced_config_map(namespace, config_map(name, labels=labels))

    def names(**selectors):
        return [o.metadata.name for o in core.list_namespaced_config_map(namespace, **selectors).items]

    assert names(label_selector="app=x") == ["a"]
    assert names(label_selector="app in (x, y)") == ["a", "b"]
    assert names(label_selector="app,app!=x") == ["b"]
    assert names(label_selector="!app") == ["c"]
    assert names(field_selector="metadata.name=b") == ["b"]
    with pytest.raises(ApiException) as caught:
        names(label_selector="app ~ x")
    assert caught.value.status == 400


def test_a_watch_sees_every_change_from_the_version_of_the_list(core, namespace):
    core.create_namespaced_config_map(namespace, config_map("one"))
    version = core.list_namespaced_config_map(namespace).metadata.resource_version
    core.patch_namespaced_config_map("one", namespace, {"data": {"a": "2"}})
    seen = []

    def follow():
        stream = watch.Watch().stream(
            core.list_namespaced_config_map, namespace, resource_version=version, timeout_seconds=10
        )
        for event in stream:
            seen.append((event["type"], event["object"].metadata.name))
            if event["type"] == "DELETED":
                return

    follower = threading.Thread(target=follow)
    follower.start()
    core.create_namespaced_config_map(namespace, config_map("two"))
    core.delete_namespaced_config_map("one", namespace)
    follower.join(10)
    assert seen == [("MODIFIED", "one"), ("ADDED", "two"), ("DELETED", "one")]


def test_a_watch_ends_after_its_timeout(core, namespace):
    begun = time.monotonic()
    events = list(watch.Watch().stream(core.list_namespaced_secret, namespace, timeout_seconds=1))
    assert events == []
    assert 0.8 < time.monotonic() - begun < 5


def test_an_object_that_leaves_the_selector_is_deleted_for_its_watcher(core, namespace):
    core.create_namespaced_config_map(namespace, config_map("one", labels={"app": "x"}))
    listed = core.list_namespaced_config_map(namespace, label_selector="app=x")
    core.patch_namespaced_config_map("one", namespace, {"metadata": {"labels": {"app": "y"}}})
    stream = watch.Watch().stream(
        core.list_namespaced_config_map,
        namespace,
        label_selector="app=x",
        resource_version=listed.metadata.resource_version,
        timeout_seconds=5,
    )
    assert next(stream)["type"] == "DELETED"


def applied(api, body, namespace, manager="me", force=False):
    dyn = dynamic.DynamicClient(api)
    resource = dyn.resources.get(api_version=body["apiVersion"], kind=body["kind"])
    return dyn.server_side_apply(
        resource,
        body=body,
        name=body["metadata"]["name"],
        namespace=namespace,
        field_manager=manager,
        force_conflicts=force,
    ).to_dict()


def test_apply_creates_updates_and_drops_what_it_no_longer_names(api, namespace):
    body = {"apiVersion": "v1", "kind": "ConfigMap"} | config_map("one", {"a": "1", "b": "2"})
    assert applied(api, body, namespace)["data"] == {"a": "1", "b": "2"}
    client.CoreV1Api(api).patch_namespaced_config_map("one", namespace, {"data": {"c": "theirs"}})
    body["data"] = {"a": "9"}
    assert applied(api, body, namespace)["data"] == {"a": "9", "c": "theirs"}
    same = applied(api, body, namespace)
    assert same["metadata"]["resourceVersion"] == applied(api, body, namespace)["metadata"]["resourceVersion"]


def test_apply_refuses_to_overwrite_another_managers_field_unless_forced(api, namespace):
    body = {"apiVersion": "v1", "kind": "ConfigMap"} | config_map("one", {"a": "1"})
    applied(api, body, namespace, manager="first")
    body["data"] = {"a": "2"}
    with pytest.raises(ApiException) as caught:
        applied(api, body, namespace, manager="second")
    cause = status_of(caught)["details"]["causes"][0]
    assert (caught.value.status, cause["field"], cause["message"]) == (
        409,
        ".data.a",
        'conflict with "first"',
    )
    forced = applied(api, body, namespace, manager="second", force=True)
    assert forced["data"] == {"a": "2"}
    assert [entry["manager"] for entry in forced["metadata"]["managedFields"]] == ["second"]


def test_status_and_spec_are_written_apart(api, namespace):
    rays = client.CustomObjectsApi(api)
    where = ("ray.io", "v1", namespace, "rayclusters")
    body = ray_cluster("r") | {"status": {"state": "invented"}}
    made = rays.create_namespaced_custom_object(*where, body)
    assert "status" not in made or made["status"].get("state") != "invented"
    assert eventually(
        lambda: rays.get_namespaced_custom_object(*where, "r").get("status", {}).get("state") == "suspended"
    )
    generation = rays.get_namespaced_custom_object(*where, "r")["metadata"]["generation"]
    rays.patch_namespaced_custom_object(*where, "r", {"status": {"state": "invented"}})
    seen = rays.get_namespaced_custom_object(*where, "r")
    assert (seen["status"]["state"], seen["metadata"]["generation"]) == ("suspended", generation)


def test_a_finalizer_holds_an_object_until_it_is_removed(core, namespace):
    core.create_namespaced_config_map(namespace, config_map("one", finalizers=["example.org/hold"]))
    core.delete_namespaced_config_map("one", namespace)
    held = core.read_namespaced_config_map("one", namespace)
    assert held.metadata.deletion_timestamp
    core.patch_namespaced_config_map("one", namespace, {"metadata": {"finalizers": None}})
    with pytest.raises(ApiException) as caught:
        core.read_namespaced_config_map("one", namespace)
    assert caught.value.status == 404


def owned(core, namespace):
    owner = core.create_namespaced_config_map(namespace, config_map("owner"))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid}
    core.create_namespaced_config_map(namespace, config_map("child", ownerReferences=[reference]))


def exists(core, namespace, name):
    return name in [o.metadata.name for o in core.list_namespaced_config_map(namespace).items]


@pytest.mark.parametrize("policy", [None, "Background", "Foreground"])
def test_what_an_object_owns_goes_with_it(core, namespace, policy):
    owned(core, namespace)
    core.delete_namespaced_config_map("owner", namespace, propagation_policy=policy)
    assert eventually(lambda: not exists(core, namespace, "child"))
    assert eventually(lambda: not exists(core, namespace, "owner"))


def test_orphans_stay(core, namespace):
    owned(core, namespace)
    core.delete_namespaced_config_map("owner", namespace, propagation_policy="Orphan")
    assert eventually(lambda: not exists(core, namespace, "owner"))
    assert core.read_namespaced_config_map("child", namespace).metadata.owner_references is None


def test_a_claim_binds_to_its_volume(core, namespace):
    volume = {
        "metadata": {"name": f"v-{namespace}"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "csi": {"driver": "fsx.csi.aws.com", "volumeHandle": "fs-1"},
        },
    }
    claim = {
        "metadata": {"name": "shared"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "volumeName": f"v-{namespace}",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    core.create_namespaced_persistent_volume_claim(namespace, claim)
    core.create_persistent_volume(volume)
    assert eventually(
        lambda: core.read_namespaced_persistent_volume_claim("shared", namespace).status.phase == "Bound"
    )
    core.delete_persistent_volume(f"v-{namespace}")


def test_a_crd_adds_a_kind_with_its_schema(api, namespace):
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {
                    "size": {"type": "integer", "minimum": 1},
                    "colour": {"type": "string", "default": "red"},
                },
            }
        },
    }
    crd = {
        "metadata": {"name": "gadgets.example.org"},
        "spec": {
            "group": "example.org",
            "scope": "Namespaced",
            "names": {"kind": "Gadget", "plural": "gadgets"},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
            ],
        },
    }
    client.ApiextensionsV1Api(api).create_custom_resource_definition(crd)
    gadgets = client.CustomObjectsApi(api)
    where = ("example.org", "v1", namespace, "gadgets")
    made = gadgets.create_namespaced_custom_object(*where, {"metadata": {"name": "g"}, "spec": {"size": 2}})
    assert made["spec"] == {"size": 2, "colour": "red"}
    with pytest.raises(ApiException) as caught:
        gadgets.create_namespaced_custom_object(*where, {"metadata": {"name": "h"}, "spec": {"size": 0}})
    assert caught.value.status == 422
