"""A run that is struck five times against the same run left alone, on a Ray cluster of one worker node."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client

from cdk_app import cluster, settings
from rehearsal.drills.campaign import Campaign
from rehearsal.drills.faults import BOUNDARY, START
from rehearsal.drills.plan import Strike
from rehearsal.drills.site import Site
from rehearsal.kube.process import KubeStandIn
from rehearsal.substrate import MARK, Folders, end_survivors, free_ports
from rehearsal.warm import WarmStart
from stacks.outputs import Outputs
from tests.kube import sts as fake_sts
from tests.kube.conftest import connect, crds_dir
from tests.skyrl.test_servers_and_jobs import NAME, NAMESPACE, claim, ray_cluster
from training import events, lineage, recipe, trace
from training.sampler import Sampler

pytestmark = [pytest.mark.ray, pytest.mark.skyrl, pytest.mark.vllm]
ROOT = Path(__file__).resolve().parents[2]
RECIPE = recipe.load(
    ROOT / "recipes" / "maze-drill.toml",
    {
        "data.train_mazes": 8,  # two steps are an epoch
        "optimization.steps": 4,
        "evaluation.every_steps": 2,
        "recovery.stall_s": 400,  # a hang is none of these faults, and a busy machine looks like one
    },
)
STEPS = RECIPE.optimization.steps
STRIKES = [
    Strike("driver", START, 0, 0.5),
    Strike("supervisor", "rollout", 1, 0.5),
    Strike("driver", BOUNDARY, 2, 0.0),
    Strike("raylet", "update", 3, 0.5),
    Strike("supervisor", "evaluation", 4, 0.5),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[Site]:
    folders = Folders(ROOT)
    shared, state = tmp_path_factory.mktemp("shared"), tmp_path_factory.mktemp("state")
    base = folders.shared / RECIPE.policy.base_model
    with WarmStart(base, folders.train_python, state / "warm.log") as warm:
        warm.wait(lambda line: None)
    (shared / "models").symlink_to(base.parent)
    sts, mark = fake_sts.Sts(), f"test-drill-{os.getpid()}"
    os.environ[MARK] = mark
    stand_in = KubeStandIn(
        state / "kube",
        port=free_ports(1)[0],
        train_python=folders.train_python,
        shared_dir=shared,
        aws_url=sts.url,
        crds_dir=crds_dir(),
        cluster_name="skypod-test",
    )
    try:
        stand_in.start(60)
        api = connect(stand_in, sts)
        client.CoreV1Api(api).create_namespace({"metadata": {"name": NAMESPACE}})
        cluster.apply(api, [claim()])
        cluster.up(api, ray_cluster(), timeout_s=240)
        fields = {name: "x" for name in Outputs.__dataclass_fields__}
        outputs = Outputs(**fields | {"namespace": NAMESPACE, "region": "us-west-2"})
        yield Site(api, settings.load("paper"), outputs, "train", NAME, shared)
    finally:
        stand_in.stop()
        sts.stop()
        left = end_survivors(mark)
        del os.environ[MARK]
    assert left == []


@pytest.fixture(scope="module")
def campaign(site, tmp_path_factory) -> Campaign:
    found = Campaign(tmp_path_factory.mktemp("drills") / "short", RECIPE, 0, [STRIKES], {})
    found.play_reference(site, lambda event: None)
    found.play(site, 0, lambda event: None)
    return found


def test_every_promise_is_kept(campaign):
    assert campaign.found["summary"]["problems"] == []
    (run,) = campaign.found["runs"]
    assert [row["fault"] for row in run["strikes"]] == [strike.fault for strike in STRIKES]


def test_no_finished_step_is_trained_again(campaign, site):
    assert [row["lost_steps"] for row in campaign.found["runs"][0]["strikes"]] == [0] * len(STRIKES)
    told = events.read(site.run_dir(campaign.run(0)) / "events.jsonl")
    for name in ("checkpoint", "step"):
        finished = [event["step"] for event in told if event["event"] == name]
        assert sorted(set(finished)) == finished, f"a {name} is told once, by the attempt that finished it"


def test_the_struck_run_is_the_other_run_to_the_bit(campaign, site):
    assert campaign.found["runs"][0]["comparison"] == f"identical in all {STEPS} steps, and in the adapter"
    manifests = [lineage.read(site.run_dir(run)) for run in (campaign.reference, campaign.run(0))]
    assert manifests[0]["adapter"]["digest"] == manifests[1]["adapter"]["digest"]
    steps = trace.read(site.run_dir(campaign.reference) / trace.FILE)
    assert len({row["adapter"] for row in steps}) == STEPS, "a policy that does not learn proves nothing"


def test_a_kill_at_the_end_of_an_epoch_skips_nothing_of_the_next(campaign, site):
    """Stock SkyRL 0.4.0, resumed there, goes through an exhausted loader and skips a whole epoch."""
    boundary = campaign.found["runs"][0]["strikes"][2]
    assert (boundary["finished_step"], boundary["resumed_from"]) == (2, 2)
    optimization = RECIPE.optimization
    sampler = Sampler(RECIPE.data.train_mazes, optimization.mazes_per_step, RECIPE.seed)
    trained = {row["step"]: row["rows"] for row in trace.read(site.run_dir(campaign.run(0)) / trace.FILE)}
    for step in (3, 4):
        assert {int(row) for row in trained[step]} == set(sampler.rows_of(step))
    epoch = {int(row) for step in (3, 4) for row in trained[step]}
    assert epoch == set(range(RECIPE.data.train_mazes))
