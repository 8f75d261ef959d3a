import json
from collections import Counter

import numpy as np
import pytest

from training.environments import named
from training.errors import ConfigError, DataError, SubstrateError
from training.evaluate import (
    Conversation,
    EvaluationSettings,
    Turn,
    ceiling,
    paired,
    play,
    read_records,
    records_digest,
    summarize,
)
from training.mazes import generate, published
from training.protocol import ACTIONS, STOP
from training.render import draw
from training.statistics import clopper_pearson

MAZES = published("easy")
SQUARES, CELLS = named("maze"), named("maze", squares_per_move=2)
LAPTOP = EvaluationSettings(CELLS, max_turns=10, policy="p")


def test_ceilings_of_the_published_mazes():
    assert ceiling(SQUARES, MAZES, 15) * 64 == 50
    assert ceiling(SQUARES, MAZES, 17) == 1.0
    assert ceiling(CELLS, MAZES, 8) * 64 == 50
    assert ceiling(CELLS, MAZES, 10) == 1.0
    assert [ceiling(SQUARES, published("hard"), turns) * 64 for turns in (15, 18, 20, 30, 33)] == [
        0,
        35,
        35,
        63,
        64,
    ]
    with pytest.raises(DataError, match="no tasks"):
        ceiling(SQUARES, [], 10)


@pytest.mark.parametrize("batch", [None, 7, 1])
def test_oracle_solves_everything_it_can(scripted, play_oracle, batch):
    policy = scripted(MAZES, play_oracle)
    records = play(policy, MAZES, EvaluationSettings(CELLS, 10, policy="oracle", batch=batch))
    summary = summarize(records, ceiling(CELLS, MAZES, 10))
    assert (summary.n, summary.solved, summary.solve_rate, summary.turns_over_optimal) == (64, 64, 1.0, 1.0)
    assert (summary.low, summary.high) == pytest.approx((0.944, 1.0), abs=5e-4)
    assert [record.digest for record in records] == [maze.digest for maze in MAZES]
    assert max(map(len, policy.asked)) == (batch or 64)
    assert policy.asked[0] == [f"{maze.digest}/0" for maze in MAZES[: batch or 64]]


def test_the_ceiling_bounds_the_oracle(scripted, play_oracle):
    records = play(scripted(MAZES, play_oracle, squares=1), MAZES, EvaluationSettings(SQUARES, 15))
    summary = summarize(records, ceiling(SQUARES, MAZES, 15))
    assert summary.solved == 50
    assert summary.solve_rate == summary.ceiling == 50 / 64
    assert summary.solve_rate_of_solvable == 1.0


@pytest.mark.parametrize(
    "answer", [lambda *_: ACTIONS[1], lambda *_: f"<action>{STOP}</action>", lambda *_: STOP]
)
def test_well_formed_failure_scores_but_never_counts_as_solved(scripted, answer):
    summary = summarize(play(scripted(MAZES, answer), MAZES, LAPTOP))
    assert summary.solve_rate == summary.solved == summary.low == summary.solve_rate_of_solvable == 0
    assert summary.mean_score == pytest.approx(0.2)
    assert summary.format_rate == 1.0
    assert summary.turns_over_optimal is None


def test_format_rate_counts_turns_and_rambling_scores_nothing(scripted, play_oracle):
    rambling = summarize(play(scripted(MAZES, lambda *_: f"I would {STOP}"), MAZES, LAPTOP))
    assert (rambling.format_rate, rambling.mean_score, rambling.mean_turns) == (0.0, 0.0, 10.0)

    def stutters(maze, position, turn):
        return "hm" if turn == 0 else play_oracle(maze, position, turn)

    records = play(scripted(MAZES, stutters), MAZES, LAPTOP)
    summary = summarize(records)
    assert summary.solved == 64
    assert summary.format_rate == pytest.approx(1 - 64 / sum(record.turns for record in records))
    assert summary.turns_over_optimal == pytest.approx(np.mean([r.turns / (r.turns - 1) for r in records]))


