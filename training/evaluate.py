"""Plays mazes against any policy, keeps a record of every episode, and says what the records show.

A policy is anything with `act`: the engine inside the trainer, a server over HTTP, a script. All live
episodes go through it one turn at a time. Records are appended to a JSON-lines file as episodes end, so an
evaluation that dies continues where it was, with no maze counted twice or lost.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from training import reward as rewards
from training.episode import Episode, EpisodeResult, optimal_turns
from training.errors import ConfigError, DataError, SubstrateError
from training.mazes import Maze
from training.protocol import strip_end
from training.render import RenderStyle, image_data_url
from training.statistics import clopper_pearson, mcnemar_exact

__all__ = [
    "Conversation",
    "EpisodeResult",
    "EvaluationRecord",
    "EvaluationSettings",
    "Paired",
    "Policy",
    "Progress",
    "Summary",
    "Turn",
    "ceiling",
    "opening",
    "paired",
    "play",
    "read_records",
    "records_digest",
    "summarize",
]

LEVEL = 0.95


@dataclass(frozen=True)
class Turn:
    """One past turn: the picture shown, uint8 [height, width, 3], and the answer given to it."""

    image: np.ndarray
    answer: str


@dataclass
class Conversation:
    """What a policy is asked: the past turns of one episode, oldest first, and the picture of now.

    `key` names the episode (maze digest and sample), so that sampling can be seeded by (key, turn).
    """

    key: str
    image: np.ndarray
    turns: list[Turn] = field(default_factory=list)

    @property
    def images(self) -> list[np.ndarray]:
        """All pictures, the current one last."""
        return [*(turn.image for turn in self.turns), self.image]

    @property
    def answers(self) -> list[str]:
        """The answers given so far, without end-of-turn tokens: one fewer than `images`."""
        return [turn.answer for turn in self.turns]

    def messages(self) -> list[dict[str, Any]]:
        """In the chat format: a picture from the user, an answer, ..., the picture of now."""
        chat: list[dict[str, Any]] = []
        for image, answer in zip(self.images, [*self.answers, None], strict=True):
            part = {"type": "image_url", "image_url": {"url": image_data_url(image)}}
            chat.append({"role": "user", "content": [part]})
            if answer is not None:
                chat.append({"role": "assistant", "content": answer})
        return chat


class Policy(Protocol):
    """Anything that plays."""

    def act(self, conversations: list[Conversation]) -> Sequence[str]:
        """One answer per conversation, in their order."""
        ...


@dataclass(frozen=True)
class EvaluationSettings:
    """How the mazes are played. `policy` names the candidate (a digest, best of all) and is recorded.

    `batch` limits the episodes that are live at once (None: all); `samples` is episodes per maze.
    """

    max_turns: int
    squares_per_move: int = 1
    reward: str = rewards.DEFAULT
    style: RenderStyle = field(default_factory=RenderStyle)
    policy: str = ""
    samples: int = 1
    batch: int | None = None

    def __post_init__(self) -> None:
        if self.samples < 1 or (self.batch is not None and self.batch < 1):
            raise ConfigError(f"samples = {self.samples}, batch = {self.batch}", "use 1 or more of each")

    @property
    def digest(self) -> str:
        """Names what makes records comparable: all but the number of samples and the batch."""
        parts = asdict(self) | {"samples": None, "batch": None}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class EvaluationRecord:
    """One finished episode: one line of the records file.

    `maze` is as `Maze.to_json`; `digest` and `canonical` are its digests; `settings` is the digest of the
    EvaluationSettings; the rest is as in EpisodeResult.
    """

    digest: str
    canonical: str
    maze: dict[str, Any]
    sample: int
    policy: str
    settings: str
    max_turns: int
    squares_per_move: int
    reward: str
    solved: bool
    score: float
    format_ok: float
    turns: int
    optimal_turns: int
    actions: tuple[str, ...]
    malformed: tuple[str, ...]

    @property
    def key(self) -> str:
        """The episode's name within its evaluation."""
        return _key(self.digest, self.sample)

    @property
    def solvable(self) -> bool:
        """Whether the turns allowed were enough for an oracle."""
        return self.optimal_turns <= self.max_turns

    def to_line(self) -> str:
        """The record as one line of JSON, newline included."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")) + "\n"

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "EvaluationRecord":
        """Raises DataError when fields are missing or unknown."""
        names = {part.name for part in fields(cls)}
        if not isinstance(data, dict) or data.keys() != names:
            odd = sorted(names ^ set(data)) if isinstance(data, dict) else [type(data).__name__]
            raise DataError(f"an evaluation record has missing or unknown fields: {odd}", "evaluate again")
        return cls(**data | {"actions": tuple(data["actions"]), "malformed": tuple(data["malformed"])})


@dataclass(frozen=True)
class Progress:
    """Where an evaluation stands, in episodes; `turns` counts the answers of this play."""

    finished: int
    total: int
    solved: int
    turns: int


@dataclass(frozen=True)
class Summary:
    """What records show. All rates are shares (0 to 1) and `solve_rate` comes from `solved` alone.

    `low` and `high` bound the solve rate (exact, 95 %). `ceiling` is the share of mazes that an oracle solves
    within the turns allowed. `format_rate` is the share of all turns that were actions. `turns_over_optimal`
    is the mean of turns divided by optimal turns over solved episodes, None when none is solved.
    `records_digest` names the records, whatever their order in the file.
    """

    n: int
    solved: int
    solve_rate: float
    low: float
    high: float
    ceiling: float
    solve_rate_of_solvable: float
    format_rate: float
    mean_score: float
    mean_turns: float
    turns_over_optimal: float | None
    policy: str
    settings: str
    records_digest: str

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Paired:
    """Two evaluations of the same mazes: solved by both, only after, only before, by neither."""

    both: int
    won: int
    lost: int
    neither: int
    p_value: float


def play(
    policy: Policy,
    mazes: Sequence[Maze],
    settings: EvaluationSettings,
    on_progress: Callable[[Progress], None] | None = None,
    records_path: Path | None = None,
) -> list[EvaluationRecord]:
    """Plays every maze and returns the records in the order of `mazes` (and samples).

    With `records_path`, episodes that the file already holds are not played again, and each new record is
    appended as its episode ends. Raises DataError when a maze is given twice or the file is of another
    evaluation; what the policy raises passes through, with nothing recorded so far lost.
    """
    if len({maze.digest for maze in mazes}) != len(mazes):
        raise DataError(
            f"{len(mazes)} mazes hold duplicates", "play every maze once; use samples for repeats"
        )
    tasks = {_key(maze.digest, sample): maze for maze in mazes for sample in range(settings.samples)}
    found = _resume(records_path, settings, tasks) if records_path else {}
    waiting = [key for key in tasks if key not in found][::-1]
    live: list[tuple[Conversation, Episode]] = []
    answered = 0
    while waiting or live:
        while waiting and (settings.batch is None or len(live) < settings.batch):
            key = waiting.pop()
            episode = Episode(
                tasks[key], settings.max_turns, settings.squares_per_move, settings.style, settings.reward
            )
            live.append((Conversation(key, episode.observation()), episode))
        answers = policy.act([conversation for conversation, _ in live])
        if len(answers) != len(live) or not all(isinstance(answer, str) for answer in answers):
            raise SubstrateError(
                f"the policy gave {len(answers)} answers to {len(live)} conversations, or not all are texts",
                "a policy must answer each conversation once, in order; an empty answer is an empty text",
            )
        for (conversation, episode), answer in zip(live, answers, strict=True):
            if episode.act(answer).done:
                record = _record(conversation.key, episode, settings)
                found[conversation.key] = record
                if records_path:
                    with records_path.open("a", encoding="utf-8") as file:
                        file.write(record.to_line())
            else:
                conversation.turns.append(Turn(conversation.image, strip_end(answer)))
                conversation.image = episode.observation()
        answered += len(live)
        live = [(conversation, episode) for conversation, episode in live if not episode.done]
        if on_progress:
            on_progress(Progress(len(found), len(tasks), sum(r.solved for r in found.values()), answered))
    return [found[key] for key in tasks]


def opening(mazes: Sequence[Maze], settings: EvaluationSettings) -> list[Conversation]:
    """The first question of each maze, as `play` would ask it: canaries for comparing two engines."""
    return [
        Conversation(
            _key(maze.digest, 0),
            Episode(maze, settings.max_turns, settings.squares_per_move, settings.style).observation(),
        )
        for maze in mazes
    ]


def summarize(records: Sequence[EvaluationRecord], ceiling: float | None = None) -> Summary:
    """What the records of one evaluation show. DataError when they are none, mixed or double.

    `ceiling`, when given, must be that of the mazes played: a summary of half an evaluation is refused.
    """
    if not records:
        raise DataError("there are no records to summarize", "play the mazes first")
    if len({record.settings for record in records}) > 1:
        raise DataError("records of several policies or settings are mixed", "summarize them apart")
    if len({record.key for record in records}) != len(records):
        raise DataError("records hold an episode twice", "evaluate again into an empty file")
    n, solved = len(records), sum(record.solved for record in records)
    solvable = sum(record.solvable for record in records)
    if ceiling is not None and abs(ceiling - solvable / n) > 1e-9:
        raise DataError(
            f"the ceiling given is {ceiling:.4f}, that of the records is {solvable / n:.4f}",
            "the records are not of the mazes and turns meant; finish or repeat the evaluation",
        )
    low, high = clopper_pearson(solved, n, LEVEL)
    ratios = [record.turns / record.optimal_turns for record in records if record.solved]
    turns = sum(record.turns for record in records)
    return Summary(
        n=n,
        solved=solved,
        solve_rate=solved / n,
        low=low,
        high=high,
        ceiling=solvable / n,
        solve_rate_of_solvable=solved / solvable if solvable else 0.0,
        format_rate=sum(record.format_ok * record.turns for record in records) / turns,
        mean_score=sum(record.score for record in records) / n,
        mean_turns=turns / n,
        turns_over_optimal=sum(ratios) / len(ratios) if ratios else None,
        policy=records[0].policy,
        settings=records[0].settings,
        records_digest=records_digest(records),
    )


def ceiling(mazes: Iterable[Maze], max_turns: int, squares_per_move: int = 1) -> float:
    """Share of mazes that an oracle solves within `max_turns`, the stop included: no policy can do better."""
    enough = [optimal_turns(maze, squares_per_move) <= max_turns for maze in mazes]
    if not enough:
        raise DataError("there are no mazes to take a ceiling of", "name a split that has rows")
    return sum(enough) / len(enough)


def paired(before: Sequence[EvaluationRecord], after: Sequence[EvaluationRecord]) -> Paired:
    """Compares two evaluations maze by maze; the p-value is McNemar's, exact and two-sided.

    DataError unless both played the same episodes with the same turns and moves.
    """
    first, second = ({record.key: record for record in records} for records in (before, after))
    rules = {(record.max_turns, record.squares_per_move) for record in (*before, *after)}
    if first.keys() != second.keys() or not first or len(rules) > 1:
        raise DataError(
            f"evaluations of {len(first)} and {len(second)} episodes are not of the same mazes and rules",
            "play both policies on the same split with the same settings",
        )
    counts = {(a, b): 0 for a in (True, False) for b in (True, False)}
    for key, record in first.items():
        counts[record.solved, second[key].solved] += 1
    won, lost = counts[False, True], counts[True, False]
    return Paired(counts[True, True], won, lost, counts[False, False], mcnemar_exact(won, lost))


def read_records(path: Path) -> list[EvaluationRecord]:
    """The records of a file, each replayed; a last line that a crash left unfinished is not one of them.

    Raises DataError on a line that is no record, or whose outcome is not what its actions lead to.
    """
    records = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            record = EvaluationRecord.from_json(json.loads(line))
        except (ValueError, TypeError) as error:
            raise DataError(f"{path.name} line {number} is no record: {error}", "evaluate again") from None
        if wrong := _not_replayed(record):
            raise DataError(
                f"{path.name} line {number}: the actions on maze {record.digest} do not lead to the "
                f"{', '.join(wrong)} stated",
                "the file was changed; evaluate again",
            )
        records.append(record)
    return records


def records_digest(records: Iterable[EvaluationRecord]) -> str:
    """SHA-256 of the records, whatever the order in which the episodes ended."""
    return hashlib.sha256("".join(sorted(record.to_line() for record in records)).encode()).hexdigest()


def _resume(path: Path, settings: EvaluationSettings, tasks: dict[str, Maze]) -> dict[str, EvaluationRecord]:
    """The records that a file has for these tasks; cuts off an unfinished last line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        return {}
    records = read_records(path)
    found = {record.key: record for record in records}
    strangers = found.keys() - tasks.keys()
    if len(found) != len(records) or strangers or any(r.settings != settings.digest for r in records):
        raise DataError(
            f"{path.name} holds records of another evaluation "
            f"({len(records)} records, {len(strangers)} of other mazes, "
            f"settings {sorted({r.settings for r in records})}; this one has {settings.digest})",
            "use another label, or move the file away",
        )
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(content.rfind(b"\n") + 1)
    return found


def _record(key: str, episode: Episode, settings: EvaluationSettings) -> EvaluationRecord:
    result = asdict(episode.result())
    return EvaluationRecord(
        digest=episode.maze.digest,
        canonical=episode.maze.canonical_digest,
        maze=episode.maze.to_json(),
        sample=int(key.rpartition("/")[2]),
        policy=settings.policy,
        settings=settings.digest,
        max_turns=settings.max_turns,
        squares_per_move=settings.squares_per_move,
        reward=settings.reward,
        **result,
    )


def _not_replayed(record: EvaluationRecord) -> list[str]:
    """The fields of a record that playing its actions again does not give."""
    maze = Maze.from_json(record.maze)
    episode = Episode(maze, record.max_turns, record.squares_per_move, reward=record.reward)
    for action in record.actions:
        if episode.done:
            return ["actions"]
        episode.act(action)
    if not episode.done:
        return ["actions"]
    stated = asdict(record)
    found = asdict(episode.result()) | {"digest": maze.digest, "canonical": maze.canonical_digest}
    return sorted(name for name, value in found.items() if name != "malformed" and stated[name] != value)


def _key(digest: str, sample: int) -> str:
    return f"{digest}/{sample}"
