import hashlib
import json
from collections import Counter

import pytest

from training.environments import named
from training.errors import ConfigError, DataError
from training.mazes import Maze, published
from training.splits import (
    Sizes,
    Splits,
    build,
    check_disjoint,
    content_digest,
    draw_train,
    evaluation_pool,
    quarantine,
    read,
    replay,
    row_of,
    row_task,
    write,
)

CELLS = named("maze", squares_per_move=2)


@pytest.fixture(scope="module")
def splits() -> Splits:
    return build(CELLS, 7, Sizes(train=200))


def test_sizes_and_names(splits):
    assert {name: len(rows) for name, rows in splits} == {
        "train": 200,
        "dev": 128,
        "test": 64,
        "test-512": 512,
        "ood": 192,
    }
    for name, rows in splits:
        assert {row["split"] for row in rows} == {name}


def test_no_two_splits_share_a_grid_up_to_symmetry(splits):
    parts = dict(splits)
    parts["ood"] = tuple(row for row in parts["ood"] if row["variant"] != "mirrored")
    layouts = {name: {row_task(row).canonical_layout_digest for row in rows} for name, rows in parts.items()}
    assert sum(map(len, layouts.values())) - len(set.union(*layouts.values())) == 0
    assert all(row_task(row).canonical_layout_digest not in quarantine(CELLS) for row in splits.train)


def test_the_test_is_the_published_set(splits):
    assert tuple(row_task(row) for row in splits.test) == published("easy")


def test_out_of_distribution_variants(splits):
    assert Counter(row["variant"] for row in splits.ood) == {"bigger": 64, "mirrored": 64, "recoloured": 64}
    for row in splits.ood:
        maze = row_task(row)
        assert maze.shape == ((11, 11) if row["variant"] == "bigger" else (9, 9))
        assert maze.palette == ("dusk" if row["variant"] == "recoloured" else "visgym")
    mirrored = [row_task(row).transformed(1) for row in splits.ood if row["variant"] == "mirrored"]
    assert tuple(mirrored) == published("easy")


def test_rows_replay_from_their_origin(splits):
    for row in (*splits.train[:50], *splits.dev[:50], *splits.test_512[:50]):
        assert replay(CELLS, row["origin"]) == row_task(row)
    bigger = next(row for row in splits.ood if row["variant"] == "bigger")
    assert replay(CELLS, bigger["origin"], "bigger") == row_task(bigger)


def test_training_rows_follow_from_seed_epoch_and_row():
    rows = draw_train(CELLS, 3, 40)
    assert draw_train(CELLS, 3, 25) == rows[:25]
    assert build(CELLS, 3, Sizes(train=40)).train == rows
    other = (
        {row["canonical"] for row in draw_train(CELLS, *args, 40, **kw)}
        for args, kw in (((4,), {}), ((3,), {"epoch": 1}))
    )
    for digests in other:
        assert len(digests & {row["canonical"] for row in rows}) < 5


def test_evaluation_rows_do_not_depend_on_the_run():
    small, large = build(CELLS, 1, Sizes(train=1, dev=8, ood=9, test_512=20)), build(CELLS, 2, Sizes(train=2))
    assert small.dev == large.dev[:8]
    assert small.test_512 == large.test_512[:20]
    assert Counter(row["variant"] for row in small.ood) == {"bigger": 3, "mirrored": 3, "recoloured": 3}
    assert set(map(json.dumps, small.ood)) <= set(map(json.dumps, large.ood))


def test_evaluation_rows_are_the_same_for_ever():
    pool = evaluation_pool(CELLS)
    assert content_digest(pool.dev)[:16] == "e5a31df8cc7b99fc"
    assert content_digest(pool.test_512)[:16] == "6bfae6df3c22f1a9"
    assert content_digest(pool.ood)[:16] == "dc9a42f898ea781f"


def test_training_tasks_can_be_solved_in_time():
    rows = draw_train(CELLS, 0, 60, max_turns=7)
    assert {row_task(row).moves for row in rows} == {12}


def test_more_tasks_than_there_are_is_an_error_and_no_endless_loop():
    with pytest.raises(DataError, match=r"no new plain task after 0 of 1 rows of train"):
        draw_train(CELLS, 0, 1, max_turns=6)


@pytest.mark.parametrize("sizes", [{"dev": 257}, {"test_512": 513}, {"ood": 10}, {"dev": -1}, {"ood": 195}])
def test_sizes_out_of_range_are_refused(sizes):
    with pytest.raises(ConfigError):
        Sizes(train=1, **sizes)
    with pytest.raises(ConfigError):
        Sizes(train=-1)


def leaked(splits: Splits, maze: Maze) -> Splits:
    row = row_of(CELLS, maze, "train", origin="by hand")
    return Splits((*splits.train, row), splits.dev, splits.test, splits.test_512, splits.ood)


@pytest.mark.parametrize("symmetry", range(8))
def test_a_leaked_maze_is_found_in_any_disguise(splits, symmetry):
    rows = (splits.test, splits.dev, splits.test_512)[symmetry % 3]
    with pytest.raises(DataError, match="up to symmetry"):
        check_disjoint(leaked(splits, row_task(rows[-1]).transformed(symmetry)))


def test_a_leaked_grid_with_other_corners_is_found(splits):
    maze = published("easy")[0]
    with pytest.raises(DataError, match="up to symmetry"):
        check_disjoint(leaked(splits, Maze(maze.rows, maze.goal, maze.start)))


def test_a_row_given_twice_is_found(splits):
    with pytest.raises(DataError, match="twice in split train"):
        check_disjoint(leaked(splits, row_task(splits.train[0])))


def test_files_carry_the_digest_of_their_content(tmp_path, splits):
    path = tmp_path / "data" / "dev.jsonl"
    digest = write(path, splits.dev)
    assert digest == content_digest(splits.dev) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (tmp_path / "data" / "dev.jsonl.sha256").read_text() == f"{digest}  dev.jsonl\n"
    assert read(path) == splits.dev
    assert read(path, digest) == splits.dev
    assert write(path, splits.dev) == digest


def test_an_edited_file_is_refused_with_both_digests(tmp_path, splits):
    path = tmp_path / "test.jsonl"
    digest = write(path, splits.test)
    easier = path.read_text().replace('"start":[7,1]', '"start":[7,3]', 1)
    path.write_text(easier)
    found = hashlib.sha256(easier.encode()).hexdigest()
    with pytest.raises(DataError, match=f"(?s){found}.*{digest}"):
        read(path)
    # With the digest beside it edited too, the rows still have to fit their mazes, and the run's manifest
    # still holds the digest that was written.
    (tmp_path / "test.jsonl.sha256").write_text(f"{found}  test.jsonl\n")
    with pytest.raises(DataError, match="states digest"):
        read(path)
    with pytest.raises(DataError, match=f"(?s){found}.*{digest}"):
        read(path, digest)


def test_a_swapped_maze_under_an_old_digest_is_refused(splits):
    with pytest.raises(DataError, match="states digest"):
        row_task(splits.test[0] | {"task": splits.test[1]["task"]})


def test_missing_files_are_an_error(tmp_path, splits):
    with pytest.raises(DataError, match="cannot read split"):
        read(tmp_path / "none.jsonl")
    path = tmp_path / "dev.jsonl"
    write(path, splits.dev)
    (tmp_path / "dev.jsonl.sha256").write_text("")
    with pytest.raises(DataError, match="cannot read split"):
        read(path)