def test_conversations_hold_the_whole_history():
    seen = []

    class Watcher:
        def act(self, conversations):
            seen.extend((len(c.turns), len(c.images), c.answers, c.image) for c in conversations)
            return [ACTIONS[0] + "<|im_end|>" for _ in conversations]

    maze = MAZES[0]
    play(Watcher(), [maze], EvaluationSettings(CELLS, 3))
    assert [(turns, images) for turns, images, _, _ in seen] == [(0, 1), (1, 2), (2, 3)]
    assert [answers for _, _, answers, _ in seen] == [[], [ACTIONS[0]], [ACTIONS[0]] * 2]
    assert (seen[0][3] == draw(maze, maze.start)).all()
    assert (seen[1][3] == draw(maze, (maze.start[0], maze.start[1] + 2))).all()


class Dies:
    """Passes calls on until it has answered `turns` of them."""

    def __init__(self, policy, turns):
        self.policy = policy
        self.turns = turns

    def act(self, conversations):
        if not self.turns:
            raise ConnectionError("the endpoint is gone")
        self.turns -= 1
        return self.policy.act(conversations)


def test_an_evaluation_that_dies_continues_and_counts_every_maze_once(tmp_path, scripted, play_oracle):
    path = tmp_path / "evaluations" / "final.jsonl"
    whole = play(scripted(MAZES, play_oracle), MAZES, LAPTOP)
    settings = EvaluationSettings(CELLS, 10, policy="p", batch=9)
    with pytest.raises(ConnectionError):
        play(Dies(scripted(MAZES, play_oracle), 20), MAZES, settings, records_path=path)
    kept = read_records(path)
    assert 0 < len(kept) < 64
    with path.open("a") as file:
        file.write('{"digest": "torn')
    progress = []
    again = scripted(MAZES, play_oracle)
    records = play(again, MAZES, LAPTOP, progress.append, path)
    assert records == whole
    assert not {key for keys in again.asked for key in keys} & {record.key for record in kept}
    assert sorted(record.key for record in read_records(path)) == sorted(record.key for record in whole)
    assert records_digest(read_records(path)) == records_digest(whole) == summarize(whole).records_digest
    assert (progress[-1].finished, progress[-1].total, progress[-1].solved) == (64, 64, 64)
    finished = play(Dies(None, 0), MAZES, LAPTOP, records_path=path)
    assert finished == whole


def test_records_of_another_evaluation_are_not_continued(tmp_path, scripted, play_oracle):
    path = tmp_path / "baseline.jsonl"
    play(scripted(MAZES, play_oracle), MAZES, LAPTOP, records_path=path)
    policy = scripted([*MAZES, generate(0)], play_oracle)
    for other in (
        EvaluationSettings(CELLS, 10, policy="another"),
        EvaluationSettings(CELLS, 9, policy="p"),
    ):
        with pytest.raises(DataError, match="another evaluation"):
            play(policy, MAZES, other, records_path=path)
    with pytest.raises(DataError, match="1 of other tasks"):
        play(policy, MAZES[1:], LAPTOP, records_path=path)
    assert len(play(policy, [*MAZES, generate(0)], LAPTOP, records_path=path)) == 65


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"solved":false', '"solved":true', "solved"),
        ('"turns":1}', '"turns":2}', "turns"),
        ('"score":0.2', '"score":1.0', "score"),
        ('"optimal_turns":7', '"optimal_turns":6', "optimal_turns"),
        ('"digest":"', '"digest":"0', "digest"),
        ('"actions":["', '"actions":["(\'move\', 0)","', "actions"),
        ('"sample":0', '"sample":0,"note":1', "note"),
        ('"sample":0,', "", "sample"),
        ('"solved":', '"solved"', "no record"),
        ('"start":[7,1]', '"start":[6,1]', "no cell"),
        ('"sample":0', '"sample":0,"sample":0', r"line 1 is no record: .*'sample' is there twice"),
        ('"sample":0', '"note":0', "line 1: an evaluation record has missing or unknown fields"),
        ('"actions":[', '"actions":[{},', "line 1 is no record"),
        ('"options":{', '"options":{"walls":[],', "line 1: environment 'maze' has no option 'walls'"),
        ('"squares_per_move":2', '"squares_per_move":[2]', r"line 1: squares_per_move = \[2\]"),
        ("{", "[" * 100_000, "line 1 is no record"),
    ],
)
def test_records_edited_by_hand_are_refused(tmp_path, scripted, old, new, message):
    path = tmp_path / "final.jsonl"
    play(scripted(MAZES, lambda *_: STOP), MAZES[:3], LAPTOP, records_path=path)
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new, 1))
    with pytest.raises(DataError, match=message):
        read_records(path)


