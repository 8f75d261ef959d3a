"""The stages of a rehearsal, in order. Each does the real thing and leaves its outcome in `Rehearsal`."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import boto3

from cdk_app import (
    cluster,
    cluster_command,
    images,
    kube,
    names,
    outputs,
    promotable,
    readback,
    residue,
    site,
)
from cdk_app.readback import Check
from cdk_app.settings import Environment
from rehearsal import cost, deploy, laptop_image
from rehearsal.progress import Stage
from rehearsal.substrate import DRIVER, Folders, Substrate
from rehearsal.warm import WarmStart
from serving import aliases as files
from serving import registry
from serving.adapter import Limits
from serving.aliases import served_name
from serving.rollout.candidate import Candidate
from serving.rollout.promote import promote
from serving.rollout.rollback import BASE, roll_back
from serving.rollout.site import Site
from serving.rollout.traffic import Questioning
from stacks.outputs import Outputs
from training import attempts, events, lease, lineage, plays, prepare
from training.errors import DataError, SubstrateError
from training.evaluate import (
    EvaluationRecord,
    EvaluationSettings,
    Progress,
    paired,
    read_records,
)
from training.files import read_json, write_json
from training.gate import judge
from training.gate.decision import Decision
from training.jobs import Endpoint
from training.plays import Play
from training.recipe import Recipe
from training.supervisor.cluster import RayCluster
from training.supervisor.supervise import supervise

CLUSTER = "skypod"
MODEL_ID = "maze"
RAY_UP_S = 180
SERVED_AGAIN = "played through HTTP to prove that the server repeats every action of the trainer"


@dataclass
class Rehearsal:
    """One rehearsal; the fields below the line are filled by the stages."""

    folders: Folders
    substrate: Substrate
    warm_start: WarmStart
    environment_name: str
    environment: Environment
    recipe: Recipe
    recipe_file: Path
    run: str
    # ----
    deployed: Outputs | None = None
    checks: list[Check] = field(default_factory=list)
    ray: Endpoint | None = None
    cluster_cost: dict[str, float] = field(default_factory=dict)
    decision: Decision | None = None
    candidate: Candidate | None = None
    serving: Site | None = None
    summaries: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def serving_state(self) -> Path:
        """Of this run alone: what an earlier rehearsal served is gone with its AWS."""
        return self.folders.serving(self.run)

    @property
    def session(self) -> boto3.Session:
        return self.substrate.aws.session()

    @property
    def run_dir(self) -> Path:
        return self.folders.runs / self.run

    @property
    def served_model(self) -> str:
        """The adapter's name in requests."""
        return served_name(MODEL_ID, self.candidate.name)

    @property
    def assembly(self) -> Path:
        """What `cdk synth` wrote, used by every later call of the CLI."""
        return self.folders.state / "cdk.out"

    @property
    def base_dir(self) -> Path:
        return self.folders.shared / self.recipe.policy.base_model

    def api(self) -> Any:
        """The ordinary Kubernetes client for the cluster that eks:DescribeCluster names."""
        return kube.connect(self.session, self.deployed.eks_cluster_name)


def deploy_stacks(r: Rehearsal, stage: Stage) -> None:
    """Synthesize once, bootstrap meanwhile, deploy every stack with the cdk CLI, then read its outputs."""
    env, show, watch = r.substrate.aws.env, _show_cdk(stage), r.substrate.require_alive
    given_up = Event()

    def watch_beside() -> None:
        watch()
        if given_up.is_set():
            raise SubstrateError("the bootstrap is not waited for any more")

    shutil.rmtree(r.assembly, ignore_errors=True)
    with ThreadPoolExecutor(1) as beside:
        bootstrapped = beside.submit(deploy.bootstrap, env, show, watch_beside)
        try:
            deploy.synth(env, ["-c", f"environment={r.environment_name}"], r.assembly, show, watch)
        except BaseException:
            given_up.set()  # else leaving this block would wait for its end
            raise
        bootstrapped.result()
    deploy.deploy(env, deploy.assembly_args(r.assembly), show, watch)
    r.deployed = outputs.read(r.session, r.environment)
    laptop_image.register(r.session, r.deployed, r.folders.train_python)
    stage.note = f"{len(list(r.assembly.glob('*.template.json')))} stacks"


def _show_cdk(stage: Stage) -> Callable[[deploy.Event], None]:
    def show(event: deploy.Event) -> None:
        stage.update(" ".join(filter(None, (event.stage, event.stack, event.status, event.detail[:60]))))

    return show


def read_back(r: Rehearsal, stage: Stage) -> None:
    """Compare what exists with what the settings ask for."""
    r.checks = readback.compare(r.session, r.environment, r.deployed)
    wrong = [f"{c.what}: expected {c.expected}, found {c.found}" for c in r.checks if not c.ok]
    if wrong:
        raise DataError(
            "deployed resources differ from the settings: " + "; ".join(wrong), "see the stack events"
        )
    stage.note = f"{len(r.checks)} properties as set"


