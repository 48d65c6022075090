"""Write the fixtures of the logged API pairs: openai and anthropic. All of it is invented.

Run it from anywhere; it writes beside itself. The totals the tests expect follow from the numbers given here.
"""

from __future__ import annotations

from typing import Any

from make_sessions import lines, stamp

Message = dict[str, Any]


def chat(identity: str, messages: list[Message], answer: Message, *usage: int, **request: Any) -> dict[str, Any]:
    """A Chat Completions pair; ``usage`` is prompt, cached, completion and reasoning tokens."""
    prompt, cached, completion, reasoning = usage
    counts: Message = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    counts["prompt_tokens_details"] = {"cached_tokens": cached}
    counts["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    response = {"id": identity, "object": "chat.completion", "created": 1_770_000_000, "model": "gpt-x"}
    response |= {"choices": [{"index": 0, "message": answer, "finish_reason": "stop"}], "usage": counts}
    return {"request": {"model": "gpt-x", "messages": messages, **request}, "response": response}


def said(role: str, words: str, **fields: Any) -> Message:
    return {"role": role, "content": words, **fields}


def openai() -> None:
    system = said("system", "be brief and look things up")
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    function = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "a"}'}}
    call = {"role": "assistant", "content": None, "tool_calls": [function]}
    result = said("tool", "a long result " * 10, tool_call_id="call_1")
    a1 = [system, said("user", "what is at a")]
    a2 = [*a1, call, result]
    a3 = [*a2, said("assistant", "a stone"), said("user", "and at b")]
    a4 = [*a3[:-1], said("user", "and at c")]
    a5 = [*a1, call, said("tool", "[cleared]", tool_call_id="call_1"), *a4[4:]]
    a5 += [said("assistant", "a river"), said("user", "and at d")]
    a6 = [*a1, said("user", "The story so far: a stone at a, a river at c. " * 3)]
    b1 = [system, said("user", "tell me a story")]
    b2 = [*b1, said("assistant", "once"), said("user", "go on")]
    # Two conversations side by side; a line that is there twice; a message edited; a result cleared in place; a
    # compaction that keeps the head.
    pairs = [
        chat("a1", a1, call, 1000, 0, 60, 40, tools=tools),
        chat("b1", b1, said("assistant", "once"), 900, 768, 20, 0),
        chat("a2", a2, said("assistant", "a stone"), 1100, 896, 30, 10, tools=tools),
        chat("b2", b2, said("assistant", "upon"), 1000, 896, 25, 0),
        chat("b2", b2, said("assistant", "upon"), 1000, 896, 25, 0),
        chat("a3", a3, said("assistant", "a tree"), 1200, 1024, 20, 0, tools=tools),
        chat("a4", a4, said("assistant", "a river"), 1190, 1024, 15, 0, tools=tools),
        chat("a5", a5, said("assistant", "a hill"), 1180, 896, 10, 0, tools=tools),
        chat("a6", a6, said("assistant", "so be it"), 1090, 896, 5, 0, tools=tools),
    ]
    lines("openai/chat.jsonl", pairs)

    def respond(identity: str, given: Any, output: list[Any], *usage: int, **request: Any) -> dict[str, Any]:
        prompt, cached, completion, reasoning = usage
        counts: Message = {"input_tokens": prompt, "input_tokens_details": {"cached_tokens": cached}}
        counts |= {"output_tokens": completion, "output_tokens_details": {"reasoning_tokens": reasoning}}
        response = {"id": identity, "object": "response", "created_at": 1_770_000_000, "model": "gpt-x"}
        return {
            "request": {"model": "gpt-x", "input": given, "instructions": "be brief", **request},
            "response": response | {"output": output, "usage": counts},
        }

    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "let me see"}]}
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "a stone"}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a stone"}]}
    # The server keeps the history: a tool loop, a user message, and one that goes on from the first response instead.
    # Then a client that keeps it itself and sends the reasoning back.
    pairs = [
        respond("r1", "what is at a", [thought, call], 2000, 0, 300, 200),
        respond("r2", [result], [answer], 2400, 2176, 50, 30, previous_response_id="r1"),
        respond("r3", [said("user", "and at b")], [answer], 2300, 1920, 40, 0, previous_response_id="r2"),
        respond("r4", [said("user", "never mind")], [answer], 2150, 1920, 35, 0, previous_response_id="r1"),
        respond("s1", [said("user", "tell a story")], [thought, call], 500, 0, 80, 60),
        respond("s2", [said("user", "tell a story"), thought, call, result], [answer], 640, 512, 20, 0),
    ]
    lines("openai/responses.jsonl", pairs)

    def deep(identity: str, messages: list[Message], *usage: int) -> dict[str, Any]:
        hit, miss, completion, reasoning = usage
        answer = said("assistant", "a stone", reasoning_content="it may be a stone")
        pair = chat(identity, messages, answer, hit + miss, 0, completion, reasoning)
        counts = pair["response"]["usage"]
        del counts["prompt_tokens_details"]
        counts |= {"prompt_cache_hit_tokens": hit, "prompt_cache_miss_tokens": miss}
        return pair

    first = [said("user", "what is at a")]
    second = [*first, said("assistant", "a stone"), said("user", "and at b")]
    lines("openai/deepseek.jsonl", [deep("d1", first, 0, 700, 200, 150), deep("d2", second, 640, 330, 180, 120)])