def test_half_an_evaluation_or_a_mixed_one_is_not_summarized(scripted, play_oracle):
    records = play(scripted(MAZES, play_oracle), MAZES, EvaluationSettings(CELLS, 8))
    with pytest.raises(DataError, match="ceiling"):
        summarize(records[:7], ceiling(CELLS, MAZES, 8))
    with pytest.raises(DataError, match="twice"):
        summarize([*records, records[0]])
    with pytest.raises(DataError, match="mixed"):
        summarize([*records, *play(scripted(MAZES, play_oracle), MAZES[:1], LAPTOP)])
    with pytest.raises(DataError, match="no records"):
        summarize([])


def sampled(**chosen):
    return EvaluationSettings(CELLS, 10, policy="p", temperature=1.0, **chosen)


def test_samples_are_episodes_of_their_own_and_belong_to_their_maze(scripted, play_oracle):
    lucky = {MAZES[0].digest: 3, MAZES[1].digest: 1}
    seen = Counter()

    def sometimes(maze, position, turn):
        seen[maze.digest] += turn == 0
        return play_oracle(maze, position, turn) if seen[maze.digest] <= lucky.get(maze.digest, 0) else STOP

    records = play(scripted(MAZES, sometimes), MAZES[:4], sampled(samples=3, batch=1))
    assert [(r.digest, r.sample) for r in records] == [(m.digest, s) for m in MAZES[:4] for s in range(3)]
    summary = summarize(records)
    assert (summary.n, summary.samples, summary.solved, summary.solve_rate) == (12, 3, 4, 4 / 12)
    assert summary.pass_at_k == pytest.approx({"1": 4 / 12, "2": (1 + 2 / 3) / 4, "3": 2 / 4})
    low, high = clopper_pearson(4, 12)
    assert summary.interval == "clustered"
    assert summary.low < low < high < summary.high


def test_one_sample_has_an_exact_interval(scripted, play_oracle):
    summary = summarize(play(scripted(MAZES, play_oracle), MAZES[:4], sampled()))
    assert (summary.interval, summary.samples, summary.pass_at_k) == ("exact", 1, {"1": 1.0})
    assert (summary.low, summary.high) == clopper_pearson(4, 4)


def test_more_samples_are_added_to_those_there_and_an_uneven_evaluation_is_not_summarized(
    tmp_path, scripted, play_oracle
):
    path = tmp_path / "sampled.jsonl"
    few = play(scripted(MAZES, play_oracle), MAZES[:4], sampled(samples=2), records_path=path)
    policy = scripted(MAZES, play_oracle)
    more = play(policy, MAZES[:4], sampled(samples=3), records_path=path)
    assert {key for keys in policy.asked for key in keys} == {f"{maze.digest}/2" for maze in MAZES[:4]}
    assert [record for record in more if record.sample < 2] == few
    with pytest.raises(DataError, match="2 to 3 samples"):
        summarize(more[:-1])