def ray_up(r: Rehearsal, stage: Stage) -> None:
    """Create the environment's RayCluster and wait until Kubernetes calls it ready."""
    manifest = cluster_command.manifest(
        r.session, r.environment, r.deployed, name=CLUSTER, topology=r.recipe.topology
    )
    api = r.api()
    with cost.CpuWatch(r.folders.train_python) as watch:
        cluster.up(api, manifest, timeout_s=RAY_UP_S, on_event=stage.update)
    spent = cost.of_attempt(watch.samples, [])
    r.cluster_cost = {"wall_s": spent["training_wall_s"], "cpu_s": spent["training_cpu_s"]}
    r.ray = cluster.dashboard(api, r.deployed.namespace, CLUSTER)
    stage.note = (
        f"1 head + {r.recipe.topology.worker_nodes} workers x {r.recipe.topology.gpus_per_node} declared GPUs"
    )


def base_policy(r: Rehearsal, stage: Stage) -> None:
    """The tiny policy: from the cache, or made since the rehearsal started."""
    stage.note = r.warm_start.wait(stage.update)


def make_run(r: Rehearsal, stage: Stage) -> None:
    """Mazes, resolved recipe and manifest of the run."""
    ceilings = prepare.prepare(
        r.recipe,
        r.run_dir,
        base_dir=r.base_dir,
        image=f"laptop environment as {images.require(r.session, r.deployed, 'train')}",
        source=r.recipe_file,
    )
    stage.note = f"ceiling of the test: {ceilings['test']:.1%} in {r.recipe.environment.max_turns} turns"


def train(r: Rehearsal, stage: Stage) -> None:
    """Supervise the run to its end, as the cluster's Job does; one that was cut off before goes on."""
    ray = RayCluster(lambda: r.ray, DRIVER, r.folders.shared / "runs" / r.run)
    # Whoever starts a rehearsal of a run that is there wants it to go on.
    resume = lease.name_holder() if attempts.read(r.run_dir) else ""
    watch = cost.CpuWatch(r.folders.train_python)
    try:
        with watch:
            verdict = supervise(r.run_dir, ray, r.recipe, resume=resume, show=_show(stage))
    finally:
        spent = cost.of_attempt(watch.samples, events.read(r.run_dir / "events.jsonl"))
        cost.note(r.run_dir, spent, r.cluster_cost)
    if not verdict.finished:
        raise SubstrateError(
            f"the training was {verdict.outcome}: {verdict.problem}",
            f"{verdict.remedy}; the logs of its attempts are in {r.run_dir}/logs",
        )
    for label in ("baseline", "final"):
        r.summaries[label] = read_json(r.run_dir / "evaluations" / f"{label}.summary.json")
    made = len(attempts.read(r.run_dir))
    tail = f", in {made} attempts" if made > 1 else ""
    stage.note = f"{rate(r.summaries['baseline'])} -> {rate(r.summaries['final'])}{tail}"


def _show(stage: Stage) -> Callable[[dict[str, Any]], None]:
    def show(event: dict[str, Any]) -> None:
        match event["event"]:
            case "stage":
                stage.update(f"starting {event['name']}")
            case "evaluating":
                stage.update(f"{event['label']}: {event['solved']} solved of {event['finished']} played")
            case "step":
                gap = event.get("logprob_gap_mean", float("nan"))
                text = f"train {event['train_solve_rate']:.0%}, gap {gap:.1e}"
                stage.advance(event["step"], event["steps"], f"step {event['step']}/{event['steps']}: {text}")
            case "supervisor":
                stage.update(f"attempt {event['attempt']}: {event['what']}: {event['message']}")

    return show


def ray_down(r: Rehearsal, stage: Stage) -> None:
    """Serving needs the GPUs that training held."""
    cluster.down(r.api(), r.deployed.namespace, CLUSTER, timeout_s=60, on_event=stage.update)
    r.ray = None


def decide(r: Rehearsal, stage: Stage) -> None:
    """Hold the run against the thresholds of its recipe; a refused one is served too, to show serving."""
    r.decision, _ = judge.judge([r.run_dir], show=stage.update)
    unmet = ", ".join(condition.name for condition in r.decision.unmet)
    stage.note = f"refused: {unmet}" if unmet else f"passed all {len(r.decision.conditions)} conditions"


