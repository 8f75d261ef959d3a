"""Plays tasks against any policy, keeps a record of every episode, and says what the records show.

A policy is anything with `act`: the engine inside the trainer, a server over HTTP, a script. All live
episodes go through it one turn at a time. Records are appended to a JSON-lines file as episodes end, so an
evaluation that dies continues where it was, with no task counted twice or lost.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from training import reward as rewards
from training.conversation import Conversation, Policy, Turn
from training.environments import Environment, EpisodeResult, Game, Task, named
from training.errors import ConfigError, DataError, SkypodError, SubstrateError
from training.files import Appended, Appender, parse_json, read_whole, whole_lines
from training.protocol import strip_end
from training.samples import clustered_interval, pass_at
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
HOTTEST = 2.0
EXACT, CLUSTERED = "exact", "clustered"
_NO_RECORD = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError)
"""What comes of reading and replaying a line that anybody may have written."""


@dataclass(frozen=True)
class EvaluationSettings:
    """How the tasks are played. `policy` names the candidate (a digest, best of all) and is recorded.

    `temperature` 0 is greedy. Otherwise every answer is sampled with a seed of its own, from `seed`, task,
    sample and turn (`Conversation.seed`), and `samples` episodes are played of each task. The policy has to
    be made with the same two. `batch` limits the episodes that are live at once (None: all).
    """

    environment: Environment
    max_turns: int
    reward: str = rewards.DEFAULT
    policy: str = ""
    temperature: float = 0.0
    seed: int = 0
    samples: int = 1
    batch: int | None = None

    def __post_init__(self) -> None:
        if self.samples < 1 or (self.batch is not None and self.batch < 1):
            raise ConfigError(f"samples = {self.samples}, batch = {self.batch}", "use 1 or more of each")
        if not 0 <= self.temperature <= HOTTEST or not 0 <= self.seed < 2**63:
            raise ConfigError(
                f"temperature = {self.temperature}, seed = {self.seed}",
                f"use a temperature of 0 to {HOTTEST:g} and a seed of 0 or more",
            )
        if self.samples > 1 and not self.temperature:
            raise ConfigError(
                f"{self.samples} samples at temperature 0 are one game played {self.samples} times",
                "give a temperature above 0, or play one sample",
            )

    @property
    def digest(self) -> str:
        """Names what makes records comparable: all but samples, batch and an unread seed."""
        unread = {"samples": None, "batch": None} | ({} if self.temperature else {"seed": None})
        parts = asdict(self) | unread | {"environment": self.environment.name}
        parts["options"] = self.environment.options
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def made(self, record: "EvaluationRecord") -> bool:
        """Whether a record is of these settings in what it says of each, not only by their digest."""
        environment = self.environment
        stated = (record.settings, record.policy, record.max_turns, record.reward)
        rules = (self.digest, self.policy, self.max_turns, self.reward)
        where = (record.environment, record.options)
        return stated == rules and where == (environment.name, environment.options)


@dataclass(frozen=True)
class EvaluationRecord:
    """One finished episode: one line of the records file.

    `task` is as `Task.to_json`, `digest` and `canonical` are its digests; `environment` and `options` name
    what it was played in; `settings` is the digest of the EvaluationSettings; the rest is as in
    EpisodeResult.
    """

    digest: str
    canonical: str
    task: dict[str, Any]
    environment: str
    options: dict[str, Any]
    sample: int
    policy: str
    settings: str
    max_turns: int
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

    def replay(self) -> Game:
        """The game at its start, for going through `actions`. DataError when the task is none."""
        environment = named(self.environment, **self.options)
        task = environment.load(self.task)
        return Game(environment, task, self.max_turns, self.reward, replay=True)

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

    `n` counts episodes: `samples` of each task. `low` and `high` bound the solve rate (95 %); `interval` says
    how: "exact" (Clopper and Pearson) with one sample, "clustered" (`samples.clustered_interval`) with more.
    `pass_at_k` is the chance that k samples hold a solved one, by k as a text. `ceiling` is the share of
    tasks that an oracle solves within the turns allowed. `format_rate` is the share of all turns that were
    actions. `turns_over_optimal` is the mean of turns divided by optimal turns over solved episodes, None
    when none is solved. `records_digest` names the records, whatever their order in the file.
    """

    n: int
    samples: int
    solved: int
    solve_rate: float
    low: float
    high: float
    interval: str
    pass_at_k: dict[str, float]
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
    """Two evaluations of the same tasks: solved by both, only after, only before, by neither."""

    both: int
    won: int
    lost: int
    neither: int
    p_value: float


