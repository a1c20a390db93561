"""Random trees of rows: lists of tokens that begin alike, as paths and as groups of episodes that fork."""

from array import array

from tests.models.families import VOCAB
from verizero.pipeline.train.trees import tree_of
from verizero.pipeline.types import Run


def lone(lengths):
    """The paths of rows that share nothing."""
    return tuple((Run(i, tokens),) for i, tokens in enumerate(lengths))


def rows_of_tree(rng, longest=40):
    """Rows of 2 tokens and more, of one to three trees; some are equal, and some are the beginning of others."""
    rows = []

    def grow(before, level):
        row = [*before, *rng.choices(range(3, VOCAB), k=rng.randint(1, 7))]
        num_children = rng.choice([0, 0, 1, 2, 3]) if level < 5 and len(row) < longest else 0
        if len(row) > 1 and (num_children == 0 or rng.random() < 0.2):
            rows.extend([row] * rng.choice([1, 1, 1, 2]))
        for _ in range(num_children):
            grow(row, level + 1)

    while not rows:
        for _ in range(rng.randint(1, 3)):
            grow([], 0)
    rng.shuffle(rows)
    return rows


def paths_of(rows, min_saved=1):
    """The paths of the rows in their tree."""
    return tree_of([array("i", row).tobytes() for row in rows], min_saved)
