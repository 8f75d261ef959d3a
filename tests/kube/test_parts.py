"""The stand-in's parts on their own: paths, quantities, commands, schemas."""

import json
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from rehearsal.kube import environment, patch, quantities, schemas
from rehearsal.kube import ports as reserved
from rehearsal.kube.adapters import AdapterError, LocalAdapter, fetch
from rehearsal.kube.controllers import raynode, vllm
from rehearsal.kube.controllers.rayservice import RayServices
from rehearsal.kube.ports import RANGE, STAND_INS, Ports, is_free
from rehearsal.kube.status import ApiError
from rehearsal.kube.volumes import Rewriter, VolumeError
from rehearsal.kube.watch import label_filter
from training.errors import SubstrateError

MOUNTS = {
    "volumeMounts": [{"name": "s", "mountPath": "/shared"}, {"name": "d", "mountPath": "/shared/deep/"}]
}
FOLDERS = {"s": Path("/local/s"), "d": Path("/local/d")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/shared", "/local/s"),
        ("/shared/", "/local/s/"),
        ("/shared/a.txt", "/local/s/a.txt"),
        ("/shared/deep/x", "/local/d/x"),
        ("--model=/shared/m", "--model=/local/s/m"),
        ("a:/shared/x:/shared", "a:/local/s/x:/local/s"),
        ('{"path": "/shared/x"}', '{"path": "/local/s/x"}'),
        ("/shared2/x", "/shared2/x"),
        ("/opt/shared/x", "/opt/shared/x"),
        ("s3://shared/x", "s3://shared/x"),
        ("/shared-not", "/shared-not"),
    ],
)
def test_container_paths_become_local_ones(text, expected):
    assert Rewriter(MOUNTS, FOLDERS)(text) == expected


def test_a_mount_without_volume_is_named():
    with pytest.raises(VolumeError, match="volumeMount /x: the pod has no volume nowhere"):
        Rewriter({"volumeMounts": [{"name": "nowhere", "mountPath": "/x"}]}, {})


def test_references_expand_as_in_kubernetes():
    assert environment.expand("$(A)/b $$(A) $(NONE)", {"A": "a"}) == "a/b $(A) $(NONE)"


@pytest.mark.parametrize(
    ("text", "value"), [("500m", 1), ("2", 2), ("1.5", 2), ("1Gi", 2**30), ("3k", 3000), ("1e3", 1000)]
)
def test_quantities_round_up_to_whole_units(text, value):
    assert quantities.limit({"resources": {"limits": {"x": text}}}, "x") == value


def test_limits_win_over_requests_and_nonsense_is_refused():
    assert quantities.limit({"resources": {"limits": {"x": "2"}, "requests": {"x": "1"}}}, "x") == 2
    assert quantities.limit({"resources": {"requests": {"x": "1"}}}, "x") == 1
    assert quantities.limit({}, "x") is None
    with pytest.raises(ValueError, match="'1Gb' is not a Kubernetes quantity"):
        quantities.parse("1Gb")


def group(limits, **params):
    container = {"name": "ray", "image": "x", "resources": {"limits": limits}}
    return {"groupName": "gpu", "rayStartParams": params, "template": {"spec": {"containers": [container]}}}


def started(spec, head=False):
    ports = raynode.node_ports(range(22000, 22000 + raynode.PORTS_PER_NODE))
    return raynode.command(spec, ports, 21999, head=head, node_name="n")


def test_a_worker_declares_what_its_container_is_limited_to():
    line = started(group({"cpu": "40", "memory": "400Gi", "nvidia.com/gpu": "2"}))
    assert {"--num-cpus=40", "--num-gpus=2", f"--memory={400 * 2**30}", "--block"} <= set(line)
    assert "--address=127.0.0.1:21999" in line
    assert f"--object-store-memory={raynode.LARGEST_OBJECT_STORE}" in line


def test_ray_start_params_win_but_never_open_the_loopback():
    params = {
        "num-cpus": "0",
        "dashboard-host": "0.0.0.0",
        "node-ip-address": "10.0.0.1",
        "port": "6379",
        "resources": '"{\\"Custom\\": 1}"',
        "no-redirect-output": "true",
        "include-log-monitor": "false",
    }
    line = started(group({"cpu": "60"}, **params), head=True)
    assert {"--head", "--num-cpus=0", "--num-gpus=0", '--resources={"Custom": 1}'} <= set(line)
    assert "--no-redirect-output" in line
    assert {"--dashboard-host=127.0.0.1", "--node-ip-address=127.0.0.1", "--port=22000"} <= set(line)
    assert not any("0.0.0.0" in part or "10.0.0.1" in part for part in line)