def play(
    policy: Policy,
    tasks: Sequence[Task],
    settings: EvaluationSettings,
    on_progress: Callable[[Progress], None] | None = None,
    records_path: Path | None = None,
    on_records: Callable[[Appended], None] | None = None,
) -> list[EvaluationRecord]:
    """Plays every task and returns the records in the order of `tasks` (and samples).

    With `records_path`, episodes that the file already holds are not played again; each new record is added
    as its episode ends, and `on_records` told. Raises DataError when a task is given twice or the file is of
    another evaluation; what the policy raises passes through, with nothing recorded so far lost.
    """
    if len({task.digest for task in tasks}) != len(tasks):
        raise DataError(f"{len(tasks)} tasks hold duplicates", "name each once; use samples for repeats")
    episodes = {_key(task.digest, sample): task for task in tasks for sample in range(settings.samples)}
    found, held = _resume(records_path, settings, episodes) if records_path else ({}, b"")
    file = Appender(records_path, on_records, held) if records_path else None
    waiting = [key for key in episodes if key not in found][::-1]
    live: list[tuple[Conversation, Game]] = []
    answered = 0
    while waiting or live:
        while waiting and (settings.batch is None or len(live) < settings.batch):
            key = waiting.pop()
            game = Game(settings.environment, episodes[key], settings.max_turns, settings.reward)
            live.append((_conversation(key, game), game))
        answers = policy.act([conversation for conversation, _ in live])
        if len(answers) != len(live) or not all(isinstance(answer, str) for answer in answers):
            raise SubstrateError(
                f"the policy gave {len(answers)} answers to {len(live)} conversations, or not all are texts",
                "a policy must answer each conversation once, in order; an empty answer is an empty text",
            )
        ended = []
        for (conversation, game), answer in zip(live, answers, strict=True):
            if game.act(answer).done:
                found[conversation.key] = _record(conversation.key, game, settings)
                ended.append(found[conversation.key])
            else:
                conversation.turns.append(Turn(conversation.image, strip_end(answer), conversation.text))
                shown = game.observation()
                conversation.image, conversation.text = shown.image, shown.text
        if file and ended:
            file.append("".join(record.to_line() for record in ended))
        answered += len(live)
        live = [(conversation, game) for conversation, game in live if not game.done]
        if on_progress:
            on_progress(Progress(len(found), len(episodes), sum(r.solved for r in found.values()), answered))
    return [found[key] for key in episodes]


def opening(tasks: Sequence[Task], settings: EvaluationSettings) -> list[Conversation]:
    """The first question of each task, as `play` would ask it: canaries for comparing two engines."""
    return [
        _conversation(_key(task.digest, 0), Game(settings.environment, task, settings.max_turns))
        for task in tasks
    ]


