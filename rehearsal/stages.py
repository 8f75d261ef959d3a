"""The stages of a rehearsal, in order. Each does the real thing and leaves its outcome in `Rehearsal`."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import boto3

from cdk_app import cluster, cluster_command, images, kube, outputs, readback, residue
from cdk_app.readback import Check
from cdk_app.settings import Environment
from rehearsal import cost, deploy, laptop_image
from rehearsal.progress import Stage
from rehearsal.substrate import DRIVER, Folders, Substrate
from rehearsal.warm import WarmStart
from serving import adapter, store
from serving.client import ChatPolicy
from stacks.manifests import rayservice
from stacks.outputs import Outputs
from training import attempts, events, lease, lineage, plays, prepare
from training.errors import DataError, SubstrateError
from training.evaluate import (
    EvaluationRecord,
    EvaluationSettings,
    Progress,
    opening,
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
SERVICE = "skypod-serve"
MODEL_ID = "maze"
RAY_UP_S = 180
SERVED_S = 240
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
    served_url: str = ""
    adapter_name: str = ""
    adapter_digest: str = ""
    decision: Decision | None = None
    summaries: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def session(self) -> boto3.Session:
        return self.substrate.aws.session()

    @property
    def run_dir(self) -> Path:
        return self.folders.runs / self.run

    @property
    def served_model(self) -> str:
        """The adapter's name in requests, as Ray Serve LLM spells it."""
        return f"{MODEL_ID}:{self.adapter_name}"

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


def publish(r: Rehearsal, stage: Stage) -> None:
    """Package the adapter by content and put it where serving looks for it."""
    manifest = lineage.read(r.run_dir)
    packaged = adapter.package(
        r.run_dir / manifest["adapter"]["folder"],
        r.run_dir / "adapter",
        base_dir=r.base_dir,
        run_id=r.run,
        evaluation_digest=manifest["evaluations"]["final"]["records"],
    )
    bucket, _, prefix = r.deployed.adapters_uri.removeprefix("s3://").partition("/")
    uri = store.upload(r.run_dir / "adapter" / packaged.name, r.session.client("s3"), bucket, prefix)
    r.adapter_name, r.adapter_digest = packaged.name, packaged.digest
    lineage.update(
        r.run_dir, serving={"name": packaged.name, "uri": uri, "base_digest": packaged.base_digest}
    )
    stage.note = uri


def serve(r: Rehearsal, stage: Stage) -> None:
    """Apply the serving manifest and wait until base and adapter are served."""
    manifest = rayservice.build(
        r.environment,
        r.deployed,
        image=images.require(r.session, r.deployed, "serve"),
        base_model_path=f"/shared/{r.recipe.policy.base_model}",
        model_id=MODEL_ID,
        adapters_uri=r.deployed.adapters_uri,
        adapter_name=r.adapter_name,
        adapter_digest=r.adapter_digest,
        max_lora_rank=r.recipe.policy.lora_rank,
        max_model_len=r.recipe.rollout.max_model_len_tokens,
        name=SERVICE,
    )
    r.served_url = cluster.serve(r.api(), manifest, timeout_s=SERVED_S, on_event=stage.update).url
    with _served(r, r.served_model) as policy:
        policy.endpoint.wait_until_served([MODEL_ID, r.served_model], timeout_s=SERVED_S)
    stage.note = f"{r.served_url} serves {MODEL_ID} and {r.served_model}"


def prove_effect(r: Rehearsal, stage: Stage) -> None:
    """Base and adapter must differ; the adapter must give the log-probabilities of the training engine."""
    from serving import probe

    references = probe.read_references(r.run_dir / "canaries.json")
    keys = {reference.key for reference in references}
    tasks = [record.replay().task for record in _trainer_records(r) if record.key in keys]
    with _served(r, MODEL_ID) as base, _served(r, r.served_model) as adapter:
        found = probe.run(base, adapter, opening(tasks, _settings(r)), references)
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
    with _served(r, r.served_model) as policy:
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


def _served(r: Rehearsal, model: str) -> ChatPolicy:
    allowed = None
    if r.recipe.rollout.text_tokens_only:
        allowed = read_json(r.run_dir / "generation.json")["allowed_token_ids"]
    tokens = r.recipe.rollout.max_new_tokens
    return ChatPolicy(r.served_url, model, max_tokens=tokens, allowed_token_ids=allowed)


def serve_down(r: Rehearsal, stage: Stage) -> None:
    """Delete the RayService; its processes end with it."""
    cluster.down(r.api(), r.deployed.namespace, SERVICE, timeout_s=60, kind="RayService")
    r.served_url = ""


def tear_down(r: Rehearsal, stage: Stage) -> None:
    """Destroy every stack and look for anything that is left."""
    env, app_args = r.substrate.aws.env, deploy.assembly_args(r.assembly)
    deploy.destroy(env, app_args, _show_cdk(stage), r.substrate.require_alive)
    left = residue.sweep(r.session, r.environment)
    if left:
        names = "; ".join(f"{item.kind} {item.identifier}" for item in left)
        raise SubstrateError(
            f"{len(left)} resources are left after destroy: {names}",
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
