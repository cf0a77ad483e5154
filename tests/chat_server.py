"""
A local server that speaks OpenAI's chat-completions API, strict about what it is sent and scripted in what it answers.

    with ChatServer(script=["Hello."], context_window=8_000) as server:
        server.generator().run([ChatMessage.from_user("Hi")])
    assert server.requests[0].body["messages"] == [{"role": "user", "content": "Hi"}]

All settings may be changed while it runs. What it refuses, and how, is in `chat_rules`; it answers whole or streamed as
the request asks. A script is a list of what to answer to the requests that are accepted, one after the other, or a
function of the request; an answer is a text, a `Reply`, or an `ApiError` to fail with.
"""

import http.client
import json
import socket
import socketserver
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from chat_rules import INVALID, ApiError, refusal, server_error
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import Tool
from haystack.utils import Secret

from haystack_compaction import EstimatedTokenCounter, messages_from_dicts

PATH = "/v1/chat/completions"

Count = Callable[[list[ChatMessage], list[Tool]], int]
Usage = Callable[[int, int], dict[str, Any] | None]


@dataclass(frozen=True)
class Reply:
    """
    What the model says.

    :param finish_reason: None gives what fits: `tool_calls` with calls, `stop` without.
    :param delay: How many seconds it thinks before the first byte.
    :param usage: The usage to report instead of what the server's own function gives.
    """

    text: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    finish_reason: str | None = None
    delay: float = 0.0
    usage: dict[str, Any] | None = None

    @property
    def reason(self) -> str:
        return self.finish_reason or ("tool_calls" if self.tool_calls else "stop")

    @property
    def message(self) -> ChatMessage:
        return ChatMessage.from_assistant(self.text, tool_calls=list(self.tool_calls))


@dataclass(frozen=True)
class Size:
    """What a request takes of the window, in tokens."""

    window: int
    messages: int
    functions: int
    completion: int

    @property
    def total(self) -> int:
        return self.messages + self.functions + self.completion


@dataclass
class Request:
    """A request as it came, and what became of it."""

    number: int
    raw: bytes
    headers: dict[str, str]
    body: Any = None
    tokens: int = 0
    error: ApiError | None = None
    reply: Reply | None = None

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.body["messages"])

    @property
    def streamed(self) -> bool:
        return bool(self.body.get("stream"))


Answer = str | Reply | ApiError
Script = Iterable[Answer] | Callable[[Request], Answer]


def context_length_exceeded(size: Size) -> ApiError:
    """How the API says that a request is too long."""
    parts = {"messages": size.messages, "functions": size.functions, "completion": size.completion}
    there = {name: tokens for name, tokens in parts.items() if tokens or name == "messages"}
    taken = _listed([f"{tokens} in the {name}" for name, tokens in there.items()], "and")
    said = "you requested" if size.completion else "your messages resulted in"
    message = (
        f"This model's maximum context length is {size.window} tokens. However, {said} {size.total} tokens"
        f"{f' ({taken})' if len(there) > 1 else ''}. Please reduce the length of the {_listed(list(there), 'or')}."
    )
    return ApiError(400, message, param="messages", code="context_length_exceeded")


def input_limit_exceeded(size: Size) -> ApiError:
    """How it says so for the models since GPT-5."""
    message = (
        f"Input tokens exceed the configured limit of {size.window} tokens. Your messages resulted in "
        f"{size.messages + size.functions} tokens. Please reduce the length of the messages."
    )
    return ApiError(400, message, param="messages", code="context_length_exceeded")


def _listed(words: Sequence[str], conjunction: str) -> str:
    if len(words) < 3:
        return f" {conjunction} ".join(words)
    return f"{', '.join(words[:-1])}, {conjunction} {words[-1]}"


