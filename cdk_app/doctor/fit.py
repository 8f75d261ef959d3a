"""Whether a recipe fits an environment: batches, GPUs, pods on nodes, GPU memory and host memory."""

from cdk_app.doctor import gpu_memory, host_memory
from cdk_app.doctor.finding import Finding, Status, Unknown, judge, unknown
from cdk_app.doctor.instances import INSTANCES, Instance, allocatable
from cdk_app.doctor.shapes import Shape
from stacks.environment import Environment, InstanceGroup
from stacks.manifests.raycluster import require_room
from stacks.workloads import PodResources
from training.errors import ConfigError
from training.recipe import Recipe

AREA = "recipe"
_TIGHT = 0.9


def check_pods(environment: Environment) -> list[Finding]:
    """Requests above what a node can give leave a pod pending for ever."""
    pods = {
        "head": (environment.hyperpod.head, environment.ray.head),
        "worker": (environment.hyperpod.gpu, environment.ray.worker),
        "serving replica": (
            environment.hyperpod.groups[environment.hyperpod.replica_group],
            environment.serving.replica,
        ),
    }
    return [_pod(name, group, pod) for name, (group, pod) in pods.items()]


def _pod(name: str, group: InstanceGroup, pod: PodResources) -> Finding:
    instance = INSTANCES.get(group.instance_type)
    needed = f"{pod.cpus} CPUs and {pod.memory_gib} GiB"
    check = f"{name} pod on {group.instance_type}"
    if instance is None:
        return unknown("pods", check, _no_instance(group.instance_type), needed)
    cpus, memory_gib = allocatable(instance)
    return judge(
        "pods",
        check,
        pod.cpus <= cpus and pod.memory_gib <= memory_gib,
        f"a node gives about {cpus} CPUs and {memory_gib} GiB to pods",
        needed=needed,
        remedy=f"lower cpus or memory_gib of the {name} in the settings, or take a larger instance type",
    )


def check_gpus(environment: Environment) -> Finding:
    """The settings state the GPUs of a node, and manifests ask for as many."""
    group = environment.hyperpod.gpu
    instance = INSTANCES.get(group.instance_type)
    if instance is None:
        return unknown("pods", f"GPUs of {group.instance_type}", _no_instance(group.instance_type))
    return judge(
        "pods",
        f"GPUs of {group.instance_type}",
        group.gpus == instance.gpus,
        f"{instance.gpus} {instance.gpu}".strip(),
        needed=f"{group.gpus} (hyperpod.gpu.gpus)",
        remedy=f"set hyperpod.gpu.gpus = {instance.gpus}",
    )


def _no_instance(instance_type: str) -> Unknown:
    return Unknown(f"nothing is known here of {instance_type}", "add it to cdk_app/doctor/instances.py")


def check_topology(environment: Environment, recipe: Recipe) -> list[Finding]:
    """GPUs, and the batch arithmetic (which a recipe that loads has passed)."""
    top, opt, n = recipe.topology, recipe.optimization, recipe.rollout.samples_per_maze
    needed = f"{top.worker_nodes} nodes x {top.gpus_per_node} GPUs"
    group = environment.hyperpod.gpu
    found = f"{group.count} nodes x {group.gpus} GPUs"
    try:
        require_room(environment, top)
        room = Finding(AREA, "GPUs", Status.OK, found, needed)
    except ConfigError as error:
        room = Finding(AREA, "GPUs", Status.FAILED, found, needed, error.remedy)
    episodes, per_rank = opt.mazes_per_step * n, opt.mini_batch_mazes * n // top.ranks
    batches = f"{episodes} episodes a step, {opt.mazes_per_step // opt.mini_batch_mazes} updates, "
    batches += f"{per_rank} episodes a GPU and update in micro-batches of {opt.micro_batch_episodes}"
    own = environment.hyperpod.serving
    free = own.count * own.gpus if own else group.count * group.gpus - top.ranks
    replicas = environment.serving.max_replicas * environment.serving.gpus_per_replica
    return [
        room,
        Finding(AREA, "batches", Status.OK, batches),
        judge(
            AREA,
            "serving beside training",
            free >= replicas,
            f"{max(free, 0)} GPUs are free while this trains",
            needed=f"{replicas}",
            remedy="delete the RayCluster before serving, raise hyperpod.gpu.count, or set hyperpod.serving",
            warn=True,
        ),
    ]


def check_memory(environment: Environment, recipe: Recipe, shape: Shape | Unknown) -> list[Finding]:
    """The engine, the trainer, a worker's host memory and the head's."""
    group = environment.hyperpod.gpu
    instance = INSTANCES.get(group.instance_type)
    if isinstance(shape, Unknown) or instance is None:
        why = shape if isinstance(shape, Unknown) else _no_instance(group.instance_type)
        return [unknown(AREA, check, why) for check in ("GPU memory", "host memory")]
    return [
        _rollout(recipe, shape, instance),
        _training(recipe, shape, instance),
        _host("worker", host_memory.worker(recipe, shape, environment.ray.worker), environment.ray.worker),
        _host("head", host_memory.head(recipe, shape, environment.ray.head), environment.ray.head),
    ]


def _rollout(recipe: Recipe, shape: Shape, instance: Instance) -> Finding:
    needs = gpu_memory.rollout(recipe, shape, instance.gpu_memory_gib)
    longest = recipe.rollout.max_model_len_tokens
    share = recipe.rollout.gpu_memory_utilization
    engine_gib = needs.weights_gib + needs.work_gib + longest * needs.token_bytes / gpu_memory.GIB
    least = engine_gib / instance.gpu_memory_gib
    return judge(
        AREA,
        "GPU memory to play",
        needs.tokens >= longest,
        f"{share:.0%} of {instance.gpu_memory_gib:.0f} GiB less {needs.weights_gib:.1f} of weights and "
        f"{needs.work_gib:.1f} of work hold a cache of {needs.tokens:,} tokens",
        needed=f"one sequence of {longest:,} tokens at least",
        remedy=f"set rollout.gpu_memory_utilization to {least + 0.02:.2f} or more"
        if least < _TIGHT
        else "lower rollout.max_model_len_tokens, or take GPUs with more memory",
    )


def _training(recipe: Recipe, shape: Shape, instance: Instance) -> Finding:
    needs = gpu_memory.training(recipe, shape)
    room = instance.gpu_memory_gib
    fits = gpu_memory.largest_micro_batch(recipe, shape, _TIGHT * room)
    remedy = (
        f"set optimization.micro_batch_episodes = {fits}"
        if fits
        else "lower rollout.max_input_tokens or max_new_tokens, or take more GPUs or larger ones"
    )
    return judge(
        AREA,
        "GPU memory to learn",
        needs.total_gib <= _TIGHT * room,
        f"{needs.total_gib:.0f} GiB: {needs}",
        needed=f"at most {_TIGHT:.0%} of {room:.0f} GiB",
        remedy=remedy,
        warn=needs.total_gib <= room,
    )


def _host(who: str, parts: host_memory.Parts, pod: PodResources) -> Finding:
    usable = host_memory.USABLE * pod.memory_gib
    return judge(
        AREA,
        f"host memory of a {who}" if who == "worker" else f"host memory of the {who}",
        parts.total_gib <= usable,
        f"{parts.total_gib:.0f} GiB: {parts}",
        needed=f"at most {host_memory.USABLE:.0%} of the pod's {pod.memory_gib} GiB",
        remedy=f"set ray.{who}.memory_gib to {parts.total_gib / host_memory.USABLE + 1:.0f} or more, "
        f"or lower ray.{who}.shared_memory_gib",
    )