def summarize(records: Sequence[EvaluationRecord], ceiling: float | None = None) -> Summary:
    """What the records of one evaluation show. DataError when they are none, mixed or double.

    `ceiling`, when given, must be that of the tasks played: a summary of half an evaluation is refused.
    """
    if not records:
        raise DataError("there are no records to summarize", "play the split first")
    if len({record.settings for record in records}) > 1:
        raise DataError("records of several policies or settings are mixed", "summarize them apart")
    if len({record.key for record in records}) != len(records):
        raise DataError("records hold an episode twice", "evaluate again into an empty file")
    n, solved = len(records), sum(record.solved for record in records)
    solvable = sum(record.solvable for record in records)
    if ceiling is not None and abs(ceiling - solvable / n) > 1e-9:
        raise DataError(
            f"the ceiling given is {ceiling:.4f}, that of the records is {solvable / n:.4f}",
            "the records are not of the tasks and turns meant; finish or repeat the evaluation",
        )
    counts, samples = _solved_by_task(records)
    if samples == 1:
        low, high = clopper_pearson(solved, n, LEVEL)
    else:
        low, high = clustered_interval(counts, samples, LEVEL)
    ratios = [record.turns / record.optimal_turns for record in records if record.solved]
    turns = sum(record.turns for record in records)
    return Summary(
        n=n,
        samples=samples,
        solved=solved,
        solve_rate=solved / n,
        low=low,
        high=high,
        interval=EXACT if samples == 1 else CLUSTERED,
        pass_at_k=pass_at(counts, samples),
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


def _solved_by_task(records: Sequence[EvaluationRecord]) -> tuple[list[int], int]:
    """Solved episodes of each task, and how many episodes each has. DataError unless all have as many."""
    played, solved = Counter(), Counter()
    for record in records:
        played[record.digest] += 1
        solved[record.digest] += record.solved
    if len(set(played.values())) > 1:
        raise DataError(
            f"tasks have {min(played.values())} to {max(played.values())} samples",
            "finish the evaluation: each task counts for as much as any other",
        )
    return [solved[digest] for digest in played], next(iter(played.values()))


def ceiling(environment: Environment, tasks: Iterable[Task], max_turns: int) -> float:
    """Share of tasks that an oracle solves within `max_turns`: no policy can do better."""
    enough = [environment.optimal_turns(task) <= max_turns for task in tasks]
    if not enough:
        raise DataError("there are no tasks to take a ceiling of", "name a split that has rows")
    return sum(enough) / len(enough)


def paired(before: Sequence[EvaluationRecord], after: Sequence[EvaluationRecord]) -> Paired:
    """Compares two evaluations task by task; the p-value is McNemar's, exact and two-sided.

    DataError unless both played the same episodes in the same environment and turns.
    """
    first, second = ({record.key: record for record in records} for records in (before, after))
    rules = {
        (record.environment, record.max_turns, *sorted(record.options.items()))
        for record in (*before, *after)
    }
    if first.keys() != second.keys() or not first or len(rules) > 1:
        raise DataError(
            f"evaluations of {len(first)} and {len(second)} episodes are not of the same tasks and rules",
            "play both policies on the same split with the same settings",
        )
    counts = {(a, b): 0 for a in (True, False) for b in (True, False)}
    for key, record in first.items():
        counts[record.solved, second[key].solved] += 1
    won, lost = counts[False, True], counts[True, False]
    return Paired(counts[True, True], won, lost, counts[False, False], mcnemar_exact(won, lost))


def read_records(path: Path, content: bytes | None = None) -> list[EvaluationRecord]:
    """The records of a file, or of its `content` where that was read already, each replayed; a last line that
    a crash left unfinished is not one of them.

    Raises DataError on a line that is no record, or whose outcome is not what its actions lead to.
    """
    records, content = [], read_whole(path) if content is None else content
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            record = EvaluationRecord.from_json(parse_json(line))
            wrong = _not_replayed(record)
        except SkypodError as error:
            raise DataError(f"{path.name} line {number}: {error.problem}", error.remedy) from None
        except _NO_RECORD as error:
            raise DataError(f"{path.name} line {number} is no record: {error!r}", "evaluate again") from None
        if wrong:
            raise DataError(
                f"{path.name} line {number}: the actions on task {record.digest} do not lead to the "
                f"{', '.join(wrong)} stated",
                "the file was changed; evaluate again",
            )
        records.append(record)
    return records


def records_digest(records: Iterable[EvaluationRecord]) -> str:
    """SHA-256 of the records, whatever the order in which the episodes ended."""
    return hashlib.sha256("".join(sorted(record.to_line() for record in records)).encode()).hexdigest()


def _resume(
    path: Path, settings: EvaluationSettings, tasks: dict[str, Task]
) -> tuple[dict[str, EvaluationRecord], bytes]:
    """The records that a file has for these episodes, and its lines; cuts off an unfinished last one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    held = whole_lines(read_whole(path))
    records = read_records(path, held)
    found = {record.key: record for record in records}
    strangers = found.keys() - tasks.keys()
    if len(found) != len(records) or strangers or not all(map(settings.made, records)):
        raise DataError(
            f"{path.name} holds records of another evaluation "
            f"({len(records)} records, {len(strangers)} of other tasks, "
            f"settings {sorted({r.settings for r in records})}; this one has {settings.digest})",
            "use another label, or move the file away",
        )
    with path.open("r+b") as file:
        file.truncate(len(held))
    return found, held


def _conversation(key: str, game: Game) -> Conversation:
    shown = game.observation()
    return Conversation(key, shown.image, text=shown.text)


def _record(key: str, game: Game, settings: EvaluationSettings) -> EvaluationRecord:
    return EvaluationRecord(
        digest=game.task.digest,
        canonical=game.task.canonical_digest,
        task=game.task.to_json(),
        environment=settings.environment.name,
        options=settings.environment.options,
        sample=int(key.rpartition("/")[2]),
        policy=settings.policy,
        settings=settings.digest,
        max_turns=settings.max_turns,
        reward=settings.reward,
        **asdict(game.result()),
    )


def _not_replayed(record: EvaluationRecord) -> list[str]:
    """The fields of a record that playing its actions again does not give."""
    game = record.replay()
    for action in record.actions:
        if game.done:
            return ["actions"]
        game.act(action)
    if not game.done:
        return ["actions"]
    stated = asdict(record)
    found = asdict(game.result()) | {"digest": game.task.digest, "canonical": game.task.canonical_digest}
    return sorted(name for name, value in found.items() if name != "malformed" and stated[name] != value)


def _key(digest: str, sample: int) -> str:
    return f"{digest}/{sample}"
