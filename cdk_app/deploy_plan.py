"""`skypod deploy-plan`: how long a first deploy takes, and how much of it is the order of the stacks."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import click

from cdk_app import durations, options, settings, templates

GOAL = 1.1
"""How much longer than the longest unavoidable chain a deploy may be."""

Node = tuple[str, str]
"""A resource: its stack and its logical id. The stack itself, once complete, has the logical id ''."""


@dataclass(frozen=True)
class Step:
    """A resource on the critical path, and the minute at which it is done."""

    stack: str
    resource: str
    type: str
    minutes: float
    done_at: float
    source: str


@dataclass(frozen=True)
class Plan:
    """`unavoidable_minutes` is the longest chain when nothing waits for a stack but for what it refers to."""

    environment: str
    minutes: float
    one_at_a_time_minutes: float
    unavoidable_minutes: float
    path: tuple[Step, ...]

    @property
    def ratio(self) -> float:
        return self.minutes / self.unavoidable_minutes


class Graph:
    """Resources of the templates, and what each one waits for."""

    def __init__(self, templates: dict[str, dict[str, Any]], after: dict[str, set[str]]):
        self.templates, self.after = templates, after
        self._exports: dict[str, Node] = {}
        for stack, template in templates.items():
            for output in template.get("Outputs", {}).values():
                name = output.get("Export", {}).get("Name")
                if name:
                    known = [i for i in _references(output["Value"]) if i in template["Resources"]]
                    self._exports[name] = (stack, known[0]) if known else (stack, "")

    def type_of(self, node: Node) -> str:
        return self.templates[node[0]]["Resources"][node[1]]["Type"]

    def minutes(self, node: Node) -> float:
        return durations.of(self.type_of(node)).minutes if node[1] else durations.STACK.minutes

    def before(self, node: Node, *, barriers: bool) -> set[Node]:
        """What `node` waits for. With `barriers`, for all of every stack that its stack comes after."""
        stack, logical_id = node
        resources = self.templates[stack]["Resources"]
        if not logical_id:
            return {(stack, other) for other in resources}
        resource = resources[logical_id]
        waits = {(stack, other) for other in _references(resource) if other in resources}
        if barriers:
            return waits | {(other, "") for other in self.after[stack]}
        imported = {self._exports[name] for name in _imports(resource) if name in self._exports}
        # An order of stacks that no reference explains was chosen for a reason, and stays.
        referred = {self._exports[name][0] for name in _imports(resources) if name in self._exports}
        return waits | imported | {(other, "") for other in self.after[stack] - referred}

    def finish(self, *, barriers: bool) -> dict[Node, float]:
        """The minute at which each resource and each stack is done."""

        @cache
        def done(node: Node) -> float:
            waits = self.before(node, barriers=barriers)
            return max((done(other) for other in waits), default=0.0) + self.minutes(node)

        return {
            (stack, i): done((stack, i)) for stack, t in self.templates.items() for i in ("", *t["Resources"])
        }

    def critical_path(self) -> list[Step]:
        """The chain that decides, from its first resource to the last."""
        done = self.finish(barriers=True)
        node: Node | None = max(done, key=done.__getitem__)
        path = []
        while node:
            if node[1]:
                found = durations.of(self.type_of(node))
                path.append(Step(*node, self.type_of(node), found.minutes, done[node], found.source))
            node = max(self.before(node, barriers=True), key=done.__getitem__, default=None)
        return path[::-1]


def plan(name: str, templates: dict[str, dict[str, Any]], after: dict[str, set[str]]) -> Plan:
    """The plan of an environment's templates by stack; `after` says which stacks each one waits for."""
    graph = Graph(templates, after)
    with_barriers = graph.finish(barriers=True)
    alone = Graph(templates, {stack: set() for stack in templates}).finish(barriers=True)
    return Plan(
        environment=name,
        minutes=max(with_barriers.values()),
        one_at_a_time_minutes=sum(alone[stack, ""] for stack in templates),
        unavoidable_minutes=max(graph.finish(barriers=False).values()),
        path=tuple(graph.critical_path()),
    )


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from _walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner)


def _references(value: Any) -> Iterator[str]:
    """Logical ids that a piece of a template names."""
    for key, inner in _walk(value):
        if key == "Ref":
            yield inner
        elif key == "Fn::GetAtt":
            yield inner[0] if isinstance(inner, list) else inner.split(".")[0]
        elif key == "DependsOn":
            yield from inner if isinstance(inner, list) else [inner]


def _imports(value: Any) -> Iterable[str]:
    return (inner for key, inner in _walk(value) if key == "Fn::ImportValue" and isinstance(inner, str))


@click.command("deploy-plan")
@options.environment
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def deploy_plan(ctx: click.Context, environment: str, as_json: bool) -> None:
    """Print the critical path of a first deploy, from published durations; nothing is deployed.

    Exit status: 0 the order of the stacks costs at most a tenth, 1 it costs more.

    \b
    Examples:
      skypod deploy-plan
      skypod deploy-plan --environment production --json
    """
    chosen = settings.load(environment)
    made = plan(chosen.name, *templates.of(chosen))
    if as_json:
        click.echo(json.dumps({**asdict(made), "ratio": round(made.ratio, 3), "goal": GOAL}))
    else:
        click.echo(f"{'done at':>8} {'takes':>6}  {'stack':14} resource")
        for step in made.path:
            click.echo(
                f"{step.done_at:7.1f}m {step.minutes:5.1f}m  {step.stack:14} {step.type} {step.resource}"
            )
        click.echo(
            f"\n{made.minutes:.0f} minutes with `cdk deploy --all --require-approval never --concurrency 4` "
            f"(after a look at `cdk diff`), {made.one_at_a_time_minutes:.0f} one stack at a time.\n"
            f"The longest unavoidable chain is {made.unavoidable_minutes:.0f} minutes: "
            f"{made.ratio:.2f} times that, the goal is {GOAL} or less.\n"
            "Durations are published ones and estimates (--json says which), not measured by this project."
        )
    ctx.exit(0 if made.ratio <= GOAL else 1)
