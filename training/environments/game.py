"""One game of one task: counts turns, reads answers as actions, and says what came of it."""

from dataclasses import dataclass, replace

from training import reward as rewards
from training.environments.base import Environment, Observation, Task, World
from training.errors import ConfigError
from training.protocol import strip_end

KEPT_CHARACTERS = 200


@dataclass(frozen=True)
class Outcome:
    """What one answer did: the game is over, the answer was an action, the action had an effect."""

    done: bool
    valid: bool
    moved: bool


@dataclass(frozen=True)
class EpisodeResult:
    """What came of a game.

    `solved` is the world's word alone. `score` is the named reward. `format_ok` is the share of turns that
    were actions. `actions` has one action text per turn, "" for an answer that was none; `malformed` has the
    beginnings of those answers, in order.
    """

    solved: bool
    score: float
    format_ok: float
    turns: int
    optimal_turns: int
    actions: tuple[str, ...]
    malformed: tuple[str, ...] = ()


class Game:
    """Plays one task of an environment. A malformed answer burns a turn, and turns are limited.

    `replay` goes through recorded actions: see `Environment.replay`.
    """

    def __init__(
        self,
        environment: Environment,
        task: Task,
        max_turns: int,
        reward: str = rewards.DEFAULT,
        *,
        replay: bool = False,
    ):
        if max_turns < 1:
            raise ConfigError(f"max_turns = {max_turns} leaves no turn to play", "use 1 or more")
        self.environment = environment
        self.task = task
        self.max_turns = max_turns
        self.world: World = environment.replay(task) if replay else environment.world(task)
        self._reward = rewards.named(reward)
        self._actions: list[str] = []
        self._malformed: list[str] = []

    @property
    def turns(self) -> int:
        """Turns played, malformed answers included."""
        return len(self._actions)

    @property
    def done(self) -> bool:
        """Whether the game is over: ended by an action, or out of turns."""
        return self.world.over or self.turns >= self.max_turns

    @property
    def solved(self) -> bool:
        return self.world.solved

    @property
    def format_ok(self) -> float:
        """Share of the turns so far that were actions; 0 before the first."""
        return sum(map(bool, self._actions)) / max(self.turns, 1)

    def observation(self) -> Observation:
        """What the policy is shown now."""
        shown = self.world.observe()
        misread = self._actions and not self._actions[-1]
        return replace(shown, text=self.environment.reminder) if misread else shown

    def best_action(self) -> str:
        """The action of an oracle here."""
        return self.world.best_action()

    def act(self, answer: str) -> Outcome:
        """Plays one answer of the policy; an error once the game is over."""
        if self.done:
            raise RuntimeError("the game is over")
        action = self.environment.parse(answer)
        self._actions.append("" if action is None else str(action))
        moved = False
        if action is None:
            self._malformed.append(strip_end(answer)[:KEPT_CHARACTERS])
        else:
            moved = self.world.act(action)
        return Outcome(self.done, action is not None, moved)

    def result(self) -> EpisodeResult:
        """What came of it; of a game that was cut short, what came of it so far."""
        return EpisodeResult(
            solved=self.solved,
            score=self._reward(self),
            format_ok=self.format_ok,
            turns=self.turns,
            optimal_turns=self.environment.optimal_turns(self.task),
            actions=tuple(self._actions),
            malformed=tuple(self._malformed),
        )