def test_records_of_another_temperature_or_seed_are_not_mixed(tmp_path, scripted, play_oracle):
    path = tmp_path / "sampled.jsonl"
    policy = scripted(MAZES, play_oracle)
    play(policy, MAZES[:2], sampled(seed=1), records_path=path)
    greedy = EvaluationSettings(CELLS, 10, policy="p")
    for other in (sampled(seed=2), greedy, EvaluationSettings(CELLS, 10, policy="p", temperature=0.5)):
        with pytest.raises(DataError, match="another evaluation"):
            play(policy, MAZES[:2], other, records_path=path)
    assert greedy.digest == EvaluationSettings(CELLS, 10, policy="p", seed=5).digest


def test_every_sampled_answer_has_a_seed_of_its_own():
    asked = [
        Conversation(f"{maze.digest}/{sample}", draw(maze, maze.start), turns)
        for maze in MAZES[:5]
        for sample in range(4)
        for turns in ([], [Turn(draw(maze, maze.start), STOP)])
    ]
    seeds = [conversation.seed(0) for conversation in asked]
    assert len(set(seeds)) == len(asked)
    assert [conversation.seed(0) for conversation in asked] == seeds
    assert not set(seeds) & {conversation.seed(1) for conversation in asked}


@pytest.mark.parametrize("answers", [["('move', 0)"], [None, None], []])
def test_a_policy_that_answers_wrongly_is_named(answers):
    class Wrong:
        def act(self, conversations):
            return answers

    with pytest.raises(SubstrateError, match="answers to 2 conversations"):
        play(Wrong(), MAZES[:2], LAPTOP)


def test_bad_requests_are_refused(scripted, play_oracle):
    with pytest.raises(DataError, match="duplicates"):
        play(scripted(MAZES, play_oracle), [MAZES[0], MAZES[0]], LAPTOP)
    with pytest.raises(ConfigError, match="samples"):
        EvaluationSettings(SQUARES, 10, samples=0)
    for wrong in ({"temperature": -0.1}, {"temperature": float("nan")}, {"temperature": 3.0}, {"seed": -1}):
        with pytest.raises(ConfigError, match="temperature of 0 to 2"):
            EvaluationSettings(SQUARES, 10, **wrong)
    with pytest.raises(ConfigError, match="one game played 4 times"):
        EvaluationSettings(SQUARES, 10, samples=4)
    with pytest.raises(ConfigError, match="batch"):
        EvaluationSettings(SQUARES, 10, batch=0)


def test_pairs(scripted, play_oracle):
    easy = {maze.digest for maze in MAZES[:10]}

    def only(digests):
        return lambda maze, *rest: play_oracle(maze, *rest) if maze.digest in digests else STOP

    before = play(scripted(MAZES, only(easy)), MAZES, LAPTOP)
    worse = {maze.digest for maze in MAZES[2:30]}
    after = play(scripted(MAZES, only(worse)), MAZES, EvaluationSettings(CELLS, 10, policy="q"))
    pairs = paired(before, after)
    assert (pairs.both, pairs.won, pairs.lost, pairs.neither) == (8, 20, 2, 34)
    assert pairs.p_value == pytest.approx(0.000121, rel=0.01)
    with pytest.raises(DataError, match="not of the same tasks"):
        paired(before, after[1:])
    other_rules = play(scripted(MAZES, play_oracle), MAZES, EvaluationSettings(CELLS, 12))
    with pytest.raises(DataError, match="rules"):
        paired(before, other_rules)


def test_lines_are_plain_json(tmp_path, scripted, play_oracle):
    path = tmp_path / "a.jsonl"
    play(scripted(MAZES, play_oracle), MAZES[:2], LAPTOP, records_path=path)
    for line in path.read_text().splitlines():
        record = json.loads(line)
        assert record["actions"][-1] == "('stop', 'stop')"
        assert record["policy"] == "p"
    assert json.loads(json.dumps(summarize(read_records(path)).to_json()))["n"] == 2