def usage_as_counted(prompt: int, completion: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def _tool(schema: dict[str, Any]) -> Tool:
    function = schema["function"]
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return Tool(function["name"], function.get("description") or "", parameters, function=len)


@dataclass
class ChatServer:
    """
    The server; a context manager.

    :param script: What the model answers. None: always "OK".
    :param context_window: What a request, with the completion that it asks for, may take in tokens. None: any length.
    :param count: Counts the tokens of messages and tools.
    :param overflow: Words the error of a request that is too long.
    :param usage: Makes the usage of a reply from tokens in and out; None from it reports none.
    :param strict: Whether the rules hold too that OpenAI's own servers do not have.
    :param api_key: The only key that is accepted. None: any.
    :param models: The only models that there are. None: any.
    """

    script: Script | None = None
    context_window: int | None = None
    count: Count = field(default_factory=lambda: EstimatedTokenCounter().count)
    overflow: Callable[[Size], ApiError] = context_length_exceeded
    usage: Usage = usage_as_counted
    strict: bool = True
    api_key: str | None = None
    models: Sequence[str] | None = None

    requests: list[Request] = field(default_factory=list, init=False)
    broken: list[BaseException] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: deque[ApiError] = deque()
        self._left: tuple[Any, Iterator[Answer]] = (None, iter(()))
        self._closing = threading.Event()
        self._http = _Listener(self)

    # -- its life ------------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    def generator(self, **settings: Any) -> OpenAIChatGenerator:
        """A client that asks once, and keeps no connection open that a test would have to close."""
        key = Secret.from_token(settings.pop("key", "a key"))
        defaults: dict[str, Any] = {"model": "gpt-test", "max_retries": 0, "timeout": 20.0}
        defaults["http_client_kwargs"] = {"limits": {"max_keepalive_connections": 0}, "verify": False}
        return OpenAIChatGenerator(api_key=key, api_base_url=self.url, **defaults | settings)

    def take(self, body: dict[str, Any]) -> int:
        """Send a request without a client around it, which is quick, and return the status."""
        connection = http.client.HTTPConnection("127.0.0.1", self._http.server_port, timeout=20)
        with closing(connection):
            connection.request("POST", PATH, json.dumps(body), {"Authorization": "Bearer a key"})
            response = connection.getresponse()
            response.read()
            return response.status

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            # What failed first is what the test shall show.
            self.broken.clear()
        self.close()

    def close(self) -> None:
        """
        Stop, once.

        :raises BaseException: What the script raised; its client was only told of a server error.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        self._http.shutdown()
        self._http.close()
        self._thread.join()
        if self.broken:
            raise self.broken[0]

    # -- what happened -------------------------------------------------------------------------------------------------

    @property
    def accepted(self) -> list[Request]:
        """The requests that reached the model."""
        return [request for request in self.requests if request.reply is not None]

    @property
    def refused(self) -> list[Request]:
        """The requests that were wrong in form or in length, or failed on purpose."""
        return [request for request in self.requests if request.error is not None]

    @property
    def errors(self) -> list[str]:
        """What was wrong with the requests that were not answered, one line each."""
        return [f"request {request.number}: {request.error.message}" for request in self.refused if request.error]

    @property
    def largest(self) -> int:
        return max((request.tokens for request in self.requests), default=0)

    def fail_next(self, *failures: ApiError) -> None:
        """Fail the next requests, whatever they are: `fail_next(server_error(), rate_limited())`."""
        self._failures.extend(failures)

    def forget(self) -> None:
        """Drop the recorded requests."""
        self.requests.clear()

    # -- what it does with a request -----------------------------------------------------------------------------------

    def handle(self, raw: bytes, headers: dict[str, str]) -> Request:
        """Take a request in, and decide what becomes of it."""
        with self._lock:
            request = Request(len(self.requests), raw, headers)
            self.requests.append(request)
        try:
            answer = self._answer(request)
        except Exception as error:  # noqa: BLE001 - it is raised again when the server closes
            self.broken.append(error)
            answer = server_error()
        if isinstance(answer, ApiError):
            request.error = answer
        else:
            request.reply = Reply(answer) if isinstance(answer, str) else answer
            self._closing.wait(request.reply.delay)
        return request

    def _answer(self, request: Request) -> Answer:
        with suppress(ValueError):
            request.body = json.loads(request.raw)
        error = self._unauthorised(request) or self._failure() or refusal(request.body, strict=self.strict)
        return error or self._unknown_model(request.body) or self._too_long(request) or self._scripted(request)

    def _unauthorised(self, request: Request) -> ApiError | None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme != "Bearer" or not key:
            return ApiError(
                401,
                "You didn't provide an API key. You need to provide your API key in an Authorization header using "
                "Bearer auth (i.e. Authorization: Bearer YOUR_KEY).",
            )
        if self.api_key is not None and key != self.api_key:
            page = "https://platform.openai.com/account/api-keys"
            message = f"Incorrect API key provided: {key}. You can find your API key at {page}."
            return ApiError(401, message, code="invalid_api_key")
        return None

    def _failure(self) -> ApiError | None:
        with suppress(IndexError):
            return self._failures.popleft()
        return None

    def _unknown_model(self, body: dict[str, Any]) -> ApiError | None:
        if self.models is None or body["model"] in self.models:
            return None
        message = f"The model `{body['model']}` does not exist or you do not have access to it."
        return ApiError(404, message, code="model_not_found")

    def _too_long(self, request: Request) -> ApiError | None:
        body = request.body
        messages = self.count(messages_from_dicts(body["messages"]), [])
        tools = [_tool(schema) for schema in body.get("tools") or ()]
        functions = self.count([], tools) - self.count([], []) if tools else 0
        request.tokens = messages + functions
        completion = body.get("max_completion_tokens") or body.get("max_tokens") or 0
        size = Size(self.context_window or 0, messages, functions, completion)
        if self.context_window is None or size.total <= self.context_window:
            return None
        return self.overflow(size)

    def _scripted(self, request: Request) -> Answer:
        if self.script is None:
            return "OK"
        if callable(self.script):
            return self.script(request)
        with self._lock:
            if self._left[0] is not self.script:
                self._left = (self.script, iter(self.script))
            answer = next(self._left[1], None)
        if answer is None:
            raise AssertionError(f"The script has no answer to request {request.number}.")
        return answer

    # -- what it sends back --------------------------------------------------------------------------------------------

    def reported(self, request: Request, reply: Reply) -> dict[str, Any] | None:
        if reply.usage is not None:
            return reply.usage
        return self.usage(request.tokens, self.count([reply.message], []))


def completion(server: ChatServer, request: Request, reply: Reply) -> dict[str, Any]:
    """A reply in one piece."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None, "annotations": []}
    if reply.tool_calls:
        message["tool_calls"] = [_call_dict(call) for call in reply.tool_calls]
    choices = [
        {"index": index, "message": message, "logprobs": None, "finish_reason": reply.reason}
        for index in range(request.body.get("n") or 1)
    ]
    head = _head(request, "chat.completion")
    usage = server.reported(request, reply)
    return {**head, "choices": choices, **({} if usage is None else {"usage": usage})}


def chunks(server: ChatServer, request: Request, reply: Reply) -> Iterator[dict[str, Any]]:
    """A reply in the pieces of a stream, the usage last if it was asked for."""
    options = request.body.get("stream_options") or {}
    head = _head(request, "chat.completion.chunk")
    if options.get("include_usage"):
        head["usage"] = None

    def piece(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}

    empty = None if reply.tool_calls and not reply.text else ""
    yield piece({"role": "assistant", "content": empty, "refusal": None})
    for text in _halves(reply.text or ""):
        yield piece({"content": text})
    for index, call in enumerate(reply.tool_calls):
        whole = _call_dict(call)
        arguments = whole["function"]["arguments"]
        whole["function"]["arguments"] = ""
        yield piece({"tool_calls": [{"index": index, **whole}]})
        for text in _halves(arguments):
            yield piece({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
    yield piece({}, reply.reason)
    if options.get("include_usage"):
        yield {**head, "choices": [], "usage": server.reported(request, reply)}


def _head(request: Request, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{request.number}",
        "object": kind,
        "created": int(time.time()),
        "model": request.body["model"],
        "service_tier": "default",
        "system_fingerprint": "fp_test",
    }


def _call_dict(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.tool_name, "arguments": arguments}}


def _halves(text: str) -> list[str]:
    middle = len(text) // 2
    return [part for part in (text[:middle], text[middle:]) if part]


# --- HTTP -------------------------------------------------------------------------------------------------------------


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, server: ChatServer) -> None:
        self.chat = server
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def server_bind(self) -> None:
        # The one of HTTPServer asks for the machine's name, which may wait for a name server.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that went away is no fault, and whatever else fails is kept by `ChatServer.handle`."""

    def close(self) -> None:
        """Stop listening, and end the connections that clients keep open."""
        self.server_close()
        for connection in list(self.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Listener
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path != PATH:
            self._send(404, ApiError(404, f"Invalid URL (POST {self.path})").body)
            return
        chat = self.server.chat
        request = chat.handle(raw, {name.lower(): value for name, value in self.headers.items()})
        if request.error is not None:
            self._send(request.error.status, request.error.body, request.error.headers)
        elif request.reply is not None and request.streamed:
            self._stream(chunks(chat, request, request.reply))
        elif request.reply is not None:
            self._send(200, completion(chat, request, request.reply))

    def do_GET(self) -> None:
        hint = "(HINT: Perhaps you meant to make a different HTTP method?)"
        error = ApiError(405, f"Not allowed to GET on {self.path}. {hint}", INVALID, None, "method_not_supported")
        self._send(405, error.body)

    def _send(self, status: int, body: Any, headers: Any = ()) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def _stream(self, pieces: Iterable[dict[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for data in [*(json.dumps(piece) for piece in pieces), "[DONE]"]:
            event = f"data: {data}\n\n".encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""
