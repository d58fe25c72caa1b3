"""An OpenAI-compatible server over the engine.

python examples/openai_server.py model.gguf --port 8080

Chat, completions and models, whole or streamed. Requests wait in the engine's own queue, and a
client that leaves ends its generation. `docs/server.md` says what is understood.
"""

import argparse
import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route
except ImportError as error:
    raise SystemExit(
        f"the server needs starlette and uvicorn ({error}): "
        "pip install 'starlette>=0.40' 'uvicorn>=0.30'"
    ) from None

from mlx_dsv4 import Engine
from mlx_dsv4.engine import Done, Event, Progress, Serving, Stream
from mlx_dsv4.errors import (
    AllocationError,
    ChatError,
    ClosedError,
    Dsv4Error,
    ParamsError,
    PromptError,
    SlotError,
)
from openai_answers import Answer, ChatAnswer, CompletionAnswer
from openai_requests import Json, RequestError, read_chat, read_completion, read_field, spelled

MOST_BODY_BYTES = 16 * 2**20
KEEP_ALIVE_SECONDS = 5.0
RETRY_AFTER_SECONDS = 2

Endpoint = Callable[[Request], Awaitable[Response]]

_log = logging.getLogger("openai_server")


def create_app(
    engine: Engine,
    *,
    model_name: str,
    most_body_bytes: int = MOST_BODY_BYTES,
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
) -> Starlette:
    """The server as an ASGI application; the engine stays the caller's to close.

    Args:
        engine: To serve. It runs all requests; see :class:`mlx_dsv4.engine.Serving`.
        model_name: That answers tell. Requests may name any model: there is one.
        most_body_bytes: Larger requests are refused.
        keep_alive_seconds: After so long without an event a streamed answer sends a comment.
    """
    server = OpenAIServer(engine, model_name, most_body_bytes, keep_alive_seconds)
    routes = [
        Route("/v1/chat/completions", answers_errors(server.chat), methods=["POST"]),
        Route("/v1/completions", answers_errors(server.complete), methods=["POST"]),
        Route("/v1/models", answers_errors(server.models)),
        # A path, since names of models have slashes elsewhere.
        Route("/v1/models/{name:path}", answers_errors(server.one_model)),
        Route("/health", answers_errors(server.health)),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: no_such_route})


class OpenAIServer:
    """The endpoints; see :func:`create_app`."""

    def __init__(
        self, engine: Engine, model_name: str, most_body_bytes: int, keep_alive_seconds: float
    ) -> None:
        self._engine = engine
        self._model_name = model_name
        self._most_body_bytes = most_body_bytes
        self._keep_alive_seconds = keep_alive_seconds
        self._created = int(time.time())

    async def chat(self, request: Request) -> Response:
        """``POST /v1/chat/completions``"""
        return await self._answer(request, ChatAnswer, read_chat, self._engine.stream_chat)

    async def complete(self, request: Request) -> Response:
        """``POST /v1/completions``"""
        return await self._answer(request, CompletionAnswer, read_completion, self._engine.stream)

    async def models(self, request: Request) -> Response:
        """``GET /v1/models``"""
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def one_model(self, request: Request) -> Response:
        """``GET /v1/models/{name}``"""
        name = request.path_params["name"]
        if name != self._model_name:
            message = f"there is no model {spelled(name)}: there is {spelled(self._model_name)}"
            raise RequestError(message, "model", 404, "model_not_found")
        return JSONResponse(self._model())

    async def health(self, request: Request) -> Response:
        """``GET /health``: 200 until the engine is closed, without waiting for it."""
        self._engine.model.check_open()
        return JSONResponse({"status": "ok"})

    def _model(self) -> Json:
        return {
            "id": self._model_name,
            "object": "model",
            "created": self._created,
            "owned_by": "mlx-dsv4",
        }

    async def _answer(
        self,
        request: Request,
        form: type[Answer],
        read: Callable[[Json], Json],
        start: Callable[..., Stream],
    ) -> Response:
        body = await read_body(request, self._most_body_bytes)
        streamed = read_field(body, "stream", bool, False)
        answer = form(body, self._engine.tokenizer, self._model_name)
        # Rendering a long conversation would hold up the other clients' events.
        stream = await asyncio.to_thread(start, **read(body))
        events = watch(stream, request, self._keep_alive_seconds)
        if streamed:
            return StreamingResponse(
                server_sent_events(events, answer),
                media_type="text/event-stream",
                headers={"Cache-Control": "no-cache"},
            )
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Done):
                    return JSONResponse(answer.whole(event.result))
                if not isinstance(event, Silence):
                    answer.choice_of(event)
        raise AssertionError("a stream ends with Done or an error")


