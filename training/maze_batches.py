"""Many mazes at once: the draws of `training.mazes.generate` as arrays, one row per seed, step by step alike.

`generate(random.Random(seed), cells)` and row `i` of `draw(seeds, cells)` for `seeds[i] == seed` are the same
maze: the random streams are those of Python's generator, laid side by side, and all walks of Wilson's
algorithm take their steps together.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from training import symmetry
from training.mazes import FLOOR, MOVES, WALL, Maze, generate, neighbours

_WORDS, _SHIFT = 624, 397
"""Size of the Mersenne Twister's state in 32-bit words, and how far apart the words are that it mixes."""
_CHUNK = 4096


@dataclass(frozen=True)
class MazeBatch:
    """N mazes of one size. floor: bool [N, height, width] in squares; start, goal: int [N, 2] squares."""

    floor: np.ndarray
    start: np.ndarray
    goal: np.ndarray

    def mazes(self) -> list[Maze]:
        """The same as validated objects."""
        width = self.floor.shape[2]
        texts = np.where(self.floor, FLOOR, WALL).astype("S1").tobytes().decode()
        size = self.floor.shape[1] * width
        return [
            Maze(tuple(texts[at : at + width] for at in range(n * size, (n + 1) * size, width)), start, goal)
            for n, (start, goal) in enumerate(
                zip(map(tuple, self.start.tolist()), map(tuple, self.goal.tolist()), strict=True)
            )
        ]

    def moves(self) -> np.ndarray:
        """int [N]: the length of each shortest path in squares."""
        n = np.arange(len(self.floor))
        reached = np.zeros_like(self.floor)
        reached[n, self.start[:, 0], self.start[:, 1]] = True
        goal = (n, self.goal[:, 0], self.goal[:, 1])
        moves = np.zeros(len(n), int)
        while not (there := reached[goal]).all():
            moves += ~there
            grown = reached.copy()
            for down, right in MOVES:
                grown |= np.roll(reached, (down, right), (1, 2))
            reached = grown & self.floor
        return moves

    def digests(self) -> list[tuple[str, str, str, str]]:
        """Of each maze: digest, layout, canonical and canonical layout digest, as `Maze` has them."""
        n, height, width = self.floor.shape
        plain = np.where(self.floor, ord(FLOOR), ord(WALL)).astype(np.uint8)
        marked = plain.copy()
        for square, mark in ((self.start, "S"), (self.goal, "G")):
            marked[np.arange(n), square[:, 0], square[:, 1]] = ord(mark)
        images = symmetry.orders((height, width))
        least = min(shape for shape, _ in images)
        found = []
        for flat in (marked.reshape(n, -1), plain.reshape(n, -1)):
            texts = [_texts(flat[:, order]) for shape, order in images if shape == least]
            smallest = texts[0]
            for other in texts[1:]:
                smallest = np.where(other < smallest, other, smallest)
            found.append([symmetry.digest((height, width), text) for text in _decoded(_texts(flat))])
            found.append([symmetry.digest(least, text) for text in _decoded(smallest)])
        exact, canonical, layout, canonical_layout = found
        return list(zip(exact, layout, canonical, canonical_layout, strict=True))


def draw(seeds: Sequence[str], cells: tuple[int, int] = (4, 4)) -> MazeBatch:
    """One maze per seed, each that of `generate`."""
    parts = [_draw(seeds[at : at + _CHUNK], cells) for at in range(0, len(seeds), _CHUNK)]
    return MazeBatch(*(np.concatenate([getattr(p, f) for p in parts]) for f in ("floor", "start", "goal")))


class _Streams:
    """The first words of one random.Random per seed, uint32 [words, N], and how many each has used."""

    def __init__(self, seeds: Sequence[str]):
        self._words = _words(seeds)
        self._used = np.zeros(len(seeds), int)
        self.ended = np.zeros(len(seeds), bool)
        """Streams that were asked for more words than there are; they give nonsense from then on."""

    def random(self, rows: np.ndarray) -> np.ndarray:
        """The next `random()` of these rows."""
        high, low = self._next(rows) >> 5, self._next(rows) >> 6
        return (high * 67108864.0 + low) / 9007199254740992.0

    def below(self, rows: np.ndarray, limit: int) -> np.ndarray:
        """The next `randrange(limit)` of these rows."""
        bits = limit.bit_length()
        found = self._next(rows) >> (32 - bits)
        while (again := (found >= limit) & ~self.ended[rows]).any():
            found[again] = self._next(rows[again]) >> (32 - bits)
        return np.minimum(found, limit - 1).astype(int)

    def _next(self, rows: np.ndarray) -> np.ndarray:
        at = self._used[rows]
        self._used[rows] += 1
        self.ended[rows[at >= len(self._words)]] = True
        return self._words[np.minimum(at, len(self._words) - 1), rows]


def _draw(seeds: Sequence[str], cells: tuple[int, int]) -> MazeBatch:
    height, width = cells
    streams = _Streams(seeds)
    everyone = np.arange(len(seeds))
    floor = _carve(streams, everyone, height, width)
    falling, swapped = streams.below(everyone, 2) == 0, streams.below(everyone, 2) == 1
    last_row, last_column = 2 * height - 1, 2 * width - 1
    start = np.where(falling[:, None], (1, 1), (last_row, 1))
    goal = np.where(falling[:, None], (last_row, last_column), (1, last_column))
    start, goal = (np.where(swapped[:, None], b, a) for a, b in ((start, goal), (goal, start)))
    batch = MazeBatch(floor, start, goal)
    for row in np.flatnonzero(streams.ended):
        _put(batch, row, generate(random.Random(seeds[row]), cells))  # noqa: S311 (a replayable draw)
    return batch


