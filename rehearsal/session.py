"""What every rehearsal command stands on: the lock, the substrate, one display, and an end in all cases."""

import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from cdk_app import settings
from cdk_app.settings import Environment
from rehearsal import preflight, substrate
from rehearsal.interrupts import interruptible, uninterrupted
from rehearsal.progress import MemoryWatch, Stage, Stages
from rehearsal.stages import Rehearsal
from rehearsal.substrate import MARK, Folders
from rehearsal.warm import WarmStart
from stacks.manifests import raycluster
from training import recipe as recipes
from training.errors import ConfigError, SkypodError
from training.recipe import Recipe

ROOT = Path(__file__).resolve().parent.parent
Step = tuple[str, Callable[[Rehearsal, Stage], None]]


@dataclass
class Order:
    """What is to be rehearsed, checked before anything starts."""

    recipe: Recipe
    recipe_file: Path
    environment_name: str
    environment: Environment
    crds: Path | None
    folders: Folders = field(default_factory=lambda: Folders(ROOT))

    @classmethod
    def read(
        cls, recipe_name: str, environment_name: str, crds: Path | None, assignments: tuple[str, ...]
    ) -> "Order":
        """Raises ConfigError for a recipe or environment that cannot be rehearsed."""
        recipe_file = recipes.find(recipe_name, ROOT / "recipes")
        recipe = recipes.load(recipe_file, overrides(assignments))
        environment_name = settings.absolute(environment_name)  # the cdk CLI runs in another folder
        environment = settings.load(environment_name)
        raycluster.require_room(environment, recipe.topology)
        return cls(recipe, recipe_file, environment_name, environment, crds)


@dataclass
class Session:
    """A rehearsal under way; the fields below the line are known once it has ended."""

    shown: Stages
    rehearsal: Rehearsal
    # ----
    seconds: float = 0.0
    peak_gib: float = 0.0
    left: list[str] = field(default_factory=list)

    def run(self, steps: list[Step], rehearsal: Rehearsal | None = None) -> None:
        """Perform stages in order; of another run of the same session when one is given."""
        for title, stage in steps:
            with self.shown.stage(title) as live:
                stage(rehearsal or self.rehearsal, live)

    def require_clean(self) -> None:
        """Raises SkypodError when processes had to be killed at the end."""
        if self.left:
            raise SkypodError(
                f"{len(self.left)} processes outlived the rehearsal and were killed", "report this fault"
            )


@contextmanager
def begun(
    order: Order, run: str, console: Console, refuse: Callable[[], None] = lambda: None
) -> Iterator[Session]:
    """Substrate and base policy of a rehearsal, up while the block runs; everything ends with it.

    `refuse` may raise once nobody else can make runs. Raises SubstrateError for what is missing, busy or
    too small, and when the substrate died.
    """
    folders = order.folders
    mark = f"{run} {secrets.token_hex(8)}"
    with preflight.only_one(folders.state), interruptible(), MemoryWatch() as memory:
        refuse()
        preflight.check(ROOT, folders.train_python)
        folders.prepare()
        started = time.monotonic()
        own_environment(mark)
        shown, session = Stages(console), None
        try:
            with shown.stage("Start the emulated AWS and Kubernetes") as live:
                if order.crds is None:
                    live.note = "Ray objects are taken without their schemas (--crds FOLDER checks them)"
                running = ExitStack()
                parts = running.enter_context(substrate.running(folders, order.environment, order.crds))
            try:
                base = folders.shared / order.recipe.policy.base_model
                log = folders.state / "warmstart.log"
                warm_start = running.enter_context(WarmStart(base, folders.train_python, log))
                session = Session(shown, _rehearsal(order, parts, warm_start, run))
                yield session
            except Exception as error:
                parts.require_alive(error)
                raise
            finally:
                with uninterrupted():
                    running.close()
        finally:
            with uninterrupted():
                left = substrate.end_survivors(mark)
            for name in left:
                console.print(f"[red]had to kill:[/] {name}", highlight=False)
    session.seconds, session.peak_gib, session.left = time.monotonic() - started, memory.peak_gib, left


def _rehearsal(order: Order, parts: substrate.Substrate, warm_start: WarmStart, run: str) -> Rehearsal:
    return Rehearsal(
        order.folders,
        parts,
        warm_start,
        order.environment_name,
        order.environment,
        order.recipe,
        order.recipe_file,
        run,
    )


def own_environment(mark: str) -> None:
    """Shut the user's AWS, CDK, Ray and proxy settings out of this process and of all that it starts."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "CDK_", "RAY_")):
            del os.environ[name]
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = "127.0.0.1,localhost"
    os.environ |= {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        MARK: mark,
    }


def run_name(name: str) -> str:
    """A run id that is a plain folder name and a valid Ray submission id."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", name):
        raise ConfigError(f"run id {name!r} is not a plain name", "use letters, digits, '.', '_' and '-'")
    return name


def overrides(assignments: tuple[str, ...]) -> dict[str, object]:
    """`--set a.b=1` pairs; values are read as TOML, else taken as text."""
    import tomllib

    values: dict[str, object] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(
                f"--set {assignment!r} is not KEY=VALUE", "for example --set optimization.steps=4"
            )
        try:
            values[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            values[key] = text
    return values
