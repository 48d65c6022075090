"""Streams cut at a policy's boundaries, and passages into texts to repeat or continue."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import Words, reasons, renderer

import costmodel_jax as cm
from remory_jax.data import (
    Conversation,
    Cutting,
    Example,
    Passage,
    PassageCutting,
    Problems,
    Trajectory,
    Turn,
    continuations,
    cut_records,
    reconstructions,
)
from remory_jax.data.boundaries import policy_boundaries
from remory_jax.data.examples import as_ids, decode_example, encode_example, same_example
from remory_jax.data.rendering import TokenSegment


def talk(calls: int) -> Conversation:
    turns = [Turn(role="system", text="rules here"), Turn(role="user", text="the task")]
    for number in range(calls):
        turns += [Turn(role="assistant", text=f"answer {number}"), Turn(role="tool", text=f"result {number} a b c")]
    return Conversation(id="talk", turns=tuple(turns))


def cut(record: Any, cutting: Cutting, **options: Any) -> tuple[list[Example], Problems, Words]:
    made, problems = renderer(**options), Problems()
    return list(cut_records([record], made, problems, cutting)), problems, made.tokenizer


def text(words: Words, ids: Any) -> str:
    return words.decode(ids)


@st.composite
def _streams(draw: st.DrawFn) -> list[tuple[str, int, bool, int]]:
    calls = draw(st.integers(1, 8))
    found = []
    for call in range(calls):
        kinds = ["system", "tools", "user"] if call == 0 else ["user", "tool"]
        for kind in draw(st.lists(st.sampled_from(kinds), max_size=3)):
            found.append((kind, call, False, draw(st.integers(0, 30))))
        for kind in draw(st.lists(st.sampled_from(["reasoning", "assistant"]), max_size=2)):
            found.append((kind, call, True, draw(st.integers(0, 30))))
    return found


@pytest.mark.usefixtures("without_shape_checks")
@settings(max_examples=60)
@given(
    stream=_streams(),
    trigger=st.integers(0, 80),
    keep_head=st.integers(0, 40),
    keep_tail=st.integers(0, 40),
    summary=st.integers(0, 20),
)
def test_boundaries_are_those_of_the_cost_model(
    stream: list[tuple[str, int, bool, int]], trigger: int, keep_head: int, keep_tail: int, summary: int
) -> None:
    count = 1 + max((call for _, call, _, _ in stream), default=0)
    calls: list[dict[str, Any]] = [{"input": [], "output": []} for _ in range(count)]
    for kind, call, output, tokens in stream:
        calls[call]["output" if output else "input"].append({"kind": kind, "tokens": tokens})
    run = cm.Run.from_dict({"id": "r", "calls": calls})
    policy = cm.Compact(trigger, keep_head=keep_head, keep_tail=keep_tail, summary=summary)
    segments = [
        TokenSegment(kind=kind, call=call, output=output, ids=np.zeros(tokens, np.int32))  # type: ignore[arg-type]
        for kind, call, output, tokens in stream
    ]
    found = policy_boundaries(segments, policy)

    batch = jax.tree.map(lambda leaf: leaf[0], cm.pack([run], calls=8, segments=48))
    with jax.enable_x64(True):
        summary_steps, death = map(np.asarray, _simulated(policy, batch))
    requests = np.flatnonzero(summary_steps) // 2
    assert [boundary.call for boundary in found] == requests.tolist()
    for boundary in found:
        removed = [i for i in range(len(stream)) if death[i] == 2 * boundary.call + 1 and stream[i][3]]
        assert list(boundary.removed) == removed


@jax.jit
def _simulated(policy: cm.Compact, batch: Any) -> Any:
    """Which steps are summary requests, and the step from which the policy hides each segment, in recorded order."""
    return policy.view(batch).summary, policy._simulate(batch)[0]


def test_prefix_history_and_what_follows() -> None:
    found, problems, words = cut(talk(8), Cutting(policy=cm.Compact(60, summary=5), response=100))
    assert [example.id for example in found] == ["talk#0", "talk#1", "talk#2"]
    first = found[0]
    assert text(words, first.prefix) == "<system>rules here<end>\n<user>the task<end>\n<assistant>"
    assert text(words, first.histories[0]).startswith(
        "answer 0<end>\n<tool>result 0 a b c<end>\n<assistant>answer 1<end>"
    )
    judged = [text(words, first.response[start:stop]) for start, stop in first.judged]
    assert all(answer.startswith("answer") and answer.endswith("<end>") for answer in judged)
    assert text(words, first.response).startswith("\n<tool>result")
    assert first.response.tolist()[-1] == words.known["<end>"]  # it ends with the last judged token
    assert text(words, first.request).startswith("\n<user>Summarise")
    assert first.wants_summaries
    assert not reasons(problems)
    # Nothing is lost or doubled between one boundary and the next: prefix, histories and response are the stream.
    stream = np.concatenate([s.ids for s in renderer_segments(words)])
    whole = np.concatenate([first.prefix, first.histories[0], first.response])
    assert np.array_equal(whole, stream[: len(whole)])
    second = found[1]
    assert np.array_equal(second.histories[0][: len(first.histories[0])], first.histories[0])
    whole = np.concatenate([second.prefix, *second.histories, second.response])
    assert np.array_equal(whole, stream[: len(whole)])


def renderer_segments(words: Words) -> list[TokenSegment]:
    from remory_jax.data import make_renderer

    return make_renderer(words).conversation(talk(8))


def test_several_boundaries_and_a_kept_tail() -> None:
    policy = cm.Compact(60, keep_tail=20, summary=5)
    cutting = Cutting(policy=policy, boundaries=2, response=100)
    found, _, words = cut(talk(5), cutting)
    assert [len(example.histories) for example in found] == [1, 2]
    last = found[-1]
    start = last.judged[0][0]
    assert text(words, last.response[:start]).count("answer") == 1  # the kept tail is shown and not judged
    merged, _, _ = cut(talk(5), Cutting(policy=policy, boundaries=1, response=100))
    assert np.array_equal(np.concatenate(last.histories), merged[-1].histories[0])


def test_the_response_is_cut_and_said_so() -> None:
    found, problems, _ = cut(talk(5), Cutting(policy=cm.Compact(35, summary=5), response=16))
    assert found
    assert all(len(example.response) == 16 for example in found)
    assert reasons(problems) == {"response_truncated": len(found)}
    assert problems.passed_over == 0
    found, problems, _ = cut(talk(5), Cutting(policy=cm.Compact(35, summary=5), response=3))
    assert not found
    assert set(reasons(problems)) == {"empty_response"}
    assert "raise `response`" in problems.list[0].message


def test_records_that_the_policy_leaves_alone() -> None:
    found, problems, _ = cut(talk(1), Cutting(policy=cm.Compact(1000)))
    assert not found
    assert str(problems.list[0]).startswith("talk: compacts nothing")


def trajectory(**more: Any) -> Trajectory:
    calls = [
        {"input": [{"kind": "system", "text": "rules"}, {"kind": "user", "text": "task"}],
         "output": [{"kind": "assistant", "ids": [101, 102], "tokens": 2}]},
        {"input": [{"kind": "tool", "text": "result"}], "output": [{"kind": "assistant", "text": "more"}],
         "edits": [{"start": 2, "stop": 3, "cause": "compaction", "segment": {"kind": "summary", "text": "so far"}}]},
    ]  # fmt: skip
    return Trajectory.from_dict({"id": "run", "calls": calls, **more})


def test_compactions_as_recorded() -> None:
    (example,), problems, words = cut(trajectory(), Cutting(policy=None))
    assert text(words, example.prefix) == "rulestask"
    assert example.histories[0].tolist() == [101, 102]
    assert text(words, example.summaries[0]) == "so far"
    assert text(words, example.response) == "resultmore"
    assert [text(words, example.response[a:b]) for a, b in example.judged] == ["more"]
    assert not example.wants_summaries
    assert not reasons(problems)


def test_runs_that_are_no_single_stream() -> None:
    run = trajectory().to_dict()
    run["calls"][1]["edits"][0]["cause"] = "rewind"
    _, problems, _ = cut(Trajectory.from_dict(run), Cutting())
    assert reasons(problems) == {"several_streams": 1}
    sessions = trajectory().to_dict()
    sessions["calls"][1].update(session="b", edits=[])
    sessions["calls"] = (
        *sessions["calls"],
        {"input": [{"kind": "user", "text": "x y z"}], "output": [{"kind": "assistant", "text": "w"}]},
    )
    found, problems, words = cut(Trajectory.from_dict(sessions), Cutting(policy=cm.Compact(2), keep_task=False))
    assert [example.id for example in found] == ["run@1#0"]
    assert text(words, found[0].histories[0]) == "resultmore"
    assert reasons(problems) == {"no_boundary": 1}


def test_texts_to_repeat() -> None:
    made, problems = renderer(), Problems()
    passage = Passage(id="p", text=" ".join(f"w{i}" for i in range(20)))  # 39 words and blanks
    cutting = PassageCutting(passage=16, shortest=8, repeat="Repeat.")
    found = list(reconstructions([passage, Passage(id="q", text="")], made, problems, cutting))
    assert [len(example.histories[0]) for example in found] == [16, 16]
    assert reasons(problems) == {"too_short": 2}
    for example in found:
        (start, stop), length = example.judged[0], len(example.histories[0])
        assert np.array_equal(example.response[start : start + length], example.histories[0])
        assert made.tokenizer.decode(example.response[start + length : stop]) == "<end>"
        assert made.tokenizer.decode(example.response[:start]) == "\n\nRepeat.<end>\n<assistant>"
        assert made.tokenizer.decode(example.prefix) == "<user>"
        assert not example.wants_summaries


def test_texts_to_continue() -> None:
    made, problems = renderer(chat=False), Problems()
    passage = Passage(id="p", text=" ".join(f"w{i}" for i in range(20)))
    cutting = PassageCutting(history=10, response=5, shortest=4)
    found = list(continuations([passage], made, problems, cutting))
    assert [(len(e.histories[0]), len(e.response)) for e in found] == [(10, 5), (10, 5)]
    whole = np.concatenate([ids for e in found for ids in (e.histories[0], e.response)])
    assert made.tokenizer.decode(whole) == "".join(passage.text.split("w15")[0])
    assert found[0].wants_summaries
    assert reasons(problems) == {"too_short": 1}
    with pytest.raises(ValueError, match=r"PassageCutting\.history = 0"):
        PassageCutting(history=0)


def test_examples_on_disk() -> None:
    made = Example(
        id="a", group="g", histories=(as_ids([1, 2]), as_ids([])), response=as_ids([70_000, 3]), judged=((0, 1),)
    )
    back = decode_example(encode_example(made))
    assert same_example(made, back)
    assert back.response.tolist() == [70_000, 3]
    assert back.histories[1].dtype == np.int32
    assert back.judged == ((0, 1),)
