"""Ray objects against KubeRay's own CRDs, and against what the run needs."""

import copy
from typing import Any

import kubernetes_validate
import pytest
import yaml

from stacks.environment import Environment, InstanceGroup
from stacks.manifests import raycluster, rayservice
from stacks.optional import Governance, Team
from stacks.outputs import Outputs
from tests.manifests.conftest import ROOT
from training.errors import ConfigError
from training.recipe import Topology

IMAGE = f"123456789012.dkr.ecr.us-west-2.amazonaws.com/skypod-paper/train@sha256:{'0' * 64}"


@pytest.fixture
def cluster(environment, outputs) -> dict[str, Any]:
    return raycluster.build(environment, outputs, image=IMAGE)


@pytest.fixture
def service(environment, outputs) -> dict[str, Any]:
    return _serve(environment, outputs)


def _serve(environment: Environment, outputs: Outputs) -> dict[str, Any]:
    served = rayservice.Served(
        adapter="maze-6c576434edc8",
        base="models/visgym-sft",
        model_id="visgym-qwen3vl",
        image=IMAGE,
        max_lora_rank=32,
        max_model_len=8192,
    )
    return rayservice.build(environment, served, region=outputs.region, adapters_uri=outputs.adapters_uri)


def _groups(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


def _container(group: dict[str, Any]) -> dict[str, Any]:
    (container,) = group["template"]["spec"]["containers"]
    return container


def test_kuberay_accepts_the_cluster(cluster, ray_faults):
    assert ray_faults(cluster) == []


def test_kuberay_accepts_the_service(service, ray_faults):
    assert ray_faults(service) == []


def test_a_mistyped_field_would_be_found(cluster, ray_faults):
    wrong = copy.deepcopy(cluster)
    wrong["spec"]["workerGroupSpecs"][0]["replica"] = 3
    wrong["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] = 0
    assert len(ray_faults(wrong)) == 2


@pytest.mark.parametrize("which", ["cluster", "service"])
def test_kubernetes_accepts_every_pod(which, request, environment):
    """The CRDs leave parts of the pod open; the pod's own schema does not."""
    spec = request.getfixturevalue(which)["spec"]
    for group in _groups(spec.get("rayClusterConfig", spec)):
        template = group["template"]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "pod", **template["metadata"]},
            "spec": template["spec"],
        }
        kubernetes_validate.validate(pod, environment.eks.version, strict=True)


def test_the_cluster_is_one_head_without_gpus_and_three_workers_with_two(cluster):
    spec = cluster["spec"]
    (workers,) = spec["workerGroupSpecs"]
    assert (workers["replicas"], workers["minReplicas"], workers["maxReplicas"]) == (3, 3, 3)
    assert _container(workers)["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert "nvidia.com/gpu" not in _container(spec["headGroupSpec"])["resources"]["limits"]
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert spec["headGroupSpec"]["rayStartParams"]["dashboard-host"] == "0.0.0.0"


def test_ray_asks_for_a_token(cluster, service):
    assert cluster["spec"]["authOptions"] == {"mode": "token"}
    assert service["spec"]["rayClusterConfig"]["authOptions"] == {"mode": "token"}


def test_pods_choose_their_group_of_nodes_by_its_label(environment, outputs, cluster, service):
    def groups(spec: dict[str, Any]) -> list[str]:
        return [group["template"]["spec"]["nodeSelector"]["skypod/group"] for group in _groups(spec)]

    assert groups(cluster["spec"]) == ["head", "gpu"]
    assert groups(service["spec"]["rayClusterConfig"]) == ["head", "gpu"]
    own = InstanceGroup(instance_type="ml.g7e.4xlarge", count=1, gpus=1)
    larger = environment.model_copy(
        update={"hyperpod": environment.hyperpod.model_copy(update={"serving": own})}
    )
    assert groups(raycluster.build(larger, outputs, image=IMAGE)["spec"]) == ["head", "gpu"]
    (replicas,) = _serve(larger, outputs)["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert replicas["template"]["spec"]["nodeSelector"] == {
        "node.kubernetes.io/instance-type": "ml.g7e.4xlarge",
        "skypod/group": "serving",
        "sagemaker.amazonaws.com/node-health-status": "Schedulable",
    }


@pytest.mark.parametrize("which", ["cluster", "service"])
def test_every_container_shares_the_file_system_and_gives_up_privileges(which, request):
    spec = request.getfixturevalue(which)["spec"]
    for group in _groups(spec.get("rayClusterConfig", spec)):
        container = _container(group)
        env = {item["name"]: item["value"] for item in container["env"]}
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in group["template"]["spec"]["volumes"]}
        assert env["SKYPOD_SHARED"] == mounts["shared"] == "/shared"
        assert volumes["shared"]["persistentVolumeClaim"] == {"claimName": "shared"}
        assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
        assert mounts["shm"] == "/dev/shm"
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert group["template"]["spec"]["automountServiceAccountToken"] is False