@dataclass(frozen=True)
class Silence:
    """Nothing has come for a while, since the prompt is being read or waits for its slot.

    Args:
        progress: How far it has been read; None if it waits.
    """

    progress: Progress | None


async def watch(
    stream: Stream, request: Request, silence_seconds: float
) -> AsyncGenerator[Event | Silence, None]:
    """The events of a generation that is cancelled when its client leaves.

    Raises:
        ClientDisconnect: the client has left.
        Dsv4Error: what ended the generation.
    """
    clock = asyncio.get_running_loop().time
    events = aiter(stream)
    gone = asyncio.ensure_future(client_leaves(request))
    coming = asyncio.ensure_future(anext(events))
    progress, deadline = None, clock() + silence_seconds
    try:
        while True:
            left = max(deadline - clock(), 0)
            await asyncio.wait({gone, coming}, timeout=left, return_when="FIRST_COMPLETED")
            if gone.done():
                raise ClientDisconnect
            # Asked for once: another may come while the client takes this one.
            came = coming.done()
            event: Event | Silence = coming.result() if came else Silence(progress)
            if isinstance(event, Progress):
                progress = event
            else:
                yield event
                deadline = clock() + silence_seconds
            if isinstance(event, Done):
                return
            if came:
                coming = asyncio.ensure_future(anext(events))
    finally:
        stream.cancel()
        gone.cancel()
        coming.cancel()
        await asyncio.gather(gone, coming, return_exceptions=True)


