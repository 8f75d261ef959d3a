"""Settings files: what is wrong is named, with the value and the way out."""

import pytest

from cdk_app import settings
from training.errors import ConfigError


@pytest.mark.parametrize("name", ["paper", "dev", "production"])
def test_every_environment_loads(name):
    assert settings.load(name).name == name


def test_the_default_is_the_topology_of_the_paper():
    hyperpod = settings.load().hyperpod
    assert (hyperpod.head.instance_type, hyperpod.head.count, hyperpod.head.gpus) == ("ml.r5d.16xlarge", 1, 0)
    assert (hyperpod.gpu.instance_type, hyperpod.gpu.count, hyperpod.gpu.gpus) == ("ml.g7e.12xlarge", 3, 2)


@pytest.mark.parametrize(
    ("override", "value", "said"),
    [
        ("storage.lustre_capacity_gib", 7, ["storage.lustre_capacity_gib = 7", "1200", "100800"]),
        ("storage.lustre_capacity_gib", 3000, ["3000", "multiple of 2400"]),
        ("hyperpod.gpu.count", 99, ["hyperpod.gpu.count = 99", "from 1 to 64"]),
        ("hyperpod.gpu.count", 0, ["hyperpod.gpu.count = 0", "from 1 to 64"]),
        ("hyperpod.head.count", 0, ["hyperpod.head.count = 0", "from 1 to 64"]),
        ("hyperpod.wait_for_nodes_s", 3_600, ["3600", "from 60 to 3500"]),
        ("hyperpod.head.gpus", 1, ["head", "0 GPUs"]),
        ("hyperpod.gpus", {}, ["hyperpod.gpus", "'gpu'"]),
        ("storage.keep_dat", True, ["storage.keep_dat", "'keep_data'"]),
        ("network.zones", ["us-west-2a", "eu-west-1a"], ["eu-west-1a", "us-west-2"]),
        ("network.zones", ["us-west-2a"], ["network.zones"]),
        ("network.cidr", "8.8.0.0/16", ["8.8.0.0/16", "private"]),
        ("network.cidr", "10.0.0.0/8", ["10.0.0.0/8", "/16 to /20"]),
        ("network.zones", ["us-west-2a", "us-west-2a"], ["network.zones", "'us-west-2a'", "twice"]),
        ("network.zones", ["us-west-2a", "us-west-2-lax-1a"], ["us-west-2-lax-1a", "'us-west-2a'"]),
        ("network.cidr", "127.0.0.0/16", ["127.0.0.0/16", "10.0.0.0/8"]),
        ("network.cidr", "10.40.1.0/16", ["10.40.1.0/16", "host bits"]),
        ("network.cidr", "10.40.0.0", ["10.40.0.0", "/16 to /20"]),
        (
            "network",
            {
                "cidr": "10.0.0.0/20",
                "zones": ["us-west-2a", "us-west-2b"],
                "control_plane_prefix_bits": 22,
                "node_prefix_bits": 22,
            },
            ["control_plane_prefix_bits = 22", "10.0.0.0/20", "from 23 to 28"],
        ),
        ("eks.public_access_cidrs", ["10.0.0.0/8"], ["eks.public_access_cidrs", "10.0.0.0/8", "public"]),
        ("region", "us-gov-west-1", ["us-gov-west-1", "partition"]),
        ("name", "a--b", ["name", "a--b"]),
        ("namespace", "kube-system", ["namespace = 'kube-system'", "choose a name"]),
        ("ray.worker.shared_memory_gib", 400, ["shared_memory_gib = 400", "memory_gib = 400", "less"]),
        ("serving.gpus_per_replica", 4, ["gpus_per_replica = 4", "3 nodes with 2 GPUs", "room for 0"]),
        ("serving.max_replicas", 8, ["serving.max_replicas = 8", "room for 6"]),
        ("serving.min_replicas", 2, ["max_replicas = 1 is below min_replicas = 2"]),
        ("guardrails.alert_at_percent", [50, 50], ["alert_at_percent", "50 is named twice"]),
        ("network.node_prefix_bits", 17, ["node_prefix_bits", "17", "from 18"]),
        ("eks.version", "1.20", ["1.20", "1.35"]),
        ("eks.addon_versions", {"vpc-cnn": "v1.0.0-eksbuild.1"}, ["'vpc-cnn'", "vpc-cni"]),
        ("eks.addon_versions", {"coredns": "latest"}, ["eks.addon_versions.coredns", "latest"]),
        ("hyperpod.deep_health_checks", ["Stress"], ["deep_health_checks", "InstanceStress"]),
        (
            "hyperpod.serving",
            {"instance_type": "ml.g7e.12xlarge", "count": 1},
            ["hyperpod: serving.gpus = 0", "at least 1 GPU"],
        ),
        ("network.cidr", "banana", ["network.cidr = 'banana'", "is no IPv4 block like", "slash"]),
        ("network.cidr", "10.40.0.0/255.255.0.0", ["is no IPv4 block like"]),
        ("eks.public_access_cidrs", ["banana"], ["'banana'", "is no IPv4 block like 203.0.113.0/24"]),
        ("eks.public_access_cidrs", ["8.8.8.8"], ["8.8.8.8 has no prefix", "8.8.8.8/32"]),
        ("network.cidr", {"block": "10.0.0.0/16"}, ["network.cidr is a table", "string"]),
        ("name", "Paper", ["name", "Paper"]),
        ("guardrails.monthly_budget_usd", 0, ["0", "from 1"]),
        ("guardrails.idle_after_hours", 48, ["48", "from 1 to 24"]),
        ("observability.grafana_url", "https://g.example.com", ["set both or neither"]),
        ("observability.grafana_url", "http://g.example.com", ["grafana_url", "http://g.example.com"]),
        ("studio.users", ["no spaces"], ["studio.users", "no spaces"]),
        ("governance", {"enabled": True}, ["hyperpod-ns-<team>", "there are none"]),
        ("governance.teams", [{"name": "Research", "gpu_nodes": 1}], ["governance.teams.0.name", "Research"]),
    ],
)
def test_a_fault_names_the_key_the_value_and_the_remedy(override, value, said):
    with pytest.raises(ConfigError) as raised:
        settings.load("paper", {override: value})
    assert all(word in str(raised.value) for word in said), str(raised.value)