def test_a_smaller_topology_asks_for_less(environment, outputs):
    small = raycluster.build(
        environment, outputs, image=IMAGE, topology=Topology(worker_nodes=2, gpus_per_node=1)
    )
    (workers,) = small["spec"]["workerGroupSpecs"]
    assert workers["replicas"] == 2
    assert _container(workers)["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_a_topology_that_the_environment_lacks_is_refused_with_both_sizes(environment, outputs):
    with pytest.raises(ConfigError, match=r"4 workers with 2 GPUs.*3 nodes with 2 GPUs"):
        raycluster.build(
            environment, outputs, image=IMAGE, topology=Topology(worker_nodes=4, gpus_per_node=2)
        )


def test_the_service_serves_base_and_adapter(service):
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    (llm,) = application["args"]["llm_configs"]
    assert application["import_path"] == "ray.serve.llm:build_openai_app"
    assert llm["model_loading_config"] == {
        "model_id": "visgym-qwen3vl",
        "model_source": "/shared/models/visgym-sft",
    }
    assert llm["lora_config"]["dynamic_lora_loading_path"] == "s3://artifacts/adapters"
    assert llm["engine_kwargs"]["max_lora_rank"] == 32
    assert service["metadata"]["annotations"] == {"skypod/adapter": "maze-6c576434edc8"}
    accounts = {
        g["template"]["spec"]["serviceAccountName"] for g in _groups(service["spec"]["rayClusterConfig"])
    }
    assert accounts == {"skypod-serving"}


def _serving(environment: Environment, **changed: Any) -> Environment:
    return environment.model_copy(update={"serving": environment.serving.model_copy(update=changed)})


def _deployment(service: dict[str, Any]) -> dict[str, Any]:
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    return application["args"]["llm_configs"][0]["deployment_config"]


def test_replicas_that_are_fixed_need_no_autoscaler(environment, outputs):
    service = _serve(_serving(environment, min_replicas=2, max_replicas=2), outputs)
    spec = service["spec"]["rayClusterConfig"]
    (workers,) = spec["workerGroupSpecs"]
    assert (workers["replicas"], workers["minReplicas"], workers["maxReplicas"]) == (2, 2, 2)
    assert _deployment(service)["num_replicas"] == 2
    assert not {"enableInTreeAutoscaling", "autoscalerOptions"} & set(spec)


def test_replicas_follow_the_load_between_their_bounds(environment, outputs, ray_faults):
    scaling = _serving(environment, min_replicas=1, max_replicas=4, requests_per_replica=24)
    service = _serve(scaling, outputs)
    assert ray_faults(service) == []
    spec = service["spec"]["rayClusterConfig"]
    (workers,) = spec["workerGroupSpecs"]
    assert spec["enableInTreeAutoscaling"] is True
    assert (workers["replicas"], workers["minReplicas"], workers["maxReplicas"]) == (1, 1, 4)
    deployment = _deployment(service)
    assert "num_replicas" not in deployment
    assert deployment["autoscaling_config"] == {
        "min_replicas": 1,
        "max_replicas": 4,
        "target_ongoing_requests": 24,
    }


def test_only_the_autoscalers_container_may_ask_kubernetes(environment, outputs):
    spec = _serve(_serving(environment, max_replicas=2), outputs)["spec"]["rayClusterConfig"]
    (mount,) = spec["autoscalerOptions"]["volumeMounts"]
    assert mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"
    assert spec["autoscalerOptions"]["securityContext"]["allowPrivilegeEscalation"] is False
    head, worker = (group["template"]["spec"] for group in _groups(spec))
    (volume,) = [volume for volume in head["volumes"] if volume["name"] == mount["name"]]
    (token, *_) = volume["projected"]["sources"]
    assert token["serviceAccountToken"]["path"] == "token"
    assert mount["name"] not in {volume["name"] for volume in worker["volumes"]}
    for pod in (head, worker):
        assert pod["automountServiceAccountToken"] is False
        assert mount["name"] not in {mounted["name"] for mounted in pod["containers"][0]["volumeMounts"]}


@pytest.mark.parametrize(("image", "which"), [("train", "cluster"), ("serve", "service")])
def test_the_manifest_names_the_ray_version_of_its_image(image, which, request):
    spec = request.getfixturevalue(which)["spec"]
    version = spec.get("rayClusterConfig", spec)["rayVersion"]
    requirements = (ROOT / "docker" / image / "requirements.txt").read_text().splitlines()
    (ray,) = [line for line in requirements if line.startswith("ray[")]
    assert ray.endswith(f"=={version}")


def test_trainer_and_server_have_one_engine_version():
    engines = {
        next(
            line for line in (ROOT / "docker" / image / "requirements.txt").open() if line.startswith("vllm")
        )
        for image in ("train", "serve")
    }
    assert len(engines) == 1


def test_ray_objects_join_their_teams_queue_on_every_template(environment, outputs, ray_faults):
    """Without the labels on its pods Kueue admits a Ray cluster and leaves it suspended."""
    teams = (Team(name="research", gpu_nodes=3),)
    governed = environment.model_copy(
        update={
            "namespace": "hyperpod-ns-research",
            "governance": Governance(enabled=True, teams=teams),
        }
    )
    made = {
        "training-priority": raycluster.build(governed, outputs, image=IMAGE),
        "serving-priority": _serve(governed, outputs),
    }
    for priority, manifest in made.items():
        assert ray_faults(manifest) == []
        spec = manifest["spec"].get("rayClusterConfig", manifest["spec"])
        for labels in [
            manifest["metadata"]["labels"],
            *(group["template"]["metadata"]["labels"] for group in _groups(spec)),
        ]:
            assert labels["kueue.x-k8s.io/queue-name"] == "hyperpod-ns-research-localqueue"
            assert labels["kueue.x-k8s.io/priority-class"] == priority
    assert "kueue" not in str(raycluster.build(environment, outputs, image=IMAGE))


@pytest.mark.parametrize("image", ["train", "train:0123", "train@sha256:0123", IMAGE + "0"])
def test_an_image_without_its_digest_gets_into_no_pod(image, environment, outputs):
    with pytest.raises(ConfigError, match="not named by its digest") as refused:
        raycluster.build(environment, outputs, image=image)
    assert image in refused.value.problem
    assert "skypod images" in refused.value.remedy