def promote_adapter(r: Rehearsal, stage: Stage) -> None:
    """Bring the adapter to all traffic as `skypod promote` does; nothing was live before it.

    One that its gate refused is refused here, too: it is registered as that and gets no alias, but it is
    served, to show serving.
    """
    r.candidate = promotable.candidate(
        r.run_dir, r.base_dir, r.run_dir / "adapter", "dev", Limits(max_rank=r.recipe.policy.lora_rank)
    )
    destination = site.ray_service(
        r.session,
        r.environment,
        r.deployed,
        lambda adapter: r.recipe,
        model_id=MODEL_ID,
        tell=stage.update,
    )
    r.serving = Site(
        r.serving_state,
        destination,
        Questioning(destination, r.candidate.questions),
        site.registry_of(r.session, r.environment, r.deployed),
        tell=stage.update,
    )
    try:
        record = promote(r.serving, r.candidate)
    except DataError:
        if r.decision.passed:
            raise
        destination.load(r.serving.folder(r.candidate.name))
        stage.note = f"refused by its gate, so not live; {destination.url} serves {r.served_model}"
        return
    played = record.steps["play"]
    stage.note = f"{r.served_model} is live; dev {played['solved']}, base {played['solved_by_live']}"


def prove_effect(r: Rehearsal, stage: Stage) -> None:
    """Base and adapter must differ; the adapter must give the log-probabilities of the training engine."""
    found = r.candidate.questions.probe(r.serving.destination, r.candidate.name)
    write_json(r.run_dir / "probe.json", found.to_json())
    lineage.update(r.run_dir, probe=found.to_json())
    found.require()
    stage.note = f"shift from base {found.shift:.2g} nats, gap to the training engine {found.gap:.1e}"


def play_served(r: Rehearsal, stage: Stage) -> None:
    """Play the test through HTTP: every action must be the trainer's."""
    trained = {record.key: record for record in _trainer_records(r)}

    def report(progress: Progress) -> None:
        stage.advance(progress.finished, progress.total, f"{progress.solved} solved")

    tasks = [record.replay().task for record in trained.values()]
    settings = _settings(r)
    what = Play("test", "served", tasks, settings, sealed_as=settings.policy, again=SERVED_AGAIN)
    with r.candidate.questions.policy(r.serving.destination, r.candidate.name) as policy:
        summary = plays.perform(r.run_dir, what, lambda: policy, report)
    r.summaries["served"] = summary
    served = read_records(plays.records_path(r.run_dir, "served"))
    differing = sum(record.actions != trained[record.key].actions for record in served)
    if summary["solved"] != r.summaries["final"]["solved"] or differing:
        raise DataError(
            f"served: {summary['solved']} of {summary['n']} solved, trainer: "
            f"{r.summaries['final']['solved']}; {differing} episodes took other actions",
            "the server does not serve the adapter that was trained; compare evaluations/final and served",
        )
    stage.note = f"{rate(summary)}, every action as in the trainer"


def _trainer_records(r: Rehearsal) -> list[EvaluationRecord]:
    return read_records(r.run_dir / "evaluations" / "final.jsonl")


def _settings(r: Rehearsal) -> EvaluationSettings:
    env = r.recipe.environment
    return EvaluationSettings(
        env.make(),
        max_turns=env.max_turns,
        reward=env.reward,
        policy=_trainer_records(r)[0].policy,
    )


def take_back(r: Rehearsal, stage: Stage) -> None:
    """Roll back as `skypod rollback --to base` does."""
    if files.read(r.serving.aliases).live is None:
        stage.note = "nothing was live"
        return
    roll_back(r.serving, BASE)
    stage.note = f"{r.candidate.name} is not live any more"


def serve_down(r: Rehearsal, stage: Stage) -> None:
    """Take the RayService away by its stack; its processes end with it."""
    site.stop_serving(r.session, r.environment, r.deployed)


def tear_down(r: Rehearsal, stage: Stage) -> None:
    """Destroy every stack, forget what was registered, and look for anything that is left."""
    env, app_args = r.substrate.aws.env, deploy.assembly_args(r.assembly)
    deploy.destroy(env, app_args, _show_cdk(stage), r.substrate.require_alive)
    prefix = names.of(r.environment, r.deployed.account).prefix
    registry.forget(r.session.client("sagemaker"), prefix)
    left = residue.sweep(r.session, r.environment)
    if left:
        told = "; ".join(f"{item.kind} {item.identifier}" for item in left)
        raise SubstrateError(
            f"{len(left)} resources are left after destroy: {told}",
            "delete them, or run `cdk destroy` again",
        )
    stage.note = "nothing is left"


def rate(summary: dict[str, Any]) -> str:
    """A solve rate with its exact 95 % interval."""
    return (
        f"{summary['solved']}/{summary['n']} = {summary['solve_rate']:.1%} "
        f"[{summary['low']:.1%}, {summary['high']:.1%}]"
    )


def compare_runs(r: Rehearsal) -> dict[str, Any]:
    """Paired outcome of the test before and after."""
    before, after = (read_records(r.run_dir / "evaluations" / f"{x}.jsonl") for x in ("baseline", "final"))
    pair = paired(before, after)
    return {"won": pair.won, "lost": pair.lost, "both": pair.both, "neither": pair.neither, "p": pair.p_value}


def forget_scratch(r: Rehearsal) -> None:
    """Engine copies of adapters are of no use after the run."""
    for name in ("lora_versions", "lora_sync", "exports"):
        shutil.rmtree(r.run_dir / name, ignore_errors=True)
