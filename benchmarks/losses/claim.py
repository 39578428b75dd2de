"""What a claim of a paper is: two rows of a published table, and the recorded runs that repeat the comparison."""

from __future__ import annotations

import dataclasses

GLYPHS, HAN, UNITS = "glyphs", "Han characters", "game units"
TUNED = "tuned"  # the rate that the study chose


@dataclasses.dataclass(frozen=True)
class Arm:
    """One side of a comparison: a variant of a study of `bench_claims.py`.

    Attributes:
        study, variant: their names.
        rate: the settings; `TUNED`: those that the study chose on held-out classes.
        keys: of its Recall@1 and MAP@R among the run's extra figures; none: those of the test classes.
    """

    study: str
    variant: str
    rate: str = TUNED
    keys: tuple[str, str] | None = None


@dataclasses.dataclass(frozen=True)
class Compared:
    """The comparison, measured on one data set.

    Attributes:
        where: what differs between the measured comparisons of a claim.
        data: `GLYPHS`, `HAN` or `UNITS`.
        upper, lower: the sides that the paper has above and below.
    """

    where: str
    data: str
    upper: Arm
    lower: Arm


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim: in a published table, the first row is above the second.

    Attributes:
        says: the claim.
        table, data: its place among the tables of `dml reproduce`, and the data set.
        upper, lower: labels of the two rows.
        measured: its comparisons here.
        level: the paper has the two rows level, and a difference here contradicts it.
    """

    says: str
    table: str
    data: str
    upper: str
    lower: str
    measured: tuple[Compared, ...]
    level: bool = False


@dataclasses.dataclass(frozen=True)
class PaperClaims:
    """A paper's claims.

    Attributes:
        name: the paper's, as of `dml reproduce`.
        claims: its claims.
        explained: what explains the contradictions, by experiments of the record.
        open: what nothing here explains.
    """

    name: str
    claims: tuple[Claim, ...]
    explained: tuple[str, ...]
    open: tuple[str, ...]