def test_replicas_cannot_follow_the_load_under_task_governance():
    governed = {
        "governance": {"enabled": True, "teams": [{"name": "research", "gpu_nodes": 3}]},
        "namespace": "hyperpod-ns-research",
    }
    assert settings.load("paper", governed).serving.scales is False
    with pytest.raises(ConfigError, match=r"serving\.max_replicas = 2 .*Kueue.* make them equal"):
        settings.load("paper", {**governed, "serving.max_replicas": 2})


@pytest.mark.parametrize(
    ("override", "value", "said"),
    [
        ("hyperpod.head.gpus", 1, "hyperpod: head.gpus = 1: must be 0 GPUs"),
        ("hyperpod.gpu.gpus", 0, "hyperpod: gpu.gpus = 0: must be at least 1 GPU"),
        ("ray.head.shared_memory_gib", 900, "ray.head: shared_memory_gib = 900 counts against memory_gib = "),
        ("observability.grafana_url", "https://g.example.com", "observability: grafana_url and"),
    ],
)
def test_a_fault_between_settings_names_these_and_not_their_whole_table(override, value, said):
    with pytest.raises(ConfigError) as raised:
        settings.load("paper", {override: value})
    assert said in str(raised.value)
    assert "{" not in str(raised.value)


GOVERNED = {
    "namespace": "hyperpod-ns-a",
    "governance.enabled": True,
    "governance.teams": [{"name": "a", "gpu_nodes": 2}, {"name": "b", "gpu_nodes": 1, "head_nodes": 0}],
}


@pytest.mark.parametrize(
    ("override", "value", "said"),
    [
        ("namespace", "skypod", ["'skypod'", "hyperpod-ns-<team>", "(a, b)"]),
        ("hyperpod.gpu.count", 2, ["guaranteed 3 gpu nodes", "hyperpod.gpu.count = 2"]),
        ("eks.version", "1.33", ["1.33", "1.34 or newer"]),
    ],
)
def test_teams_share_no_more_than_there_is(override, value, said):
    assert settings.load("paper", GOVERNED).parts.count("governance") == 1
    with pytest.raises(ConfigError) as raised:
        settings.load("paper", GOVERNED | {override: value})
    assert all(word in str(raised.value) for word in said), str(raised.value)


def test_some_node_has_room_for_the_metrics_collector():
    small = {"hyperpod.head.instance_type": "ml.m5.2xlarge", "hyperpod.gpu.instance_type": "ml.g5.xlarge"}
    with pytest.raises(ConfigError, match=r"only ml\.m5\.2xlarge, ml\.g5\.xlarge: .* 4xlarge"):
        settings.load("paper", small)
    assert settings.load("paper", small | {"hyperpod.gpu.instance_type": "ml.g7e.12xlarge"})


def test_dashboards_go_to_one_grafana():
    elsewhere = {
        "observability.grafana_url": "https://grafana.example.com/base",
        "observability.grafana_token_secret_arn": "arn:aws:secretsmanager:us-west-2:123456789012:secret:g-1",
    }
    with pytest.raises(ConfigError, match="set grafana = false"):
        settings.load("paper", elsewhere)
    assert settings.load("paper", elsewhere | {"observability.grafana": False}).observability.grafana_url


def test_an_unknown_environment_lists_those_that_exist():
    with pytest.raises(ConfigError, match=r"dev\.toml, paper\.toml"):
        settings.load("papre")


def test_settings_cannot_be_changed():
    environment = settings.load()
    with pytest.raises(ValueError, match="frozen"):
        environment.namespace = "other"
