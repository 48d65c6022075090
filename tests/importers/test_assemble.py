"""Measured prompts to segments: the prompt the segments render is the measured one, whatever happened in between."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import replay

from costmodel_jax.errors import InputError
from costmodel_jax.importers.assemble import Observation, Piece, Removal, apportion, assemble
from costmodel_jax.schema import Call, Run, Usage


def usage(prompt: int, output: int, cached: int | None = None, reasoning: int | None = None) -> Usage:
    return Usage(prompt_tokens=prompt, output_tokens=output, cached_tokens=cached, reasoning_tokens=reasoning)


def call(prompt: int, output: int, *pieces: Piece, said: int = 0, **fields: Any) -> Observation:
    counts = {name: fields.pop(name) for name in ("cached", "reasoning") if name in fields}
    written = (Piece(kind="assistant", size=said),) if said else ()
    return Observation(usage=usage(prompt, output, **counts), input=pieces, output=written, **fields)


def run(*observations: Observation, inherited: int = 0) -> Run:
    made = Run(id="r", calls=assemble(observations, inherited=inherited))
    replay.check(made)
    return made


def shapes(segments: Any) -> list[tuple[str, int]]:
    return [(segment.kind, segment.tokens) for segment in segments]


def edits(made: Call) -> list[tuple[int, int, str, int | None]]:
    return [(e.start, e.stop, e.cause, None if e.segment is None else e.segment.tokens) for e in made.edits]


USER = Piece(kind="user", size=40)
TOOL = Piece(kind="tool", size=400, name="look")


@hypothesis.given(
    st.integers(0, 10**9), st.lists(st.one_of(st.integers(0, 10**7), st.floats(0, 1e7)), min_size=1, max_size=9)
)
def test_apportion_keeps_the_total_and_the_proportions(total: int, weights: list[float]) -> None:
    parts = apportion(total, weights)
    assert sum(parts) == total
    scale = sum(weights)
    for part, weight in zip(parts, weights, strict=True):
        share = total * weight / scale if scale else total / len(weights)
        assert part >= 0
        assert abs(part - share) <= 1.0 + 1e-6 * total


def test_new_input_is_what_was_not_shown_and_text_apportions_it() -> None:
    made = run(
        call(1000, 50, Piece(kind="system", size=4500), Piece(kind="user", size=500)),
        call(1250, 30, TOOL, Piece(kind="tool", size=600, name="read")),
    )
    # 5 characters a token explain 1,000 tokens; then 1250 - 1000 - 50 arrived, shared 2 : 3.
    assert shapes(made.calls[0].input) == [("system", 900), ("user", 100)]
    assert shapes(made.calls[1].input) == [("tool", 80), ("tool", 120)]
    assert [segment.name for segment in made.calls[1].input] == ["look", "read"]


def test_what_no_text_explains_at_the_beginning_is_the_system_prompt() -> None:
    made = run(call(5000, 10, USER), call(5020, 10, USER))
    # The second call shows the run's own ratio: 40 characters were 10 tokens.
    assert shapes(made.calls[0].input) == [("system", 4990), ("user", 10)]


def test_input_that_no_message_explains_is_a_tool_result_only_after_a_tool_call() -> None:
    asked = Observation(usage=usage(100, 10), output=(Piece(kind="assistant", name="look"),))
    made = run(asked, call(150, 5), call(170, 5))
    assert [shapes(call.input) for call in made.calls] == [[("system", 100)], [("tool", 40)], [("system", 15)]]


def test_billed_reasoning_becomes_its_own_segment() -> None:
    made = run(call(100, 60, USER, said=9, reasoning=45))
    assert shapes(made.calls[0].output) == [("reasoning", 45), ("assistant", 15)]


def test_reasoning_of_unknown_length_stays_inside_the_answer() -> None:
    thought = Piece(kind="reasoning", size=900)
    made = run(Observation(usage=usage(100, 60), input=(USER,), output=(thought, Piece(kind="assistant", size=9))))
    assert shapes(made.calls[0].output) == [("assistant", 60)]


def test_a_client_that_never_sends_reasoning_drops_it_at_the_next_call() -> None:
    made = run(call(100, 60, USER, reasoning=45), call(130, 10, USER, resends_reasoning=False))
    assert edits(made.calls[1]) == [(2, 3, "reasoning_dropped", None)]
    assert shapes(made.calls[1].input) == [("user", 130 - 100 - 15)]


def test_a_prompt_shorter_than_its_history_at_a_user_turn_lost_reasoning() -> None:
    made = run(
        call(1000, 100, USER, reasoning=90),
        call(1200, 50, TOOL, reasoning=40),
        call(1150, 10, Piece(kind="user", size=0), cached=900),
    )
    # 1,250 tokens were shown; 100 had to go, and there were 130 of reasoning: the oldest went first.
    assert edits(made.calls[2]) == [(2, 3, "reasoning_dropped", None), (5, 6, "reasoning_dropped", 30)]
    assert shapes(made.calls[2].input) == [("user", 0)]


def test_reasoning_read_from_the_cache_was_not_dropped() -> None:
    made = run(
        call(1000, 100, USER, reasoning=90),
        call(1200, 50, TOOL, reasoning=40),
        call(1215, 10, Piece(kind="user", size=0), cached=1150),
    )
    assert edits(made.calls[2]) == [(5, 6, "reasoning_dropped", 5)]


def test_a_shrunken_history_without_a_user_turn_has_an_unknown_cause() -> None:
    made = run(call(1000, 100, USER), call(1300, 50, TOOL), call(1160, 10, TOOL, cached=1024))
    # 1,350 tokens were shown. By the run's own ratio 200 arrived, so 390 had to go; but the server read 1,024 from its
    # cache, and past the segment that ends beyond it only 250 are left to lose.
    assert edits(made.calls[2]) == [(3, 5, "unknown", None)]
    assert shapes(made.calls[2].input) == [("tool", 60)]


def test_a_cut_keeps_what_need_not_go() -> None:
    made = run(call(1000, 100, USER), call(1300, 50, TOOL), call(1300, 10, TOOL, cached=1000))
    assert edits(made.calls[2]) == [(2, 4, "unknown", 50)]
    assert shapes(made.calls[2].input) == [("tool", 200)]


def test_compaction_keeps_what_the_server_read_from_its_cache() -> None:
    summary = Piece(kind="summary", size=400)
    made = run(
        call(1000, 100, Piece(kind="system", size=3600), USER),
        call(5000, 50, TOOL),
        call(1300, 10, summary, USER, compacted=True, cached=896),
    )
    assert edits(made.calls[2]) == [(0, 5, "compaction", 896)]
    kinds = [kind for kind, _ in shapes(made.calls[2].input)]
    assert kinds == ["summary", "user"]


def test_compaction_without_a_hit_keeps_the_system_prompt() -> None:
    made = run(
        call(1000, 100, Piece(kind="system", size=3600), Piece(kind="user", size=400)),
        call(5000, 50, TOOL),
        call(1300, 10, USER, compacted=True),
    )
    assert edits(made.calls[2]) == [(1, 5, "compaction", None)]
    # The summary is not in this log: it is what the message does not explain.
    assert shapes(made.calls[2].input)[0][0] == "summary"


def test_pieces_that_left_are_hidden_and_a_replacement_keeps_their_place() -> None:
    made = run(
        call(100, 10, Piece(kind="user", size=40, key="u")),
        call(310, 10, Piece(kind="tool", size=800, key="t", name="look")),
        call(390, 10, Piece(kind="tool", size=280, key="v", name="look")),
        call(
            200,
            10,
            Piece(kind="user", size=40),
            removed={"t": Removal(cause="clear_tool_results", left=80), "v": Removal(cause="rewind")},
        ),
    )
    assert edits(made.calls[3]) == [(3, 4, "clear_tool_results", 20), (5, 6, "rewind", None)]


def test_a_stated_number_of_cleared_tokens_leaves_the_oldest_tool_results() -> None:
    made = run(
        call(100, 10, USER), call(210, 10, TOOL), call(320, 10, TOOL), call(200, 10, USER, cleared=150, cached=100)
    )
    assert edits(made.calls[3]) == [(3, 4, "clear_tool_results", None), (5, 6, "clear_tool_results", 50)]


def test_lengths_may_come_from_a_tokenizer() -> None:
    first = Observation(
        usage=None,
        input=(Piece(kind="system", tokens=70), Piece(kind="user", tokens=30)),
        output=(Piece(kind="reasoning", tokens=5), Piece(kind="assistant", tokens=7)),
    )
    second = Observation(
        usage=None, input=(Piece(kind="user", tokens=9),), output=(Piece(kind="assistant", tokens=0),), compacted=True
    )
    made = run(first, second)
    assert replay.prompts(made) == [100, 79]
    assert shapes(made.calls[0].output) == [("reasoning", 5), ("assistant", 7)]
    assert edits(made.calls[1]) == [(1, 4, "compaction", None)]


@pytest.mark.parametrize(
    ("observation", "field"),
    [
        (Observation(usage=Usage(output_tokens=5)), "prompt"),
        (Observation(usage=Usage(prompt_tokens=5)), "output"),
        (Observation(usage=None, input=(USER,)), "prompt"),
    ],
)
def test_a_missing_count_is_refused(observation: Observation, field: str) -> None:
    with pytest.raises(InputError, match=rf"log: call 1 .*no {field} token count.*--tokenizer"):
        assemble([call(1, 1), observation], path="log")


def test_a_new_session_starts_an_empty_history() -> None:
    made = run(call(1000, 100, USER), call(900, 10, USER, session=1), call(950, 10, USER, session=1))
    assert [call.edits for call in made.calls] == [(), (), ()]
    assert sum(segment.tokens for segment in made.calls[1].input) == 900


def test_a_time_before_the_previous_call_is_not_believed() -> None:
    made = run(call(10, 1, time=5.0), call(20, 1, time=3.0), call(30, 1, time=7.0), call(20, 1, time=1.0, session=2))
    assert [call.time for call in made.calls] == [5.0, None, 7.0, 1.0]


def test_inherited_calls_become_input_of_the_first_own_call() -> None:
    made = run(
        call(1000, 100, USER, reasoning=60),
        call(1130, 20, TOOL),
        call(1200, 10, USER),
        call(1230, 10, USER),
        inherited=2,
    )
    assert len(made.calls) == 2
    shown = shapes(made.calls[0].input)
    # The other run's user message is context here, not a turn of this run.
    assert [kind for kind, _ in shown] == ["system", "system", "reasoning", "assistant", "tool", "assistant", "user"]
    assert sum(tokens for _, tokens in shown) == 1200
    assert assemble([call(10, 1)], inherited=1) == ()


# Plain data, made into pieces inside the test: the run-time type checks of the library may not run in a strategy.
PIECES = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["system", "user", "tool", "assistant", "reasoning", "summary"]),
            "size": st.integers(0, 2000),
            "key": st.sampled_from([None, "a", "b", "c"]),
            "name": st.sampled_from([None, "look"]),
        }
    ),
    max_size=4,
)
CAUSES = st.sampled_from(["rewind", "clear_tool_results", "unknown", "compaction"])
SHARE = st.one_of(st.none(), st.floats(0, 1))
CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.integers(0, 3000),
            "output": st.integers(0, 500),
            "cached": SHARE,
            "reasoning": SHARE,
            "pieces": PIECES,
            "written": PIECES,
            "time": st.one_of(st.none(), st.floats(0, 100)),
            "session": st.sampled_from([None, None, None, 1, 2]),
            "compacted": st.booleans(),
            "resends": st.booleans(),
            "removed": st.dictionaries(st.sampled_from(["a", "b", "c"]), st.tuples(CAUSES, st.integers(0, 99))),
            "cleared": st.sampled_from([0, 0, 50]),
        }
    ),
    min_size=1,
    max_size=9,
)


def observation(drawn: dict[str, Any]) -> Observation:
    def part(share: float | None, whole: int) -> int | None:
        return None if share is None else int(share * whole)

    counts = usage(
        drawn["prompt"],
        drawn["output"],
        part(drawn["cached"], drawn["prompt"]),
        part(drawn["reasoning"], drawn["output"]),
    )
    return Observation(
        usage=counts,
        input=[Piece(**piece) for piece in drawn["pieces"]],
        output=[Piece(**piece) for piece in drawn["written"]],
        time=drawn["time"],
        session=drawn["session"],
        compacted=drawn["compacted"],
        resends_reasoning=drawn["resends"],
        removed={key: Removal(cause=cause, left=left) for key, (cause, left) in drawn["removed"].items()},
        cleared=drawn["cleared"],
    )


@hypothesis.settings(max_examples=120)
@hypothesis.given(CALLS, st.integers(0, 3))
def test_any_measured_history_replays_to_the_measured_prompts(calls: list[dict[str, Any]], inherited: int) -> None:
    made = assemble([observation(drawn) for drawn in calls], inherited=inherited)
    assert len(made) == max(0, len(calls) - inherited)
    if made:
        replay.check(Run(id="r", calls=made))
