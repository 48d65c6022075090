"""Write the fixtures of the session logs: claude_code, codex, gemini_cli and opencode. All of it is invented.

Run it from anywhere; it writes beside itself. The totals the tests expect follow from the numbers given here.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
START = datetime.datetime(2026, 5, 4, 9, 0, 0, tzinfo=datetime.UTC)


def stamp(seconds: float) -> str:
    return (START + datetime.timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def lines(path: str, values: list[Any]) -> None:
    file = HERE / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(value, separators=(",", ":")) + "\n" for value in values))


def document(path: str, value: Any) -> None:
    file = HERE / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=1) + "\n")


class Claude:
    """Lines of one Claude Code session file, each the child of the one before."""

    def __init__(self, session: str, **common: Any) -> None:
        self.values: list[Any] = []
        self.session, self.common = session, common
        self.last: str | None = None

    def line(self, uuid: str, kind: str, parent: str | None = "", **fields: Any) -> None:
        self.values.append(
            {
                "parentUuid": self.last if parent == "" else parent,
                "isSidechain": False,
                "sessionId": self.session,
                "type": kind,
                "uuid": uuid,
                "timestamp": stamp(7 * len(self.values)),
                **self.common,
                **fields,
            }
        )
        self.last = uuid

    def user(self, uuid: str, content: Any, **fields: Any) -> None:
        self.line(uuid, "user", message={"role": "user", "content": content}, **fields)

    def result(self, uuid: str, tool: str, content: str, error: bool = False, **fields: Any) -> None:
        block = {"type": "tool_result", "tool_use_id": tool, "content": content, "is_error": error}
        self.user(uuid, [block], toolUseResult=fields.pop("toolUseResult", content), **fields)

    def answer(self, uuid: str, name: str, block: dict[str, Any], usage: dict[str, Any], **fields: Any) -> None:
        message = {"id": f"msg_{name}", "role": "assistant", "model": "claude-x", "content": [block], "usage": usage}
        request = {"requestId": f"req_{name}"} if fields.pop("request", True) else {}
        self.line(uuid, "assistant", message=message, **request, **fields)


def counts(fresh: int, written: int, read: int, output: int, **split: int) -> dict[str, Any]:
    usage: dict[str, Any] = {"input_tokens": fresh, "cache_creation_input_tokens": written}
    usage |= {"cache_read_input_tokens": read, "output_tokens": output}
    if split:
        usage["cache_creation"] = {f"ephemeral_{k[1:]}_input_tokens": v for k, v in split.items()}
    return usage


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def tool(identity: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": name, "input": arguments}


def claude_code() -> None:
    main = "11111111-2222-4333-8444-555555555555"
    log = Claude(main)
    log.values += [
        {"type": "summary", "summary": "an old title", "leafUuid": "u0"},
        {"type": "file-history-snapshot", "messageId": "u1", "snapshot": {}, "isSnapshotUpdate": False},
    ]
    log.user("u1", "Caveat: what follows was typed locally", isMeta=True)
    log.user("u2", "<command-name>/init</command-name>")
    log.user("u3", "please list the shelf")
    first = counts(10, 2000, 8000, 9, _5m=1500, _1h=500)
    log.answer("a1", "a", {"type": "thinking", "thinking": "which shelf", "signature": "AAAA"}, first)
    log.answer("a2", "a", text("I will look at it"), first)
    log.answer("a3", "a", tool("t1", "Bash", command="ls shelf"), first | {"output_tokens": 140})
    log.result("u4", "t1", "no such shelf", error=True)
    log.line(
        "e1",
        "assistant",
        isApiErrorMessage=True,
        message={
            "id": "local",
            "role": "assistant",
            "model": "<synthetic>",
            "content": [text("API Error")],
            "usage": counts(0, 0, 0, 0),
        },
    )
    log.answer("b1", "b", tool("t2", "Task", prompt="find the shelf"), counts(5, 300, 10000, 60), request=False)
    helper = {"agentId": "abc123", "totalTokens": 3437, "usage": counts(4, 400, 3000, 33)}
    log.result("u5", "t2", "it is in the hall", toolUseResult=helper)
    shared = log.values[2:]
    log.answer("c1", "c", text("It is in the hall"), counts(6, 400, 10300, 50, _5m=100, _1h=200))
    log.user("u6", [text("[Request interrupted by user]")])
    log.values.append(42)
    log.user("u7", "carry on")
    log.answer("d1", "d", text("long words " * 40), counts(3, 5000, 10700, 2))
    log.line("s1", "system", parent=None, subtype="compact_boundary", compactMetadata={"preTokens": 15703})
    log.user("u8", "This session is continued: " + "short " * 30, isCompactSummary=True)
    log.user("u9", "what now")
    log.answer("f1", "e", tool("t3", "Read", path="hall"), counts(4, 1500, 8000, 30))
    log.result("u10", "t3", "a lamp " * 200)
    log.answer("g1", "f", tool("t4", "Read", path="hall"), counts(4, 600, 9500, 20))
    log.result("u11", "t4", "a lamp " * 200)
    log.line("s2", "system", subtype="microcompact_boundary", microcompactMetadata={"tokensSaved": 300})
    log.answer("h1", "g", text("Only a lamp"), counts(4, 700, 9500, 25))
    log.user("u12", "anything else?")
    lines(f"claude_code/{main}.jsonl", log.values)

    side = Claude(main, isSidechain=True, agentId="abc123")
    side.user("p1", "find the shelf")
    side.answer("q1", "s1", tool("t9", "Grep", pattern="shelf"), counts(3, 3000, 0, 15))
    side.result("p2", "t9", "hall: shelf")
    side.answer("q2", "s2", text("in the hall"), counts(4, 400, 3000, 33))
    lines(f"claude_code/{main}/subagents/agent-abc123.jsonl", side.values)

    # A resumed session: the first two calls again, under a new session id, and one call of its own.
    again = Claude("99999999-2222-4333-8444-555555555555")
    again.values = [value | {"sessionId": again.session} for value in shared]
    again.last = "u5"
    again.user("v1", "and the table?")
    again.answer("w1", "h", text("There is none"), counts(7, 200, 10300, 11))
    lines("claude_code/resumed.jsonl", again.values)

    # The user goes back to the first answer and asks something else.
    back = Claude("back")
    for uuid, question, usage in (("i", "first idea", (1000, 100)), ("j", "bad idea", (1300, 200))):
        back.user(f"{uuid}u", question)
        back.answer(f"{uuid}a", uuid, text(f"answer to {question}"), counts(usage[0], 0, 0, usage[1]))
    back.user("ku", "better idea", parent="ia")
    back.answer("ka", "k", text("answer to the better idea"), counts(1180, 0, 0, 50))
    back.user("lu", "good")
    back.answer("la", "l", text("thanks"), counts(1300, 0, 0, 10))
    lines("claude_code/rewound.jsonl", back.values)

    # Older versions write helper agents into the same file, without an agent id.
    old = Claude("old")
    old.user("mu", "ask two helpers")
    old.answer("ma", "m", tool("t5", "Task", prompt="one"), counts(500, 0, 0, 20))
    for name in ("n", "o"):
        old.user(f"{name}u", "one", parent=None, isSidechain=True)
        old.answer(f"{name}a", name, text("yes"), counts(200, 0, 0, 5), isSidechain=True)
        old.user(f"{name}v", "sure?", isSidechain=True)
        old.answer(f"{name}b", f"{name}2", text("yes"), counts(230, 0, 0, 6), isSidechain=True)
    old.result("mr", "t5", "yes", parent="ma")
    old.answer("mb", "m2", text("both say yes"), counts(560, 0, 0, 8))
    lines("claude_code/sidechain.jsonl", old.values)


class Codex:
    """Records of one Codex rollout."""

    def __init__(self, identity: str, at: float = 0.0, step: float = 1.0, **meta: Any) -> None:
        self.values: list[Any] = []
        self.at, self.step, self.total = at, step, [0, 0, 0, 0]
        self.record("session_meta", id=identity, **meta)
        self.record("turn_context", model="gpt-x")

    def record(self, record: str, **payload: Any) -> None:
        self.values.append({"timestamp": stamp(self.at), "type": record, "payload": payload})
        self.at += self.step

    def event(self, name: str, **payload: Any) -> None:
        self.record("event_msg", type=name, **payload)

    def item(self, kind: str, **payload: Any) -> None:
        self.record("response_item", type=kind, **payload)

    def said(self, role: str, words: str) -> None:
        self.item("message", role=role, content=[{"type": "input_text", "text": words}])

    def asked(self, words: str) -> None:
        self.said("user", words)
        self.event("user_message", message=words, kind="plain")

    def thought(self, words: str) -> None:
        self.item("reasoning", summary=[{"type": "summary_text", "text": words}], encrypted_content="AAAA")

    def called(self, identity: str, **arguments: Any) -> None:
        self.item("function_call", name="shell", call_id=identity, arguments=json.dumps(arguments))

    def returned(self, identity: str, words: str, code: int = 0) -> None:
        output = json.dumps({"output": words, "metadata": {"exit_code": code}})
        self.item("function_call_output", call_id=identity, output=output)

    def counted(self, *usage: int, last: bool = True, repeat: int = 0) -> None:
        """Prompt, cached, output and reasoning tokens of a call; the event again ``repeat`` times."""
        self.total = [then + now for then, now in zip(self.total, usage, strict=True)]
        info: dict[str, Any] = {"total_token_usage": self.usage(*self.total)}
        if last:
            info["last_token_usage"] = self.usage(*usage)
        for _ in range(1 + repeat):
            self.event("token_count", info=info)

    def nothing(self) -> None:
        """Around a compaction: an event that counts nothing but estimates the context."""
        empty = self.usage(0, 0, 0, 0) | {"total_tokens": 941}
        self.event("token_count", info={"last_token_usage": empty, "total_token_usage": self.usage(*self.total)})

    @staticmethod
    def usage(prompt: int, cached: int, output: int, reasoning: int) -> dict[str, int]:
        return {
            "input_tokens": prompt,
            "cached_input_tokens": cached,
            "output_tokens": output,
            "reasoning_output_tokens": reasoning,
            "total_tokens": prompt + output,
        }


def codex() -> None:
    # Token counts come before the items they count; an aborted turn leaves items that were never counted.
    log = Codex("plain-session-1")
    log.said("developer", "be careful " * 9)
    log.asked("look into the box")
    log.event("token_count", info=None)
    log.counted(1000, 0, 100, 64)
    log.thought("the box")
    log.called("c1", command=["ls", "box"])
    log.returned("c1", "no box", code=2)
    log.counted(1200, 1024, 50, 0)
    log.said("assistant", "There is no box")
    log.asked("then the bag")
    log.thought("the bag")
    log.event("turn_aborted", reason="interrupted")
    log.asked("no, the sack")
    log.counted(1230, 896, 40, 32, repeat=1)
    log.thought("the sack")
    log.said("assistant", "The sack is empty")
    log.asked("and the pot")
    log.counted(1400, 1152, 30, 0)
    log.said("assistant", "The pot is full")
    log.event("thread_rolled_back", num_turns=1)
    log.asked("or the pan")
    log.counted(1330, 1152, 20, 0)
    log.said("assistant", "The pan is hot")
    log.asked("thanks")
    lines("codex/rollout-plain.jsonl", log.values)

    # Counts after their items; the history is compacted before the third call.
    log = Codex("compact-session-1")
    log.asked("read it all")
    log.thought("where to begin")
    log.called("c1", command=["cat", "all"])
    log.counted(9000, 0, 400, 200)
    log.returned("c1", "so many words " * 50)
    log.said("assistant", "done")
    log.counted(12000, 9344, 300, 100)
    log.nothing()
    log.record("compacted", message="", replacement_history=[{"type": "compaction", "encrypted_content": "A" * 400}])
    log.event("context_compacted")
    log.nothing()
    log.said("assistant", "going on")
    log.counted(3000, 1024, 150, 50)
    lines("codex/rollout-compacted.jsonl", log.values)

    # Cumulative counters only, and they start again.
    log = Codex("totals-session-1")
    log.asked("count")
    for usage in ((100, 0, 20, 8), (150, 64, 30, 12)):
        log.said("assistant", "one")
        log.counted(*usage, last=False, repeat=1)
    log.total = [0, 0, 0, 0]
    log.asked("again")
    log.said("assistant", "two")
    log.counted(90, 32, 10, 4, last=False)
    lines("codex/rollout-totals.jsonl", log.values)

    # A parent, a fork of it, a fork of a session that is not here, and a helper the parent spawned.
    parent = Codex("parent-session-1")
    parent.asked("hello")
    parent.said("assistant", "hi")
    parent.counted(1000, 0, 100, 64)
    parent.asked("more")
    parent.said("assistant", "more")
    parent.counted(1300, 1024, 120, 64)
    lines("codex/tree/rollout-b-parent.jsonl", parent.values)

    fork = Codex("forked-session-1", at=7200, forked_from_id="parent-session-1")
    copied = [value | {"timestamp": stamp(7203 + i)} for i, value in enumerate(parent.values)]
    fork.values += copied
    fork.at, fork.total = 7300, parent.total
    fork.asked("other way")
    fork.said("assistant", "other")
    fork.counted(1500, 1280, 80, 16)
    lines("codex/tree/rollout-a-fork.jsonl", fork.values)

    burst = Codex("burst-session-1", at=100, step=0.001, forked_from_id="gone-session-1")
    burst.asked("hello")
    burst.counted(700, 0, 70, 0)
    burst.counted(800, 640, 80, 0)
    burst.at, burst.step = 160, 1.0
    burst.asked("new")
    burst.said("assistant", "new")
    burst.counted(950, 768, 60, 0)
    lines("codex/tree/rollout-c-burst.jsonl", burst.values)

    spawned = {"subagent": {"thread_spawn": {"parent_thread_id": "parent-session-1", "depth": 1}}}
    helper = Codex("helper-session-1", at=300, source=spawned)
    helper.asked("help")
    helper.said("assistant", "helped")
    helper.counted(400, 0, 40, 0)
    lines("codex/tree/rollout-d-helper.jsonl", helper.values)


def gemini_cli() -> None:
    def user(identity: str, words: str) -> dict[str, Any]:
        return {"id": identity, "timestamp": stamp(int(identity[1:])), "type": "user", "content": words}

    def gemini(identity: str, words: str, *tokens: int, **fields: Any) -> dict[str, Any]:
        names = ("input", "output", "cached", "thoughts", "tool", "total")
        return {
            "id": identity,
            "timestamp": stamp(int(identity[1:])),
            "type": "gemini",
            "content": words,
            "model": "gemini-x",
            "tokens": dict(zip(names, tokens, strict=True)) if tokens else None,
            **fields,
        }

    look = {"id": "t1", "name": "look", "args": {"at": "door"}, "status": "error", "result": [{"text": "it is dark"}]}
    head = {"sessionId": "gemini-session-1", "projectHash": "f" * 64, "startTime": stamp(0), "lastUpdated": stamp(9)}
    messages = [
        user("m1", "look at the door"),
        gemini("m2", "", 500, 20, 0, 30, 0, 550, thoughts=[{"subject": "a", "description": "b"}], toolCalls=[look]),
        {"id": "m3", "timestamp": stamp(3), "type": "info", "content": "switched the model"},
        gemini("m4", "I see nothing", 600, 15, 450, 0, 40, 655),
    ]
    document("gemini_cli/session.json", head | {"messages": messages})

    # The newer form of the same session, which goes on: updates, a compression and a rewind.
    later = [
        head,
        messages[0],
        gemini("m2", "", 500, 20, 0, 30, 0, 550),
        messages[1],
        {"$set": {"lastUpdated": stamp(3)}},
        *messages[2:],
        user("m5", "open it"),
        gemini("m6", "It is open", 900, 10, 600, 0, 0, 910),
        {"$set": {"messages": [user("m7", "a short summary " * 4), messages[0]]}},
        user("m8", "go in"),
        gemini("m9", "I am in", 560, 12, 0, 0, 0, 572),
        user("m10", "go left"),
        gemini("m11", "I am left", 600, 14, 550, 0, 0, 614),
        {"$rewindTo": "m10"},
        user("m12", "go right"),
        gemini("m13", "I am right", 604, 16, 570, 0, 0, 620),
        user("m14", "come back"),
    ]
    lines("gemini_cli/later/session-later.jsonl", later)


def opencode() -> None:
    store, session = "opencode/storage", "ses_one"

    def message(identity: str, role: str, at: int, *tokens: int, **fields: Any) -> None:
        value: dict[str, Any] = {"id": identity, "sessionID": session, "role": role, "time": {"created": at * 1000}}
        if tokens:
            value |= {"modelID": "model-x", "providerID": "p", "tokens": used(*tokens)}
        document(f"{store}/message/{session}/{identity}.json", value | fields)

    def part(identity: str, of: str, kind: str, **fields: Any) -> None:
        value = {"id": identity, "sessionID": session, "messageID": of, "type": kind, **fields}
        document(f"{store}/part/{of}/{identity}.json", value)

    def used(fresh: int, output: int, reasoning: int, read: int, write: int) -> dict[str, Any]:
        return {"input": fresh, "output": output, "reasoning": reasoning, "cache": {"read": read, "write": write}}

    info = {"id": session, "projectID": "global", "directory": "project", "parentID": "ses_zero", "title": "t"}
    document(f"{store}/session/global/{session}.json", info)
    base = 1_770_000_000
    message("msg_1", "user", base)
    part("prt_11", "msg_1", "text", text="find the key")
    # One message, two steps; the first calls a tool whose result is pruned later.
    message("msg_2", "assistant", base + 1, 40, 30, 5, 1000, 90)
    state = {"status": "completed", "input": {"q": "key"}, "output": "under the mat " * 30}
    state |= {"time": {"start": 1, "end": 2, "compacted": (base + 8) * 1000}}
    part("prt_21", "msg_2", "step-start")
    part("prt_22", "msg_2", "reasoning", text="where could it be")
    part("prt_23", "msg_2", "tool", tool="search", callID="c1", state=state)
    part("prt_24", "msg_2", "step-finish", tokens=used(1000, 20, 10, 0, 0))
    part("prt_25", "msg_2", "text", text="It is under the mat")
    part("prt_26", "msg_2", "step-finish", tokens=used(40, 30, 5, 1000, 90))
    # A request that failed, then one that went well.
    message("msg_3", "user", base + 9)
    part("prt_31", "msg_3", "text", text="bring it")
    message("msg_4", "assistant", base + 10, 0, 0, 0, 0, 0, error={"name": "APIError"})
    message("msg_5", "assistant", base + 11, 50, 25, 0, 1040, 0)
    part("prt_51", "msg_5", "text", text="Here it is")
    # The call that writes a summary, the client's own word to go on, and the call after it.
    message("msg_6", "user", base + 12)
    part("prt_61", "msg_6", "compaction", auto=True)
    message("msg_7", "assistant", base + 13, 1200, 80, 0, 0, 0, summary=True)
    part("prt_71", "msg_7", "text", text="the key was found")
    message("msg_8", "user", base + 14)
    part("prt_81", "msg_8", "text", text="Continue", synthetic=True)
    message("msg_9", "assistant", base + 15, 1100, 12, 0, 0, 0)
    part("prt_91", "msg_9", "text", text="Done")


if __name__ == "__main__":
    for make in (claude_code, codex, gemini_cli, opencode):
        make()