def anthropic() -> None:
    def pair(identity: str, at: int, messages: list[Message], content: list[Any], *usage: int, cleared: int = 0) -> Any:
        fresh, written, read, output, thinking = usage
        counts: Message = {
            "input_tokens": fresh,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": read,
        }
        counts |= {"output_tokens": output, "output_tokens_details": {"thinking_tokens": thinking}}
        response: Message = {"id": identity, "type": "message", "role": "assistant", "model": "claude-x"}
        response |= {"content": content, "usage": counts}
        if cleared:
            edit = {"type": "clear_tool_uses_20250919", "cleared_tool_uses": 1, "cleared_input_tokens": cleared}
            response["context_management"] = {"applied_edits": [edit]}
        tools = [{"name": "look", "input_schema": {"type": "object"}}]
        request = {"model": "claude-x", "system": "be brief", "tools": tools, "messages": messages}
        return {"timestamp": stamp(at), "request": request, "response": response}

    def user(*blocks: Any, breakpoint: bool = False) -> Message:
        last = {"cache_control": {"type": "ephemeral"}} if breakpoint else {}
        return {"role": "user", "content": [*blocks[:-1], blocks[-1] | last]}

    def text(words: str) -> Message:
        return {"type": "text", "text": words}

    thinking = {"type": "thinking", "thinking": "let me see", "signature": "AAAA"}
    call = [thinking, {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "a"}}]
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "nothing there " * 20, "is_error": True}

    def history(*questions: str) -> list[Message]:
        """All messages, with the cache breakpoint on the last one, as clients set it."""
        made = [user(text("what is at a")), {"role": "assistant", "content": call}, user(result)]
        for question in questions:
            made += [{"role": "assistant", "content": [text("nothing")]}, user(text(question))]
        made[-1] = user(*made[-1]["content"], breakpoint=True)
        return made

    answer = [text("nothing")]
    # Thinking is counted apart; the server clears the old tool result before the fourth call, and says so again.
    pairs = [
        pair("a1", 0, [user(text("what is at a"), breakpoint=True)], call, 10, 1500, 0, 100, 40),
        pair("a2", 9, history(), answer, 5, 300, 1500, 50, 0),
        pair("a3", 18, history("at b"), answer, 5, 100, 1800, 30, 0),
        pair("a4", 27, history("at b", "at c"), answer, 5, 300, 1500, 20, 0, cleared=150),
        pair("a5", 36, history("at b", "at c", "at d"), answer, 5, 50, 1800, 10, 0, cleared=150),
    ]
    lines("anthropic/messages.jsonl", pairs)


if __name__ == "__main__":
    for make in (openai, anthropic):
        make()