async def client_leaves(request: Request) -> None:
    """Wait until the connection is closed; the body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def server_sent_events(
    events: AsyncGenerator[Event | Silence, None], answer: Answer
) -> AsyncIterator[str]:
    """The lines of a streamed answer. An error after its begin is an event too, and the last."""
    try:
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Silence):
                    yield keep_alive(event.progress)
                    continue
                for piece in answer.pieces(event):
                    yield data(json.dumps(piece, ensure_ascii=False))
        yield data("[DONE]")
    except ClientDisconnect:
        return
    except Exception as error:
        _, body, _ = error_answer(error)
        yield data(json.dumps(body, ensure_ascii=False))


def data(text: str) -> str:
    return f"data: {text}\n\n"


def keep_alive(progress: Progress | None) -> str:
    """A comment, which clients pass over: it keeps proxies from closing the connection."""
    if progress is None:
        return ": keep-alive, waiting\n\n"
    return f": keep-alive, {progress.processed} of {progress.total} prompt tokens read\n\n"


async def read_body(request: Request, most_bytes: int) -> Json:
    """The JSON object of a request, refused as soon as it is known to be too large."""
    chunks = bytearray()
    async for chunk in request.stream():
        chunks += chunk
        if len(chunks) > most_bytes:
            raise RequestError(f"the body must have at most {most_bytes} bytes", status=413)
    try:
        body = json.loads(chunks)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body must be JSON: {error}") from None
    except RecursionError:
        raise RequestError("the body must be JSON: it is nested too deeply") from None
    except ValueError:
        raise RequestError("the body must be JSON: an integer has too many digits") from None
    if not isinstance(body, dict):
        raise RequestError(f"the body must be a JSON object; got {spelled(body)}")
    return body


def answers_errors(endpoint: Endpoint) -> Endpoint:
    """An endpoint that answers errors in OpenAI's form."""

    async def guarded(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except Exception as error:
            status, body, headers = error_answer(error)
            return JSONResponse(body, status, headers)

    return guarded


async def no_such_route(request: Request, error: Exception) -> Response:
    """Answer to a path or method that is not served."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    body = error_body(message, "invalid_request_error", None, None)
    return JSONResponse(body, error.status_code, error.headers)


def error_answer(error: Exception) -> tuple[int, Json, dict[str, str]]:
    """Status, body and headers of an error; what the caller cannot help is logged."""
    text = str(error)
    match error:
        case RequestError():
            body = error_body(text, "invalid_request_error", error.param, error.code)
            return error.status, body, {}
        case ChatError() | ParamsError() | PromptError():
            return 400, error_body(text, "invalid_request_error", None, None), {}
        case SlotError():
            headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
            return 429, error_body(text, "rate_limit_error", None, "no_slot"), headers
        case AllocationError():
            return 503, error_body(text, "server_error", None, "out_of_memory"), {}
        case ClosedError():
            return 503, error_body("the server is ending", "server_error", None, "closed"), {}
    _log.error("a request failed", exc_info=error)
    text = f"internal error ({type(error).__name__}); the server's log says more"
    return 500, error_body(text, "server_error", None, "internal_error"), {}


def error_body(message: str, kind: str, param: str | None, code: str | None) -> Json:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class Server(uvicorn.Server):
    """Closes the engine first: what runs ends with an error instead of holding up the end."""

    def __init__(self, config: uvicorn.Config, engine: Engine) -> None:
        super().__init__(config)
        self._engine = engine

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            _log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.to_thread(self._engine.close)
        await super().shutdown(sockets)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Serve a DeepSeek-V4 GGUF file to OpenAI clients.")
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; no access check")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--slots", type=int, default=4, help="requests that run at once")
    parser.add_argument("--waiting", type=int, default=64, help="most requests that wait")
    parser.add_argument("--context", type=int, help="most tokens, prompt and answer")
    parser.add_argument("--store", type=Path, help="folder of saved caches")
    parser.add_argument("--model-name", help="default: the file's name")
    parser.add_argument("--device", choices=("auto", "cpu", "gpu"), default="auto")
    parser.add_argument("--preload", action="store_true", help="read the whole file first")
    parser.add_argument("--body-mib", type=int, default=MOST_BODY_BYTES >> 20, help="of a request")
    parser.add_argument("--keep-alive", type=float, default=KEEP_ALIVE_SECONDS, help="seconds")
    return parser.parse_args()


def reserve(host: str, port: int) -> socket.socket:
    """A socket of an address that nobody else has; it does not listen, so that nobody waits."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise SystemExit(
            f"error: {host} port {port} cannot be listened on: {reason}; "
            "--host and --port choose another"
        ) from None
    return listener


def main() -> None:
    arguments = parse_arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    # Loading may take minutes.
    listener = reserve(arguments.host, arguments.port)
    try:
        engine = Engine.load(
            arguments.model,
            context=arguments.context,
            slots=arguments.slots,
            device=arguments.device,
            store=arguments.store,
            preload=arguments.preload,
            serving=Serving(max_waiting=arguments.waiting),
        )
    except (Dsv4Error, OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None
    with listener, engine:
        app = create_app(
            engine,
            model_name=arguments.model_name or arguments.model.stem,
            most_body_bytes=arguments.body_mib * 2**20,
            keep_alive_seconds=arguments.keep_alive,
        )
        try:
            Server(uvicorn.Config(app), engine).run([listener])
        except KeyboardInterrupt:
            _log.info("ended")


if __name__ == "__main__":
    main()