def test_the_token_goes_by_file_and_a_foreign_ray_address_goes_away():
    spec = group({"cpu": "1"})
    spec["template"]["spec"]["containers"][0]["env"] = [{"name": "RAY_ADDRESS", "value": "10.0.0.1:6379"}]
    cluster = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "c", "namespace": "n", "uid": "u"},
    }
    ports = raynode.node_ports(range(22000, 22000 + raynode.PORTS_PER_NODE))
    pod = raynode.pod(cluster, spec, ports, 1, head=False, secret="c")
    names = {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"]}
    assert names["RAY_AUTH_TOKEN_PATH"] == "/var/run/secrets/ray/auth_token"
    assert not {"RAY_ADDRESS", "RAY_AUTH_TOKEN"} & set(names)
    assert raynode.ports_of(pod) == ports
    assert raynode.pod(cluster, spec, ports, 1, head=True, secret=None)["metadata"]["annotations"]


def service(**changes):
    config = {
        "model_loading_config": {"model_id": "maze", "model_source": "/shared/m"},
        "lora_config": {"dynamic_lora_loading_path": "s3://b/a", "max_num_adapters_per_replica": 4},
        "engine_kwargs": {
            "enable_lora": True,
            "max_lora_rank": 8,
            "max_model_len": 1024,
            "tensor_parallel_size": 2,
            "gpu_memory_utilization": 0.9,
        },
    } | changes
    application = {
        "name": "openai",
        "import_path": "ray.serve.llm:build_openai_app",
        "args": {"llm_configs": [config]},
    }
    return {"spec": {"serveConfigV2": json.dumps({"applications": [application]})}}


def test_a_serving_configuration_becomes_a_cpu_server():
    name, config = vllm.llm_config(service())
    line = vllm.command(config, [LocalAdapter("one", Path("/a/one"), 8)], 8000)
    assert name == "openai"
    assert line[:3] == ["python", "-m", "vllm.entrypoints.openai.api_server"]
    assert {"--host=127.0.0.1", "--port=8000", "--dtype=float32", "--enforce-eager"} <= set(line)
    assert {"--max-lora-rank=8", "--max-model-len=1024", "--enable-lora", "--max-loras=2"} <= set(line)
    assert line[-2:] == ["--lora-modules", "maze:one=/a/one"]
    assert not any("tensor-parallel" in part or "gpu-memory" in part for part in line)


def test_serving_configurations_that_cannot_be_served_say_why():
    with pytest.raises(vllm.ServeConfigError, match="model_source is missing"):
        vllm.llm_config(service(model_loading_config={"model_id": "x"}))
    with pytest.raises(vllm.ServeConfigError, match="0 applications"):
        vllm.llm_config({"spec": {"serveConfigV2": "applications: []"}})
    with pytest.raises(vllm.ServeConfigError, match="not YAML"):
        vllm.llm_config({"spec": {"serveConfigV2": "a: [b"}})


class Bucket:
    """An S3 bucket as the paginated client shows it."""

    def __init__(self, objects):
        self.objects = objects
        self.downloads = 0

    def get_paginator(self, _):
        return self

    def paginate(self, Bucket, Prefix):
        found = [
            {"Key": key, "ETag": str(hash(body)), "Size": len(body)}
            for key, body in self.objects.items()
            if key.startswith(Prefix)
        ]
        return [{"Contents": found}]

    def download_file(self, bucket, key, target):
        self.downloads += 1
        Path(target).write_text(self.objects[key])


def test_adapters_are_fetched_once_and_new_content_gets_a_new_folder(tmp_path):
    config = json.dumps({"r": 8})
    bucket = Bucket({"a/one/adapter_config.json": config, "a/one/w.bin": "1", "a/two/readme": "x"})
    (first,) = fetch(bucket, "s3://b/a", tmp_path)
    assert (first.name, first.rank, (first.folder / "w.bin").read_text()) == ("one", 8, "1")
    assert fetch(bucket, "s3://b/a/", tmp_path) == [first]
    assert bucket.downloads == 2
    bucket.objects["a/one/w.bin"] = "2"
    (second,) = fetch(bucket, "s3://b/a", tmp_path)
    assert second.folder != first.folder
    assert (first.folder / "w.bin").read_text() == "1"


def test_adapters_elsewhere_than_in_s3_or_outside_their_folder_are_refused(tmp_path):
    with pytest.raises(AdapterError, match="not an s3:// URI"):
        fetch(Bucket({}), "/shared/adapters", tmp_path)
    evil = Bucket({"a/one/adapter_config.json": "{}", "a/one/../../../evil": "x"})
    with pytest.raises(AdapterError, match="outside"):
        fetch(evil, "s3://b/a", tmp_path)


class Objects:
    """What the API server keeps of pods and services, as a controller's access and caches see it."""

    def __init__(self, service):
        self.service, self.pods = service, []

    def create(self, kind, pod):
        self.pods.append(pod)
        return pod

    def put(self, pod):
        """The cache's own: `create` has kept it."""

    def set_status(self, kind, namespace, name, status):
        self.service["status"] = status


def test_a_service_that_is_promised_another_adapter_gets_a_server_with_both(tmp_path):
    """The promise is an annotation, which makes no new generation."""
    config = json.dumps({"r": 8})
    bucket = Bucket({"a/one/adapter_config.json": config})
    engine = {"enable_lora": True, "max_lora_rank": 8}
    llm = {
        "model_loading_config": {"model_id": "maze", "model_source": "/shared/base"},
        "lora_config": {"dynamic_lora_loading_path": "s3://b/a", "max_num_adapters_per_replica": 4},
        "engine_kwargs": engine,
    }
    application = {"import_path": "ray.serve.llm:build_openai_app", "args": {"llm_configs": [llm]}}
    template = {"spec": {"containers": [{"name": "ray-head"}]}}
    service = {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "s", "namespace": "n", "uid": "u", "generation": 1, "annotations": {}},
        "spec": {
            "serveConfigV2": json.dumps({"applications": [application]}),
            "rayClusterConfig": {"headGroupSpec": {"template": template}},
        },
    }
    kept = Objects(service)
    cache = SimpleNamespace(all=lambda: list(kept.pods), put=kept.put)
    services = SimpleNamespace(all=lambda: [service])
    book = SimpleNamespace(block=lambda size: range(21001, 21001 + size), release=lambda block: None)
    controller = RayServices(kept, services, cache, book, tmp_path, lambda: bucket)

    def promise(adapter):
        service["metadata"]["annotations"]["skypod/adapter"] = adapter
        for _ in range(2):
            controller.sync()
        commands = [" ".join(pod["spec"]["containers"][0]["command"]) for pod in kept.pods]
        return [[name for name in ("one", "two") if f"maze:{name}=" in command] for command in commands]

    assert promise("one") == [["one"]]
    bucket.objects["a/two/adapter_config.json"] = config
    assert promise("one") == [["one"]], "nobody has promised it"
    assert promise("two") == [["one"], ["one", "two"]]
    assert promise("one") == [["one"], ["one", "two"]], "it serves both"