def _put(batch: MazeBatch, row: int, maze: Maze) -> None:
    batch.floor[row] = np.array([list(line) for line in maze.rows]) == FLOOR
    batch.start[row], batch.goal[row] = maze.start, maze.goal


def _carve(streams: _Streams, everyone: np.ndarray, height: int, width: int) -> np.ndarray:
    """Wilson's algorithm, all rows in step: each row walks to its tree, then joins what it walked, then goes
    on with its next cell; see `training.mazes`."""
    cells, n = height * width, len(everyone)
    beside = neighbours(height, width)
    options = np.array([len(cell) for cell in beside])
    table = np.array([cell + cell[:1] * (4 - len(cell)) for cell in beside])
    row, column = np.divmod(np.arange(cells), width)
    floor = np.zeros((n, 2 * height + 1, 2 * width + 1), bool)
    in_tree = np.zeros((n, cells), bool)
    in_tree[everyone, streams.below(everyone, cells)] = True
    floor[:, 1::2, 1::2] = True
    leaves_by = np.zeros((n, cells), int)
    first = np.zeros(n, int)
    cell, joining = first.copy(), np.zeros(n, bool)
    live = everyone
    while live.size:
        here = cell[live]
        arrived = in_tree[live, here]
        # At the tree: a walk turns into joining from its first cell on, joining into the next cell's walk.
        turning = live[arrived]
        done = joining[turning] | (first[turning] == cell[turning])
        first[turning[done]] += 1
        joining[turning] = ~done
        cell[turning] = first[turning]
        moving, at = live[~arrived], here[~arrived]
        walking = ~joining[moving]
        walker, on = moving[walking], at[walking]
        choice = (streams.random(walker) * options[on]).astype(int)
        leaves_by[walker, on] = table[on, choice]
        there = leaves_by[moving, at]
        joiner, frm, to = moving[~walking], at[~walking], there[~walking]
        in_tree[joiner, frm] = True
        floor[joiner, row[frm] + row[to] + 1, column[frm] + column[to] + 1] = True
        cell[moving] = there
        live = live[(first[live] < cells) & ~streams.ended[live]]
    return floor


def _words(seeds: Sequence[str]) -> np.ndarray:
    """The first 624 words that random.Random(seed) gives, uint32 [624, N]."""
    keys = [(text := seed.encode()) + hashlib.sha512(text).digest() for seed in seeds]
    words = np.empty((_WORDS, len(seeds)), np.uint32)
    lengths = np.array([-(-len(key) // 4) for key in keys])
    for length in np.unique(lengths):
        chosen = np.flatnonzero(lengths == length)
        padded = b"".join(keys[at].rjust(4 * length, b"\0") for at in chosen)
        key = np.frombuffer(padded, ">u4").reshape(len(chosen), length)[:, ::-1].T.astype(np.uint32)
        words[:, chosen] = _tempered(_twisted(_seeded(key)))
    return words


def _seeded(key: np.ndarray) -> np.ndarray:
    """The state after seeding by arrays: key uint32 [words, N] -> uint32 [624, N]."""
    state = np.empty((_WORDS, key.shape[1]), np.uint32)
    value = 19650218
    for at in range(_WORDS):
        state[at] = value
        value = (1812433253 * (value ^ (value >> 30)) + at + 1) & 0xFFFFFFFF
    at, part = 1, 0

    def mixed(factor: int) -> np.ndarray:
        before = state[at - 1]
        return state[at] ^ ((before ^ (before >> np.uint32(30))) * np.uint32(factor))

    for _ in range(max(_WORDS, len(key))):
        state[at] = mixed(1664525) + key[part] + np.uint32(part)
        at, part = at + 1, (part + 1) % len(key)
        if at == _WORDS:
            state[0], at = state[-1], 1
    for _ in range(_WORDS - 1):
        state[at] = mixed(1566083941) - np.uint32(at)
        at += 1
        if at == _WORDS:
            state[0], at = state[-1], 1
    state[0] = 0x80000000
    return state


def _twisted(state: np.ndarray) -> np.ndarray:
    """The state's next block, in place."""
    for at in range(_WORDS):
        joined = (state[at] & np.uint32(0x80000000)) | (state[(at + 1) % _WORDS] & np.uint32(0x7FFFFFFF))
        odd = (joined & np.uint32(1)) * np.uint32(0x9908B0DF)
        state[at] = state[(at + _SHIFT) % _WORDS] ^ (joined >> np.uint32(1)) ^ odd
    return state


def _tempered(words: np.ndarray) -> np.ndarray:
    words = words ^ (words >> np.uint32(11))
    words ^= (words << np.uint32(7)) & np.uint32(0x9D2C5680)
    words ^= (words << np.uint32(15)) & np.uint32(0xEFC60000)
    return words ^ (words >> np.uint32(18))


def _texts(flat: np.ndarray) -> np.ndarray:
    """uint8 [N, squares] as N byte strings."""
    return np.ascontiguousarray(flat).view(f"S{flat.shape[1]}")[:, 0]


def _decoded(texts: np.ndarray) -> list[str]:
    return texts.astype(str).tolist()
