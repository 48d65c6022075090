"""Passages cut into texts to repeat (Stage I) or to continue (Stage II on documents)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from remory_jax.data.cutting import SUMMARISE, check_positive
from remory_jax.data.examples import Example, join_ids
from remory_jax.data.problems import Problems
from remory_jax.data.records import Passage
from remory_jax.data.rendering import Renderer

__all__ = ["PassageCutting", "continuations", "reconstructions"]

REPEAT = "Repeat the text above word for word."


@dataclasses.dataclass(frozen=True, kw_only=True)
class PassageCutting:
    """How passages are cut. Each is tokenised once and then cut between tokens.

    Attributes:
      passage: most tokens of a text to be repeated (Stage I); longer passages give several.
      shortest: texts with fewer tokens are left out.
      history: tokens of a history to be continued (Stage II on documents).
      response: tokens of the continuation.
      repeat: the instruction of Stage I.
      instruction: what asks the actor for a summary of the history.
    """

    passage: int = 1024
    shortest: int = 16
    history: int = 1024
    response: int = 256
    repeat: str = REPEAT
    instruction: str = SUMMARISE

    def __post_init__(self) -> None:
        check_positive(self, "passage", "shortest", "history", "response")


def reconstructions(
    passages: Iterable[Passage], renderer: Renderer, problems: Problems, cutting: PassageCutting
) -> Iterator[Example]:
    """Stage I: the history is the passage, the response the instruction to repeat it (not judged) and the passage."""
    frame = renderer.frame(cutting.repeat)
    for passage in passages:
        ids = renderer.ids(passage.text)
        for number, start in enumerate(range(0, max(len(ids), 1), cutting.passage)):
            piece = ids[start : start + cutting.passage]
            if len(piece) < cutting.shortest:
                problems.report("too_short", f"{len(piece)} tokens; {cutting.shortest} are the least", id=passage.id)
                continue
            opening = len(frame.between)
            yield Example(
                id=f"{passage.id}#{number}",
                group=passage.id,
                prefix=frame.before,
                histories=(piece,),
                response=join_ids([frame.between, piece, frame.after]),
                judged=((opening, opening + len(piece) + len(frame.after)),),
            )


def continuations(
    passages: Iterable[Passage], renderer: Renderer, problems: Problems, cutting: PassageCutting
) -> Iterator[Example]:
    """Stage II on documents: a stretch of text, and the text that follows it, all of which is judged.

    Stretches do not overlap, so that no history holds another example's response.
    """
    frame = renderer.frame(cutting.instruction)
    whole = cutting.history + cutting.response
    for passage in passages:
        ids = renderer.ids(passage.text)
        for number, start in enumerate(range(0, max(len(ids), 1), whole)):
            history = ids[start : start + cutting.history]
            response = ids[start + cutting.history : start + whole]
            if min(len(history), len(response)) < cutting.shortest:
                found = f"{len(history)} tokens and {len(response)} that follow"
                problems.report("too_short", f"{found}; {cutting.shortest} of each are the least", id=passage.id)
                continue
            yield Example(
                id=f"{passage.id}#{number}",
                group=passage.id,
                prefix=frame.before,
                histories=(history,),
                response=response,
                judged=((0, len(response)),),
                request=frame.between,
            )