@pytest.fixture
def ports(monkeypatch):
    # Not the ranges of stand-ins that may run beside this test.
    monkeypatch.setattr(reserved, "FIRST", 12000)
    ports = Ports(seed=1)
    yield ports
    ports.close()


def test_ports_are_free_distinct_and_come_back(ports):
    first, second = ports.block(50), ports.block(50)
    assert not set(first) & set(second)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first[0]))
        assert not is_free(first[0])
    ports.release(first)
    with pytest.raises(SubstrateError, match="no 10000 neighbouring free ports"):
        ports.block(10000)
    whole = ports.block(RANGE // 3)
    assert len(whole) == RANGE // 3
    with pytest.raises(SubstrateError, match="neighbouring free ports"):
        [ports.block(RANGE // 3) for _ in range(3)]


def test_no_two_stand_ins_choose_the_same_port_even_before_anyone_listens_there(ports):
    """Two servers that listen late once got one port, and the one was taken for the other."""
    others = []
    try:
        for _ in range(STAND_INS - 1):
            others.append(Ports(seed=1))
        chosen = [{port for _ in range(20) for port in book.block(20)} for book in [ports, *others]]
        assert len(set().union(*chosen)) == sum(len(one) for one in chosen)
        with pytest.raises(SubstrateError, match=f"{STAND_INS} Kubernetes stand-ins run"):
            Ports(seed=1)
    finally:
        for other in others:
            other.close()
    Ports(seed=1).close()


def test_label_selectors():
    labelled = {"metadata": {"labels": {"a": "1"}}}
    assert label_filter("a in (1,2),!b,a!=3")(labelled)
    assert not label_filter("a notin (1)")(labelled)
    with pytest.raises(ApiError):
        label_filter("a>1")


def test_strategic_patches_merge_lists_by_their_key():
    live = {"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b"}], "list": [1]}}
    change = {"spec": {"containers": [{"name": "a", "image": "2"}], "list": [2]}}
    merged = patch.strategic(live, change)
    assert merged == {"spec": {"containers": [{"name": "a", "image": "2"}, {"name": "b"}], "list": [2]}}


def test_schema_defaults_are_filled_in_at_every_depth():
    schema = {
        "properties": {
            "a": {"default": 1},
            "b": {"type": "array", "items": {"properties": {"c": {"default": 2}}}},
        }
    }
    assert schemas.defaulted(schema, {"b": [{}, {"c": 3}]}) == {"a": 1, "b": [{"c": 2}, {"c": 3}]}
