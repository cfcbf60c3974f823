"""The `openai` package, unchanged, against `drafter serve`.

    python3 tests/openai_client.py DRAFTER

DRAFTER is the program.
"""

import sys
import threading
from pathlib import Path

import openai

from serving import serve

TEMPLATE = Path(__file__).parent.parent / "drafter" / "tests" / "tools.jinja"
TOOLS = [{
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads a file",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}},
                       "required": ["path"]},
    },
}]
QUESTION = [{"role": "user", "content": "Where is the lamp?"}]


def joined(stream):
    content, reasoning, finish, usage = "", "", None, None
    for chunk in stream:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            finish = choice.finish_reason or finish
        usage = chunk.usage or usage
    return content, reasoning, finish, usage


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected")


def check(client, url):
    model = client.models.list().data[0]
    assert model.id == "target" and model.context_length == 512, model
    assert client.models.retrieve("target").id == "target"
    raises(openai.NotFoundError, lambda: client.models.retrieve("other"))

    # Chats: whole and streamed, greedy and with a seed.
    create = client.chat.completions.create
    for how in [{"temperature": 0}, {"temperature": 1.0, "seed": 7}]:
        for thinking in [True, False]:
            body = {"chat_template_kwargs": {"enable_thinking": thinking}}
            more = {"model": "target", "messages": QUESTION, "max_tokens": 40, "extra_body": body, **how}
            answer = create(**more)
            message, usage = answer.choices[0].message, answer.usage
            stream = create(stream=True, stream_options={"include_usage": True}, **more)
            content, reasoning, finish, streamed = joined(stream)
            assert content == (message.content or ""), (content, message)
            assert reasoning == getattr(message, "reasoning_content", ""), (reasoning, message)
            assert bool(reasoning) == thinking
            assert finish == answer.choices[0].finish_reason
            assert streamed.completion_tokens == usage.completion_tokens
            assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
            assert answer.spec["state"] == "active" and answer.timings["draft_n"] > 0
            plain = create(**{**more, "extra_body": {**body, "x_drafter": {"draft_max": 0}}})
            assert plain.choices[0].message.content == message.content
            assert plain.spec["state"] == "off"
    with create(model="target", messages=QUESTION, stream=True) as stream:
        next(iter(stream))  # and leaves

    found = create(model="target", messages=QUESTION, max_tokens=5, logprobs=True, top_logprobs=2)
    tokens = found.choices[0].logprobs.content
    assert len(tokens) == 5 and all(len(token.top_logprobs) == 2 for token in tokens)

    # Tools: offered, called, answered. The parsing of calls has tests of its own: this model makes none.
    history = QUESTION + [
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function",
             "function": {"name": "read_file", "arguments": "{\"path\": \"a.txt\"}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "on the table"},
    ]
    answer = create(model="target", messages=history, tools=TOOLS, tool_choice="auto", max_tokens=8)
    assert answer.choices[0].finish_reason in ["stop", "length"]

    text = client.completions.create(model="target", prompt="def f(x):", max_tokens=9, temperature=0,
                                     logprobs=2)
    assert text.usage.completion_tokens == 9 and len(text.choices[0].logprobs.tokens) == 9
    stream = client.completions.create(model="target", prompt="def f(x):", max_tokens=9,
                                       temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == text.choices[0].text

    # Errors come as the package's own.
    error = raises(openai.BadRequestError, lambda: create(model="target", messages=[]))
    assert error.param == "messages", error
    error = raises(openai.BadRequestError, lambda: create(
        model="target", messages=[{"role": "user", "content": "word " * 2000}]))
    assert error.code == "context_length_exceeded", error
    raises(openai.BadRequestError, lambda: create(model="target", messages=QUESTION, n=2))
    wrong = openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0)
    raises(openai.AuthenticationError, wrong.models.list)

    # Many at once: the package waits as long as a 503 tells it to.
    answers = []
    work = lambda: answers.append(create(model="target", messages=QUESTION, max_tokens=4, temperature=0))
    threads = [threading.Thread(target=work) for _ in range(30)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(answers) == 30 and len({str(a.choices[0].message) for a in answers}) == 1


def main():
    server, url = serve(sys.argv[1], "--api-key", "s3cret", "--ctx", "512", "--chat-template", TEMPLATE)
    try:
        check(openai.OpenAI(base_url=f"{url}/v1", api_key="s3cret", max_retries=20), url)
    finally:
        server.terminate()
    assert server.wait(30) == 0
    print("the openai package: ok")


main()
