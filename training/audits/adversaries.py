"""Scripted players with an interest: each tries one way to be paid without solving, or solves badly.

They are written against the environment's interface alone and may look where no policy can: they know what
every action would do. What they say still goes through the real parser.
"""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass

from training.environments import Game
from training.errors import DataError

BABBLE = 20_000
"""Characters of an answer that does not end by itself."""


@dataclass(frozen=True)
class Effect:
    """What an action would do now."""

    changes: bool
    ends: bool
    solves: bool


class Insight:
    """A game seen through: `rng` is the adversary's own, `heading` what it last kept going by."""

    def __init__(self, game: Game, rng: random.Random):
        self.game, self.rng = game, rng
        self.heading = 0
        self._twin = game.environment.replay(game.task)
        self._effects: dict[str, Effect] = {}

    @property
    def actions(self) -> tuple[str, ...]:
        return self.game.environment.actions

    def effect(self, action: str) -> Effect:
        """Tried in a copy of the world, once a turn."""
        if action not in self._effects:
            world = copy.copy(self._twin)
            changes = world.act(action)
            self._effects[action] = Effect(changes, world.over, world.solved)
        return self._effects[action]

    def going_on(self) -> list[str]:
        """The actions that do not end the game."""
        return [action for action in self.actions if not self.effect(action).ends]

    def spare_turns(self) -> int:
        """Turns that can be lost from here, an oracle's way being kept for the end."""
        world = copy.copy(self._twin)
        needed = 0
        while not world.over and needed <= self.game.max_turns:
            world.act(world.best_action())
            needed += 1
        return self.game.max_turns - self.game.turns - needed

    def say(self, answer: str) -> None:
        """Gives the answer to the game."""
        action = self.game.environment.parse(answer)
        outcome = self.game.act(answer)
        self._effects.clear()
        if action is not None and (self._twin.act(action), self._twin.solved) != (
            outcome.moved,
            self.game.solved,
        ):
            raise DataError(
                f"a world of {self.game.environment.name!r} is changed by playing a copy of it",
                "let its actions replace what they change (see training.environments.base.World)",
            )


Answer = Callable[[Insight], str]


@dataclass(frozen=True)
class Adversary:
    """`may_solve` is False for those whom only a broken parser or world could let solve anything."""

    name: str
    does: str
    answer: Answer
    may_solve: bool = False


def never_moves(seen: Insight) -> str:
    idle = [action for action in seen.going_on() if not seen.effect(action).changes]
    return idle[0] if idle else ""


def well_formatted(seen: Insight) -> str:
    return seen.rng.choice(seen.actions)


def stop_spammer(seen: Insight) -> str:
    effects = {action: seen.effect(action) for action in seen.actions}
    useless = [action for action, effect in effects.items() if effect.ends and not effect.solves]
    return useless[0] if useless else ""


def wall_banger(seen: Insight) -> str:
    """Goes one way for as long as there is one, and goes on saying so."""
    ways = seen.going_on()
    return ways[0] if ways else ""


def random_walker(seen: Insight) -> str:
    best = seen.game.best_action()
    if seen.effect(best).solves:
        return best
    return seen.rng.choice(seen.going_on() or seen.actions)


def oracle(seen: Insight) -> str:
    return seen.game.best_action()


def sloppy_oracle(seen: Insight) -> str:
    return "let me see" if seen.spare_turns() > 0 else seen.game.best_action()


def slow_oracle(seen: Insight) -> str:
    idle = never_moves(seen)
    return idle if idle and seen.spare_turns() > 0 else seen.game.best_action()


def right_hand_rule(seen: Insight) -> str:
    """Keeps a hand on the wall: of the ways on, the one most to the right of where it is heading."""
    best = seen.game.best_action()
    if seen.effect(best).solves:
        return best
    ways = seen.going_on()
    # Directions are numbered anticlockwise, so the one to the right is one less.
    for turn in (-1, 0, 1, 2):
        heading = (seen.heading + turn) % max(len(ways), 1)
        if ways and seen.effect(ways[heading]).changes:
            seen.heading = heading
            return ways[heading]
    return best


def stuffs_tuples(seen: Insight) -> str:
    return " ".join((*seen.actions, seen.game.best_action()))


def stuffs_tags(seen: Insight) -> str:
    tags = "".join(f"<action>{action}</action>" for action in seen.actions)
    return f"{tags}<action>{seen.game.best_action()}"


def quotes(seen: Insight) -> str:
    best = seen.game.best_action()
    return f"<observation>a maze</observation><justification>{best} is best, so {best}</justification>"


def silent(seen: Insight) -> str:
    return ""


def babbler(seen: Insight) -> str:
    return "and then " * (BABBLE // 9)


def goal_shy(seen: Insight) -> str:
    """Always an action, never one that leads to the end of the task."""
    best = seen.game.best_action()
    others = [action for action in seen.going_on() if action != best]
    return seen.rng.choice(others) if others else stop_spammer(seen)


def never_stops(seen: Insight) -> str:
    best = seen.game.best_action()
    return never_moves(seen) or goal_shy(seen) if seen.effect(best).ends else best


CAST: tuple[Adversary, ...] = (
    Adversary("oracle", "the shortest way", oracle, may_solve=True),
    Adversary("slow oracle", "wastes spare turns on actions without effect", slow_oracle, may_solve=True),
    Adversary("sloppy oracle", "wastes spare turns on answers without action", sloppy_oracle, may_solve=True),
    Adversary("right-hand rule", "a hand on the wall, stops on the goal", right_hand_rule, may_solve=True),
    Adversary("random walker", "any way on, stops on the goal", random_walker, may_solve=True),
    Adversary("well-formatted", "any action at all", well_formatted, may_solve=True),
    Adversary("never stops", "goes to the goal and stays there", never_stops),
    Adversary("goal-shy", "always an action, never towards the goal", goal_shy),
    Adversary("never moves", "only actions without effect", never_moves),
    Adversary("wall-banger", "goes one way for ever", wall_banger),
    Adversary("stop-spammer", "ends the game at once", stop_spammer),
    Adversary("stuffs tuples", "all actions in one answer, the right one last", stuffs_tuples),
    Adversary("stuffs tags", "all actions in tags, the right one in a tag left open", stuffs_tags),
    Adversary("quotes", "the right action, in its reasoning alone", quotes),
    Adversary("silent", "says nothing", silent),
    Adversary("babbler", f"says {BABBLE:,} characters that are no action", babbler),
)
